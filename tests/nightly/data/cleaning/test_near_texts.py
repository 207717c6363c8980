"""Near duplicates among texts: edited copies are found, and no other texts."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.contracts import Info
from pipeline.tasks.inputs.text import TextInput

COUNT = 300


WORDS = np.array([f"w{number}" for number in range(500)])


def texts(count=COUNT, length=20):
    """Texts whose words are as unequally frequent as those of a language."""
    generator = np.random.default_rng(0)
    share = 1 / np.arange(1, len(WORDS) + 1)
    chosen = generator.choice(WORDS, (count, length), p=share / share.sum())
    return [list(row) for row in chosen]


def pairs_of(contents, **metadata):
    similarity = TextInput(metadata).similarity(Info({}, {}))
    examples = tf.data.Dataset.from_tensor_slices({"text": list(contents)})
    sketches = np.stack([*examples.map(similarity.sketch).as_numpy_iterator()])
    assert sketches.shape[1:] == similarity.spec.shape
    assert sketches.dtype == similarity.spec.dtype.as_numpy_dtype
    return similarity.find(sketches)


CHANGES = {
    "case and marks": lambda words: " , ".join(words).upper() + "!",
    "one word": lambda words: " ".join([*words[:7], "other", *words[8:]]),
    "two words left out": lambda words: " ".join(words[1:9] + words[10:]),
    "a sentence added": lambda words: " ".join([*words, "and", "so", "on"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_edited_copies_are_found_and_nothing_else(change):
    originals = texts()
    copies = [CHANGES[change](words) for words in originals[:50]]
    order = np.random.default_rng(1).permutation(COUNT + 50)
    contents = [" ".join(words) for words in originals] + copies
    pairs = pairs_of([contents[row] for row in order])
    shows = np.concatenate([np.arange(COUNT), np.arange(50)])[order]
    assert (shows[pairs.first] == shows[pairs.second]).all()
    assert len(pairs.first) >= 48
    assert (pairs.first < pairs.second).all()
    assert (pairs.distance <= 0.4).all() and not pairs.crowded.any()
