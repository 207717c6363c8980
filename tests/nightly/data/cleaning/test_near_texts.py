"""Near duplicates among texts: edited copies are found, and no other texts."""

import numpy as np
import pytest
from near_text_pairs import pairs_of

COUNT = 300


WORDS = np.array([f"w{number}" for number in range(500)])


def texts(count=COUNT, length=20):
    """Texts whose words are as unequally frequent as those of a language."""
    generator = np.random.default_rng(0)
    share = 1 / np.arange(1, len(WORDS) + 1)
    chosen = generator.choice(WORDS, (count, length), p=share / share.sum())
    return [list(row) for row in chosen]


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
    assert (pairs.distance <= 0.4).all() and not pairs.is_ambiguous.any()
