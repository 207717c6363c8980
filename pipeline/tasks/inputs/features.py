"""Arrays of numbers."""

from typing import Any

from pipeline.contracts import Info


def features(
    info: Info, *, field: str = "features", suffixes: tuple[str, ...] = (".npy",)
) -> Any:
    """Any array of numbers for each example.

    Args:
        info: The source.
        field: Name of the raw field.
        suffixes: Suffixes of the files that are arrays.
    """
    raise NotImplementedError
