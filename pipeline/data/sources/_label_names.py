"""Names of the classes that labels number: those given, or else the numbers themselves."""

from collections.abc import Sequence

import numpy as np

from pipeline.utils.errors import UsageError


def distinct(names: Sequence[str], where: str) -> tuple[str, ...]:
    """The names, which must be different strings, none of them empty.

    Args:
        names: Of the classes 0, 1, ...
        where: What holds them, for a message.
    """
    if not names or not all(names) or len(set(names)) != len(names):
        raise UsageError(f"{where} must be different strings, none empty")
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where} must be text; one is no Unicode") from None
    return tuple(names)


def named(
    labels: np.ndarray,
    names: tuple[str, ...] | None,
    where: str,
    given: str,
) -> tuple[str, ...]:
    """The names of the classes 0, 1, ...; the numbers as texts where `names` is None.

    Labels outside of them are refused by the task, unless a cleaning leaves them out.

    Args:
        labels: Whole numbers, (n,), of at least one example.
        names: Those that the data or the user give.
        where: The data, for a message.
        given: Where names are or can be given, for a message.

    Raises:
        UsageError: Without names, a number below the largest label does not occur.
    """
    if names is not None:
        return names
    present = np.unique(labels[labels >= 0])
    if not len(present):
        raise UsageError(f"{where}: no label is a class; classes are 0, 1, 2, ...")
    if len(present) != present[-1] + 1:
        missing = int(np.setdiff1d(np.arange(len(present)), present)[0])
        raise UsageError(
            f"{where}: labels go up to {int(present[-1])} but no example has label {missing}; "
            f"number the classes 0, 1, 2, ... or name them all ({given})"
        )
    return tuple(str(int(label)) for label in present)
