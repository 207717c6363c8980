"""Class names for integer labels: the given names, or the labels themselves."""

from collections.abc import Sequence

import numpy as np

from pipeline.utils.errors import UsageError


def distinct(names: Sequence[str], where: str) -> tuple[str, ...]:
    """The names; UsageError unless they are different, non-empty Unicode strings.

    Args:
        names: Of the classes 0, 1, ...
        where: Where they come from, for messages.
    """
    if not names or not all(names) or len(set(names)) != len(names):
        raise UsageError(f"{where} must be different strings, none empty")
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where} must be Unicode text") from None
    return tuple(names)


def from_labels(labels: np.ndarray, where: str, option: str) -> tuple[str, ...]:
    """The classes 0, 1, ... named by their numbers.

    Negative labels are refused by the task later, unless cleaning excludes them.

    Args:
        labels: Whole numbers, (n,), of at least one example.
        where: The data, for messages.
        option: Where class names can be given, for messages.

    Raises:
        UsageError: A number below the largest label does not occur.
    """
    present = np.unique(labels[labels >= 0])
    if not len(present):
        raise UsageError(f"{where}: no label is a class; classes are 0, 1, 2, ...")
    if len(present) != present[-1] + 1:
        missing = int(np.setdiff1d(np.arange(len(present)), present)[0])
        raise UsageError(
            f"{where}: labels go up to {int(present[-1])} but no example has label {missing}; "
            f"number the classes 0, 1, 2, ... or name all of them ({option})"
        )
    return tuple(str(int(label)) for label in present)
