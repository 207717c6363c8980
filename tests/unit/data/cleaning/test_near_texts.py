"""Near duplicates among texts: edited copies are found, and no other texts."""

import numpy as np
import pytest
from near_text_pairs import pairs_of

from pipeline.data.cleaning import near_texts


def test_each_of_many_equal_texts_is_in_a_pair():
    pairs = pairs_of(["a b c"] * 80 + ["d e f", "", "\0"])
    assert set(pairs.first) | set(pairs.second) == {*range(80), 81, 82}
    assert not pairs.distance.any()


def test_the_similarity_is_that_of_the_shingles():
    words = [f"a{number}" for number in range(1000)]
    pairs = pairs_of([" ".join(words), " ".join(words[:800])])
    np.testing.assert_allclose(pairs.distance, 0.2, atol=0.12)


def test_characters_of_languages_without_spaces_are_compared():
    pairs = pairs_of(
        [
            "\u4eca\u65e5\u306f\u5929\u6c17\u304c\u3044\u3044",
            "\u4eca\u65e5\u306f\u5929\u6c17\u304c\u3044\u3044\u3002",
            "\u5225\u306e\u6587",
        ],
        unit="characters",
    )
    assert (pairs.first.tolist(), pairs.second.tolist()) == ([0], [1])


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_texts_have_no_pairs(count):
    sketches = np.zeros((count, near_texts.HASHES), np.uint32)
    assert not len(near_texts.find(sketches).first)
