"""What is at a path: class folders of images, arrays, TFRecord files, or a table of
files.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pipeline.utils.console import say
from pipeline.utils.errors import UsageError
from pipeline.utils.image_formats import SUFFIXES, walk

# Columns of a table, as `column` writes them.
IMAGES = [
    "path",
    "file",
    "filename",
    "file_name",
    "filepath",
    "image",
    "image_path",
    "img",
]
IMAGES += ["image_id", "id"]
LABELS = ["label", "class", "class_name", "category", "target", "species", "breed"]
_SPLITS = {"train", "validation", "valid", "val", "test"}
# Source -> the names of its files.
_FILES = {
    "arrays": re.compile(r".*\.npz|images\.npy", re.IGNORECASE),
    "csv": re.compile(r".*\.[ct]sv", re.IGNORECASE),
    "tfrecord": re.compile(r".*\.tfrec.*|.*-\d{5,}-of-\d{5,}", re.IGNORECASE),
}
_EXPECTED = (
    f"expected are folders of images ({', '.join(SUFFIXES)}), one for each class; an"
    " .npz of arrays; TFRecord files; or a .csv with the columns path and label"
)


def is_path(text: str) -> bool:
    """Whether a text is an existing path or looks like one."""
    looks = ":" not in text and ("/" in text or text.startswith((".", "~")))
    return looks or Path(text).exists()


def source(path: Path, known: Collection[str] = ()) -> dict[str, Any]:
    """The source for the data at a path: `name` and `path`, as for `Config.changed`.

    A directory that contains nothing but one with data stands for that one, which is
    printed. Raises UsageError if there are no data, or images of a single class that is
    not one of the `known`.
    """
    root = path
    while path.is_dir():
        folders, files = listed(path)
        classes = [name for name in folders if _has_image(path / name)]
        splits = _SPLITS.intersection(folders)
        data = [name for name in files if _kind(name)]
        if classes or len(data) > 1:  # tables of anything else are not data
            data = [
                name for name in data if _kind(name) != "csv" or _table(path / name)
            ]
        flat = splits.issuperset(classes) and not any(
            listed(path / name)[0] for name in classes
        )
        if (len(classes) > 1 or {*splits, *known} & {*classes}) and not (data and flat):
            return _said("folder", path, root)
        inside = [*files, *(n for name in splits for n in listed(path / name)[1])]
        if "images.npy" in inside or "tfrecord" in map(_kind, inside):
            return _said("arrays" if "images.npy" in inside else "tfrecord", path, root)
        if len(data) > 1:
            first = path / min(data, key=lambda name: "train" not in name)
            raise UsageError(
                f"{path} contains {len(data)} data files; give one of them: {first}"
            )
        only = data or classes or folders
        if len(only) != 1 or (only == classes and not listed(path / only[0])[0]):
            raise UsageError(_problem(path, files, folders, classes))
        path = path / only[0]
    if not path.exists():
        raise UsageError(f"{path}: no such file or directory")
    if not (kind := _kind(path.name)):
        raise UsageError(f"{path} is not a file of examples; {_EXPECTED}")
    return _said(kind, path, root)


def _said(name: str, path: Path, root: Path) -> dict[str, Any]:
    if path != root:
        say("data", f"{path}, the only data in {root}")
    return {"name": name, "path": path}


def _problem(
    path: Path, files: list[str], folders: list[str], classes: list[str]
) -> str:
    """What a directory contains instead of data, and the remedy."""
    if len(classes) == 1:
        return (
            f"{path} has images of only one class, {classes[0]!r}; add a folder for"
            " another class, or a .csv with the columns path and label"
        )
    if images := sum(name.lower().endswith(SUFFIXES) for name in files):
        return (
            f"{path} contains {images:,} images, but no class folders; move the images"
            " of each class into a folder of its own, or list them in a .csv with the"
            " columns path and label"
        )
    entries = [*(f"{name}/" for name in folders), *files]
    some = ", ".join(entries[:3]) + ", ..." * (len(entries) > 3)
    walks = (walk(path / name) for name in folders)
    kinds = {
        Path(name).suffix for walk in walks for *_, names in walk for name in names
    } - {""}
    some += f" with {', '.join(sorted(kinds)[:3])} files" if kinds else ""
    return f"{path} {f'contains only {some}' if entries else 'is empty'}; {_EXPECTED}"


def with_slashes(path: str) -> str:
    """A path as Windows writes it, with slashes; a path that exists is unchanged."""
    return path if "\\" not in path or os.path.exists(path) else path.replace("\\", "/")


def column(name: str) -> str:
    """The name of a column in lower case, with underscores for spaces."""
    return name.strip().lower().replace(" ", "_")


def _table(path: Path) -> bool:
    """Whether the first line names a column of images and one of labels."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = {
            column(name).strip('"') for name in re.split("[,;\t]", file.readline())
        }
    return bool(names.intersection(IMAGES) and names.intersection(LABELS))


def _kind(name: str) -> str:
    """The source that reads a file of this name; empty if there is none."""
    return next((kind for kind, known in _FILES.items() if known.fullmatch(name)), "")


def listed(folder: Path) -> tuple[list[str], list[str]]:
    """Sorted names of the directories and of all other entries, without
    ignored ones.
    """
    _, folders, files = next(walk(folder, onerror=unreadable))
    return sorted(folders), sorted(files)


def unreadable(error: OSError) -> None:
    """Raises UsageError for an error of `os.walk`."""
    raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None


def _has_image(folder: Path) -> bool:
    """Whether there is an image file at any depth."""
    return any(
        n.lower().endswith(SUFFIXES) for _, _, files in walk(folder) for n in files
    )
