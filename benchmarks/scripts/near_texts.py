"""Measures the search for near duplicates among texts.

    python benchmarks/scripts/near_texts.py DIRECTORY

DIRECTORY has test.csv.gz of AG News (class, title, description). Its 7,600 texts get
2,400 edited copies, 400 of each kind. Prints CPU seconds, how many copies are found,
and the other pairs, which are near duplicates of the data itself or mistakes.
"""

import sys
import time
from pathlib import Path

import numpy as np
from texts import ag_news

EACH = 400


def changed(text: str, kind: str, generator: np.random.Generator) -> str:
    """Returns a copy of the given kind."""
    words = text.split()
    count = len(words)
    position = int(generator.integers(count))
    if kind == "case and marks":
        return text.upper().replace(".", " !")
    if kind == "one word":
        words[position] = "another"
    elif kind == "two swapped":
        words[position - 1], words[position] = words[position], words[position - 1]
    elif kind == "one tenth left out":
        kept = generator.permutation(count)[count // 10 :]
        words = [words[number] for number in sorted(kept)]
    elif kind == "end cut off":
        words = words[: count * 4 // 5]
    elif kind == "words added":
        words = ["Breaking", "news", ":", *words, "More", "soon"]
    return " ".join(words)


KINDS = (
    "case and marks",
    "one word",
    "two swapped",
    "one tenth left out",
    "end cut off",
    "words added",
)


def main(directory: str) -> None:
    import tensorflow as tf

    from pipeline.contracts import Info
    from pipeline.tasks.inputs.text import TextInput

    splits = ag_news(Path(directory)).values()
    texts = sorted(text for rows in splits for text, _ in rows)
    generator = np.random.default_rng(0)
    kinds = np.repeat(KINDS, EACH)
    originals = generator.choice(len(texts), len(kinds), replace=False)
    copies = [
        changed(texts[row], kind, generator)
        for row, kind in zip(originals, kinds, strict=True)
    ]
    similarity = TextInput({}).similarity(Info({}, {}))
    start = time.process_time()
    examples = tf.data.Dataset.from_tensor_slices({"text": texts + copies})
    examples = examples.map(similarity.sketch, num_parallel_calls=tf.data.AUTOTUNE)
    sketches = np.concatenate([*examples.batch(1024).as_numpy_iterator()])
    middle = time.process_time()
    pairs = similarity.find(sketches)
    end = time.process_time()
    print(
        f"{len(sketches):,} texts: sketches {middle - start:.1f} s, search"
        f" {end - middle:.1f} s"
    )
    found = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    hits = [
        (int(row), len(texts) + number) in found for number, row in enumerate(originals)
    ]
    for kind in KINDS:
        print(f"{kind:20} {np.mean(np.array(hits)[kinds == kind]):.4f}")
    others = [pair for pair in sorted(found) if pair[1] < len(texts)]
    print(f"other pairs          {len(others)}")
    for first, second in others[:: max(len(others) // 10, 1)]:
        print("  ", texts[first][:70], "|", texts[second][:70])


if __name__ == "__main__":
    main(sys.argv[1])
