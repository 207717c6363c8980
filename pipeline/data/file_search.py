"""Finds the files that a table names."""

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.utils import image_formats
from pipeline.utils.console import pluralize

_TABLES = {"meta", "metadata", "annotations", "labels", "csv"}
"""Lower-case names of folders of tables."""


def find_files(
    names: Sequence[str],
    folder: Path,
    table: str | Path,
    types: Mapping[str, tuple[str, ...]],
) -> tuple[list[str], list[str]]:
    """The path of each file, empty if it does not exist, and notes for the user.

    If no file is where the table in a folder says, files are searched below the folder
    by the last parts of their paths, upper or lower case, with or without suffix: those
    of the first of `types`, or else of the next one. Of a folder such as `metadata`,
    they may be in a folder beside it.
    """
    root = os.path.abspath(folder)
    names = [with_slashes(name) for name in names]
    paths = [os.path.normpath(os.path.join(root, name)) for name in names]
    paths = [path if os.path.isfile(path) else "" for path in paths]
    if any(paths):
        return paths, []
    places = [root]
    if os.path.basename(root).lower() in _TABLES:  # whose files are beside it
        places.append(os.path.dirname(root))
    for place, suffixes in itertools.product(places, types.values()):
        index = FileIndex(place, suffixes)
        paths = [index.search(name) for name in names]
        if any(paths):
            break
    moved = []
    for name, path in zip(names, paths, strict=True):
        relative = path and os.path.relpath(path, root)
        if relative and "/" in name and not relative.startswith(name):
            moved.append(f"{relative} for {name}")
    if not moved:
        return paths, []
    note = (
        f"{table}: {len(moved):,} of {pluralize(len(names), 'file')} are not where the"
        f" table says, but below {folder}, found by the last parts of their"
        f" paths, such as {moved[0]}"
    )
    return paths, [note]


def with_slashes(path: str) -> str:
    """A Windows path with slashes; a path that exists is unchanged."""
    if "\\" not in path or os.path.exists(path):
        return path
    return path.replace("\\", "/")


class FileIndex:
    """Finds files below a directory by the last parts of their paths."""

    def __init__(self, root: str, suffixes: tuple[str, ...]) -> None:
        self._root = root
        self._folders: set[str] = set()
        self._by_name: dict[str, list[str]] = {}
        for folder, folders, files in image_formats.walk(root):
            self._folders |= {name.lower() for name in folders}
            for file in files:
                name = file.lower()
                for suffix in filter(name.endswith, suffixes):
                    path = os.path.join(folder, file)
                    for key in (name, name.removesuffix(suffix)):
                        self._by_name.setdefault(key, []).append(path)

    def search(self, name: str) -> str:
        """The file that shares the most last parts with a name; empty if not unique."""
        parts = [part.lower() for part in name.split("/")]
        paths = self._by_name.get(parts[-1], [])
        lengths = [self._count_equal_folders(path, parts) for path in paths]
        longest = max(lengths, default=0)
        if lengths.count(longest) != 1:
            return ""
        if longest == 0 and len(parts) > 1 and parts[-2] in self._folders:
            return ""  # a file of this name, but of another class
        return paths[lengths.index(longest)]

    def _count_equal_folders(self, path: str, parts: list[str]) -> int:
        """How many of the last directories are the same."""
        folders = os.path.relpath(os.path.dirname(path), self._root).lower().split("/")
        count = 0
        for folder, part in zip(reversed(folders), reversed(parts[:-1]), strict=False):
            if folder != part:
                break
            count += 1
        return count
