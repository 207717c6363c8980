"""Names of the splits, and the other names that data sets have for them."""

from collections.abc import Collection

SPLITS = ("train", "validation", "test")
ALIASES = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}
"""Split -> its names on disk, the preferred one first."""


def matches(names: Collection[str]) -> dict[str, list[str]]:
    """Split -> which of `names` stand for it; only splits that have one."""
    found = {split: [name for name in ALIASES[split] if name in names] for split in SPLITS}
    return {split: several for split, several in found.items() if several}
