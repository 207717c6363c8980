"""Names of the splits, and the aliases that data sets use."""

import re
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
_FOLDER = re.compile(
    r"(train|valid|val|dev|test)(ing|ation)?\d*(?![a-z])", re.IGNORECASE
)


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


def split_of_folder(name: str) -> str:
    """The split of a folder such as `train-clean-100`, `val2017`, `testing` or `dev`;
    empty for any other.
    """
    match = _FOLDER.match(name)
    if match is None:
        return ""
    word = match[1].lower()
    return word if word in SPLITS else "validation"
