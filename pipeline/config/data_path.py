"""What is at a path: class folders of images, arrays, TFRecord files, or a table of files."""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pipeline.utils.console import say
from pipeline.utils.errors import UsageError
from pipeline.utils.image_formats import SUFFIXES

_SPLITS = {"train", "validation", "valid", "val", "test"}
# Source -> the names of its files.
_FILES = {
    "arrays": re.compile(r".*\.npz|images\.npy", re.IGNORECASE),
    "csv": re.compile(r".*\.[ct]sv", re.IGNORECASE),
    "tfrecord": re.compile(r".*\.tfrec.*|.*-\d{5,}-of-\d{5,}", re.IGNORECASE),
}
_EXPECTED = (
    "expected are folders of images, one for each class; an .npz of arrays; TFRecord files; or a "
    ".csv with the columns path and label"
)


def source(path: Path, known: Collection[str] = ()) -> dict[str, Any]:
    """The source for the data at a path: `name` and `path`, as for `Config.changed`.

    A directory that contains nothing but one with data stands for that one, which is printed.

    Raises:
        UsageError: There are no data, or images of a single class that is not one of the `known`.
    """
    root = path
    while path.is_dir():
        folders, files = _list(path)
        classes = [name for name in folders if _has_image(path / name)]
        if len(classes) > 1 or {*_SPLITS, *known}.intersection(classes):
            return _said("folder", path, root)
        inside = [n for name in _SPLITS.intersection(folders) for n in _list(path / name)[1]]
        found = {name: kind for name in [*files, *inside] if (kind := _kind(name))}
        if "tfrecord" in found.values() or "images.npy" in found:
            return _said("tfrecord" if "images.npy" not in found else "arrays", path, root)
        only = [*found] or classes or folders
        if len(only) != 1 or (only == classes and not _list(path / only[0])[0]):
            raise UsageError(_problem(path, files, folders, classes))
        path = path / only[0]
    if not (kind := _kind(path.name)) or not path.exists():
        what = "is not a file of examples" if path.exists() else "no such file or directory"
        raise UsageError(f"{path}: {what}; {_EXPECTED}")
    return _said(kind, path, root)


def _said(name: str, path: Path, root: Path) -> dict[str, Any]:
    if path != root:
        say("data", f"{path}, the only data in {root}")
    return {"name": name, "path": path}


def _problem(path: Path, files: list[str], folders: list[str], classes: list[str]) -> str:
    """What a directory contains instead of data, and the remedy."""
    if len(classes) == 1:
        return (
            f"{path} has images of only one class, {classes[0]!r}; add a folder for another class"
        )
    if images := sum(name.lower().endswith(SUFFIXES) for name in files):
        return (
            f"{path} contains {images:,} images, but no class folders; move the images of each "
            "class into a folder of its own, or list them in a .csv with the columns path and label"
        )
    entries = [*(f"{name}/" for name in folders), *files]
    some = ", ".join(entries[:3]) + ", ..." * (len(entries) > 3)
    return f"{path} {f'contains only {some}' if entries else 'is empty'}; {_EXPECTED}"


def _kind(name: str) -> str:
    """The source that reads a file of this name; empty if there is none."""
    return next((kind for kind, known in _FILES.items() if known.fullmatch(name)), "")


def _list(folder: Path) -> tuple[list[str], list[str]]:
    """Sorted names of the directories and of the files, without hidden ones."""
    _, *found = next(os.walk(folder), ("", [], []))
    folders, files = (sorted(n for n in one if not n.startswith((".", "__MAC"))) for one in found)
    return folders, files


def _has_image(folder: Path) -> bool:
    """Whether there is an image file at any depth."""
    return any(n.lower().endswith(SUFFIXES) for _, _, files in os.walk(folder) for n in files)
