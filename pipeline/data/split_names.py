"""Names of the splits, and alternative names used in data sets."""

from collections.abc import Collection
from pathlib import Path

from pipeline.utils.errors import UsageError

SPLITS = ("train", "validation", "test")
ALIASES = {
    "train": ("train",),
    "validation": ("validation", "valid", "val"),
    "test": ("test",),
}
"""Maps each split to its names on disk, the preferred name first."""


def judged(splits: Collection[str]) -> str:
    """The split that a model is judged by: test, or else validation, or else train."""
    return next((name for name in reversed(SPLITS) if name in splits), "")


def matches(names: Collection[str]) -> dict[str, list[str]]:
    """Maps splits to those of `names` that denote them; without splits that have no
    such name.
    """
    found = {
        split: [name for name in ALIASES[split] if name in names] for split in SPLITS
    }
    return {split: several for split, several in found.items() if several}


def directories(root: Path, names: Collection[str]) -> dict[str, Path]:
    """Maps splits to their directories, among the subdirectories `names` of `root`.

    Raises UsageError if two of them denote the same split.
    """
    found = matches(names)
    for several in found.values():
        if len(several) > 1:
            raise UsageError(
                f"{root} contains {' and '.join(several)}, which are the same split;"
                " merge them"
            )
    return {split: root / name for split, (name,) in found.items()}
