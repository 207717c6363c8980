"""Class names for integer labels: the given names, or the labels themselves."""

from collections.abc import Sequence

import numpy as np

from pipeline.utils.errors import UsageError


def distinct(names: Sequence[str], where: str) -> tuple[str, ...]:
    """The names of the classes; UsageError unless they are distinct, non-empty Unicode strings."""
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where} must be Unicode text") from None
    if not names or not all(names) or len(set(names)) != len(names):
        raise UsageError(f"{where} must be distinct, non-empty strings")
    return tuple(names)


def from_labels(labels: np.ndarray, where: str, option: str) -> tuple[str, ...]:
    """The classes 0, 1, ..., named by their numbers; UsageError if a number in between is missing.

    Negative labels are rejected by the task later, unless cleaning excludes them.
    """
    present = np.unique(labels[labels >= 0])
    if not len(present) or len(present) != present[-1] + 1:
        missing = int(np.setdiff1d(np.arange(len(present) + 1), present)[0])
        raise UsageError(
            f"{where}: no example has label {missing}; number the classes 0, 1, 2, ... or name all "
            f"of them ({option})"
        )
    return tuple(str(int(label)) for label in present)
