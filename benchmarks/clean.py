"""What cleaning finds among real pictures, and what it costs. One mode a command:

    python benchmarks/clean.py planted             # 1,000 copies hidden among 10,000 of CIFAR-10
    python benchmarks/clean.py whole cifar10       # all its examples: time, exact duplicates
    python benchmarks/clean.py whole fashion_mnist
    python benchmarks/clean.py damaged             # 5,000 damaged files among 20,000, then a run

The sets come from TensorFlow Datasets (`$TFDS_DATA_DIR`). A last word `PICTURE.png` after the
first two writes a sheet of the pairs that were found, to be looked at.
"""

import collections
import dataclasses
import io
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

KINDS = ("copy", "mirror", "re-encoded or resized", "moved by a pixel")
EACH, AMONG = 250, 10_000


def source_of(dataset: str) -> object:
    """A prepared set of TensorFlow Datasets."""
    from pipeline import shelf

    return shelf.take("sources", "tfds")(dataset=dataset)


def changed(image: np.ndarray, kind: str, generator: np.random.Generator) -> np.ndarray:
    """A copy of uint8 (32, 32, 3)."""
    from PIL import Image

    if kind == "mirror":
        return image[:, ::-1]
    if kind == "moved by a pixel":
        steps = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x]
        y, x = steps[generator.integers(len(steps))]
        return np.pad(image, ((1, 1), (1, 1), (0, 0)), "edge")[1 + y : 33 + y, 1 + x : 33 + x]
    if kind == "copy":
        return image
    picture, side = Image.fromarray(image), len(image)
    if generator.integers(2):
        small = picture.resize((side * 3 // 4,) * 2, Image.Resampling.BICUBIC)
        return np.asarray(small.resize((side,) * 2, Image.Resampling.BICUBIC))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=75)
    return np.asarray(Image.open(file).convert("RGB"))


def planted(sheet: str | None = None, seed: int = 0) -> None:
    """Copies with the label of the original, all in one split, in random places."""
    from pipeline import array_source, findings, scan

    generator = np.random.default_rng(seed)
    some = source_of("cifar10").examples("train").take(AMONG).batch(AMONG)
    (columns,) = some.as_numpy_iterator()
    originals = generator.choice(AMONG, EACH * len(KINDS), replace=False)
    kinds = np.repeat(KINDS, EACH)
    copies = [changed(columns["image"][o], k, generator) for o, k in zip(originals, kinds)]
    images = np.concatenate([columns["image"], copies])
    labels = np.concatenate([columns["label"], columns["label"][originals]])
    origin = np.concatenate([np.arange(AMONG), originals])  # what each shows
    kind = np.concatenate([np.full(AMONG, ""), kinds])
    order = generator.permutation(len(images))
    source = array_source.ArraySource(
        {"image": images[order], "label": labels[order]}, class_names=tuple("0123456789")
    )
    origin, kind = origin[order], kind[order]
    scanned = scan.scan(source)
    entries = findings.find(source, scanned)
    found, others = collections.defaultdict(set), []
    for entry in entries:
        one, other = entry["id"], entry["of"]
        if origin[one] == origin[other]:
            exact = entry["reason"] in ("duplicate", "two labels")
            found[kind[one] or kind[other]].add((origin[one], exact))
        else:
            others.append((images[order][one], images[order][other]))
    for name in KINDS:
        exact = sum(exact for _, exact in found[name])
        print(f"{name:22} {len(found[name]):4} of {EACH} found, {exact} of them as exact")
    pictures = 2 * len(others)
    print(
        f"other pairs            {len(others):4}: look at them; {pictures / len(images):.4%} of all"
    )
    if sheet:
        draw(others, sheet)


def whole(dataset: str, sheet: str | None = None) -> None:
    """All examples of all splits."""
    from pipeline import findings, scan

    source = source_of(dataset)
    start, processor = time.monotonic(), time.process_time()
    scanned = scan.scan(source)
    middle, between = time.monotonic(), time.process_time()
    entries = findings.find(source, scanned)
    end, last = time.monotonic(), time.process_time()
    count = len(scanned)
    print(f"{dataset}: {count:,} examples; wall and processor seconds")
    print(
        f"  scan    {middle - start:6.1f} {between - processor:6.1f}  {count / (middle - start):,.0f}/s"
    )
    print(f"  search  {end - middle:6.1f} {last - between:6.1f}")
    print(f"  all     {end - start:6.1f} {last - processor:6.1f}")
    for reason, number in collections.Counter(e["reason"] for e in entries).items():
        print(f"  {reason:28} {number}")
    if sheet:
        rows = {int(id): row for row, id in enumerate(scanned.id)}
        draw([[scanned.thumbnail[rows[e[k]]] for k in ("id", "of")] for e in entries], sheet)


def draw(pairs: list, path: str, columns: int = 12) -> None:
    """Pairs side by side, from left to right and down."""
    from PIL import Image

    side, gap = 64, 8
    wide, high = 2 * side + gap, side + gap
    sheet = Image.new("RGB", (columns * wide, -(-len(pairs) // columns) * high or 1), "white")
    for number, pair in enumerate(pairs):
        for place, image in enumerate(pair):
            picture = Image.fromarray(np.asarray(image)).resize((side, side), 0)
            at = (number % columns * wide + place * side, number // columns * high)
            sheet.paste(picture, at)
    sheet.save(path)


if __name__ == "__main__":
    mode, *words = sys.argv[1:] or ["planted"]
    {"planted": planted, "whole": whole}[mode](*words)
