"""Alignments, against the definition and examples by hand."""

import functools
import random

import pytest

from pipeline.utils.edit_distance import align, distance


def by_definition(truth, prediction):
    @functools.cache
    def cost(row, column):
        if not row or not column:
            return row + column
        return min(
            cost(row - 1, column) + 1,
            cost(row, column - 1) + 1,
            cost(row - 1, column - 1) + (truth[row - 1] != prediction[column - 1]),
        )

    return cost(len(truth), len(prediction))


@pytest.mark.parametrize("seed", range(30))
def test_an_alignment_has_the_fewest_changes(seed):
    generator = random.Random(seed)
    truth, prediction = (
        "".join(generator.choices("abc", k=generator.randrange(9))) for _ in range(2)
    )
    expected = by_definition(truth, prediction)
    assert distance(truth, prediction) == expected
    changes = align(truth, prediction)
    assert sum(change.kind != "equal" for change in changes) == expected
    assert [c.truth for c in changes if c.truth is not None] == list(truth)
    assert [c.prediction for c in changes if c.prediction is not None] == [*prediction]


def test_words_by_hand():
    changes = align("a b c d".split(), "e b d".split())  # noqa: SIM905
    kinds = [change.kind for change in changes]
    assert kinds == ["substituted", "equal", "deleted", "equal"]
    assert [change.kind for change in align("ab", "acb")] == [
        "equal",
        "inserted",
        "equal",
    ]
