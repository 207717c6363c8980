"""Divides examples into folds, with equal shares of each class."""

import numpy as np

from pipeline.data import seeds
from pipeline.utils.errors import UsageError


def assign(
    keys: np.ndarray, labels: np.ndarray | None, folds: int, seed: int
) -> np.ndarray:
    """The fold of each example: 0 ... folds - 1, int64 (examples,).

    It depends on the keys, the labels and the seed, not on the order of the examples.
    If all keys differ, the numbers of examples in two folds differ by at most 1, and so
    do those of each class. Examples with equal keys stay in one fold; then, the classes
    are spread as evenly as a greedy choice allows.

    Args:
        keys: The id or the group of each example, int64 (examples,).
        labels: The class of each example, integers (examples,); None: there are none.
        folds: The number of folds, at least 2.
        seed: Of the hashes that order the examples of a class.

    Raises:
        UsageError: There are fewer keys than folds.
    """
    names, first, key = np.unique(keys, return_index=True, return_inverse=True)
    if len(names) < folds:
        what = "examples" if len(names) == len(keys) else "groups"
        raise UsageError(
            f"--data.folds {folds}: train has only {len(names)} {what}; use fewer folds"
        )
    classes = np.zeros(len(keys), np.int64)
    if labels is not None:
        classes = np.unique(labels, return_inverse=True)[1]
    hashes = seeds.uniform(seeds.example_seeds(seed, 0, names)).numpy()
    if len(names) < len(keys):
        return _spread_groups(key, classes, hashes, folds)[key]
    fold = np.empty(len(names), np.int64)
    # Dealt like cards, one class after the other.
    fold[np.lexsort((hashes, classes[first]))] = np.arange(len(names)) % folds
    return fold[key]


def require_two_classes(labels: np.ndarray, fold: np.ndarray, folds: int) -> None:
    """Raises UsageError if the other folds of a fold have examples of only one class.

    `labels` and `fold` are as in `assign`, integers (examples,).
    """
    names, classes = np.unique(labels, return_inverse=True)
    first = np.full(len(names), folds)
    last = np.zeros(len(names), np.int64)
    np.minimum.at(first, classes, fold)
    np.maximum.at(last, classes, fold)
    only_there = np.bincount(first[first == last], minlength=folds)
    worst = int(only_there.argmax())
    if len(names) > 1 and len(names) - only_there[worst] < 2:
        raise UsageError(
            f"--data.folds {folds}: without fold {worst + 1}, train has examples of"
            " only one class; add examples of other classes"
        )


def _spread_groups(
    group: np.ndarray, classes: np.ndarray, hashes: np.ndarray, folds: int
) -> np.ndarray:
    """The fold of each group, int64 (groups,).

    The largest groups come first. Each goes to the fold where the sum of the squared
    shares of all classes grows least; of equal folds, to the smallest.
    """
    sizes = np.bincount(group)
    total = np.bincount(classes)
    by_group = np.split(classes[np.argsort(group, kind="stable")], np.cumsum(sizes))
    counts = np.zeros((folds, len(total)))
    fold = np.empty(len(sizes), np.int64)
    for index in np.lexsort((hashes, -sizes)):
        added = np.bincount(by_group[index], minlength=len(total))
        growth = counts @ (added / total**2)
        fold[index] = np.lexsort((counts.sum(axis=1), growth))[0]
        counts[fold[index]] += added
    return fold
