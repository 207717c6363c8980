"""Names of the splits, and the other names that data sets have for them."""

from collections.abc import Collection
from pathlib import Path

from pipeline.utils.errors import UsageError

SPLITS = ("train", "validation", "test")
ALIASES = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}
"""Split -> its names on disk, the preferred one first."""


def matches(names: Collection[str]) -> dict[str, list[str]]:
    """Split -> which of `names` stand for it; only splits that have one."""
    found = {split: [name for name in ALIASES[split] if name in names] for split in SPLITS}
    return {split: several for split, several in found.items() if several}


def directories(root: Path, names: Collection[str]) -> dict[str, Path]:
    """Split -> its directory among the sub-directories `names` of `root`.

    Raises UsageError if two of them stand for the same split.
    """
    found = matches(names)
    for several in found.values():
        if len(several) > 1:
            raise UsageError(f"{root} has {' and '.join(several)}, the same split; merge them")
    return {split: root / name for split, (name,) in found.items()}
