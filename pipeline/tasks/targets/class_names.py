"""Matches the classes of other data by name."""

from collections.abc import Sequence

import numpy as np

from pipeline.utils.errors import UsageError, suggest


def match_names(
    names: Sequence[str] | None, known_names: Sequence[str]
) -> np.ndarray | None:
    """The number of each of `names` among `known_names`, int64; None if they are equal.

    Raises UsageError for an unknown name.
    """
    if names is None or list(names) == list(known_names):
        return None
    for name in names:
        if name not in known_names:
            hint = suggest(name, known_names)
            raise UsageError(
                f"the data has a class {name!r}, unknown to the model; {hint}"
            )
    return np.array([known_names.index(name) for name in names], np.int64)
