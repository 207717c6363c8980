"""The least changes that turn one sequence into another, for error rates."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Edit(NamedTuple):
    """A step of an alignment: equal, substituted, deleted or inserted."""

    kind: str
    """`equal`, `substituted`, `deleted` or `inserted`."""
    truth: Any
    """None if inserted."""
    prediction: Any
    """None if deleted."""


def distance(truth: Sequence[Any], prediction: Sequence[Any]) -> int:
    """The number of substitutions, deletions and insertions."""
    return int(_costs(truth, prediction)[-1, -1])


def align(truth: Sequence[Any], prediction: Sequence[Any]) -> list[Edit]:
    """The changes from the truth to the prediction, as few as possible."""
    costs = _costs(truth, prediction)
    row, column = len(truth), len(prediction)
    changes = []
    while row or column:
        cost = costs[row, column]
        if row and column:
            is_equal = truth[row - 1] == prediction[column - 1]
            if costs[row - 1, column - 1] + (not is_equal) == cost:
                row, column = row - 1, column - 1
                kind = "equal" if is_equal else "substituted"
                changes.append(Edit(kind, truth[row], prediction[column]))
                continue
        if row and costs[row - 1, column] + 1 == cost:
            row -= 1
            changes.append(Edit("deleted", truth[row], None))
        else:
            column -= 1
            changes.append(Edit("inserted", None, prediction[column]))
    return changes[::-1]


def _costs(truth: Sequence[Any], prediction: Sequence[Any]) -> np.ndarray:
    """The distance of all beginnings, int64 (len(truth) + 1, len(prediction) + 1).

    Levenshtein's recurrence, a row at a time: an insertion adds 1 per column, so that
    the best one is a running minimum.
    """
    numbers: dict[Any, int] = {}
    codes = []
    for sequence in (truth, prediction):
        code = [numbers.setdefault(item, len(numbers)) for item in sequence]
        codes.append(np.array(code, np.int64))
    columns = np.arange(len(prediction) + 1)
    rows = [columns]
    for code in codes[0]:
        above = rows[-1]
        best = above + 1
        best[1:] = np.minimum(best[1:], above[:-1] + (codes[1] != code))
        rows.append(np.minimum.accumulate(best - columns) + columns)
    return np.stack(rows)
