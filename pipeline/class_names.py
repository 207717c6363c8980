"""Names of the classes that labels number: those given, or else the numbers themselves."""

from collections.abc import Callable, Sequence

import numpy as np

from pipeline.errors import UsageError


def distinct(names: Sequence[str], where: str) -> tuple[str, ...]:
    """The names, which must be different strings, none of them empty.

    Args:
        names: Of the classes 0, 1, ...
        where: What holds them, for a message.
    """
    if not names or not all(names) or len(set(names)) != len(names):
        raise UsageError(f"{where} must be different strings, none empty")
    return tuple(names)


def named(
    labels: np.ndarray,
    names: tuple[str, ...] | None,
    where: str,
    place: Callable[[int], str],
    given: str,
) -> tuple[str, ...]:
    """The names of the classes 0, 1, ...; the numbers as texts where `names` is None.

    Args:
        labels: Whole numbers, (n,), of at least one example.
        names: Those that the data or the user give.
        where: The data, for a message.
        place: Position -> what a person calls that example.
        given: Where names are or can be given, for a message.

    Raises:
        UsageError: A label is negative, has no name, or a number below the largest does not occur.
    """
    low, high = int(labels.argmin()), int(labels.argmax())
    if labels[low] < 0:
        raise UsageError(
            f"{where}: label {labels[low]} of {place(low)} is no class; classes are 0, 1, 2, ..."
        )
    if names is not None:
        if labels[high] >= len(names):
            raise UsageError(
                f"{where}: label {labels[high]} of {place(high)} is out of range: there are "
                f"{len(names)} classes, 0 ... {len(names) - 1} ({given})"
            )
        return names
    present = np.unique(labels)
    if len(present) != present[-1] + 1:
        missing = int(np.setdiff1d(np.arange(len(present)), present)[0])
        raise UsageError(
            f"{where}: labels go up to {int(present[-1])} but no example has label {missing}; "
            f"number the classes 0, 1, 2, ... or name them all ({given})"
        )
    return tuple(str(int(label)) for label in present)
