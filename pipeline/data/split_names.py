"""Names of the splits, and the aliases that data sets use."""

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
WORDS = {word for words in ALIASES.values() for word in words}


def evaluation_split(splits: Collection[str]) -> str:
    """The split to evaluate a model on: test, or else validation, or else train."""
    return next((name for name in reversed(SPLITS) if name in splits), "")


def matches(names: Collection[str]) -> dict[str, list[str]]:
    """Maps each split to its aliases among `names`; splits without one are left out."""
    aliases = {
        split: [name for name in ALIASES[split] if name in names] for split in SPLITS
    }
    return {split: names for split, names in aliases.items() if names}


def directories(root: Path, names: Collection[str]) -> dict[str, Path]:
    """Maps splits to their directories, among the subdirectories `names` of `root`.

    Raises UsageError if two directories denote the same split.
    """
    aliases = matches(names)
    for duplicates in aliases.values():
        if len(duplicates) > 1:
            raise UsageError(
                f"{root} contains {' and '.join(duplicates)}, which are the same split;"
                " merge them"
            )
    return {split: root / name for split, (name,) in aliases.items()}
