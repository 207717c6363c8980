"""A directory of image files, with one subdirectory for each class."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np

from pipeline.config import data_path
from pipeline.contracts import Source
from pipeline.data import split_names
from pipeline.data.array_source import ImageFiles
from pipeline.data.labels import distinct, in_order
from pipeline.data.seeds import stable_hash
from pipeline.utils import image_formats
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError, suggest

_NAMES = {name for names in split_names.ALIASES.values() for name in names}
# Other common names of splits, which would be mistaken for classes.
_SIMILAR_NAMES = {"training", "dev", "eval", "evaluation", "testing"}


def folder(*, path: Annotated[Path, "directory"], group: str | None = None) -> Source:
    """Image files in `CLASS/...`, or in `train/CLASS/...` and the same for the other
    splits.

    Reads JPEG, PNG, GIF, BMP and WebP files, recognized by their suffixes, at any depth
    below the class, sorted by path. Hidden files and folders of systems and tools, such
    as `__MACOSX` and `@eaDir`, are ignored; other files too, with a note. Classes that
    are all numbers are in the order of their values. A class without files in train is
    an error. The id of an example is a hash of its path below the root, so adding files
    does not change other ids.

    Args:
        path: The root directory. The other splits are `validation` (or `valid`, `val`)
            and `test`; they need not contain every class.
        group: Regular expression to search for in each path below the root. Files with
            the same match (of its first group, if it has one) stay in one split; for
            example, `patient(\\d+)` keeps all images of a patient together.
    """
    folders = _split_folders(path)
    names, _ = data_path.list_folder(folders["train"])
    if not names:
        raise UsageError(
            f"{folders['train']} has no subdirectories; create one for each class"
        )
    classes = distinct(in_order(names), f"the subdirectories of {folders['train']}")
    paths: dict[str, list[str]] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    ignored: list[str] = []
    for split, folder in folders.items():
        found = list(_examples(folder, classes, split, ignored))
        files = [file.relative_to(path).as_posix() for file, _ in found]
        ids = [stable_hash(os.fsencode(file)) for file in files]
        labels = [label for _, label in found]
        columns[split] = {
            "id": np.array(ids, np.int64),
            "label": np.array(labels, np.int64),
        }
        if group is not None:
            columns[split]["group"] = _groups(files, group)
        paths[split] = [str(file) for file, _ in found]
    note = (
        f"{path}: ignored {pluralize(len(ignored), 'file')}, such as"
        f" {', '.join(sorted(set(ignored))[:3])}: without the suffix of an image file,"
        " not readable, or a link to a directory"
    )
    notes = (note,) if ignored else ()
    return ImageFiles(paths, columns, classes, root=str(path), notes=notes)


def _examples(
    folder: Path, classes: tuple[str, ...], split: str, ignored: list[str]
) -> Iterator[tuple[Path, int]]:
    """The sorted files of a split with their labels; adds to `ignored` what is not
    read.
    """
    names, others = data_path.list_folder(folder)
    ignored += others
    for name in names:
        if name not in classes:
            raise UsageError(
                f"{folder / name}: train has no class {name!r};"
                f" {suggest(name, classes)}"
            )
        found = sorted(_images(folder / name, ignored), key=Path.as_posix)
        if not found and split == "train":
            raise UsageError(
                f"{folder / name} contains no image files; remove it, or add files"
                f" named *{', *'.join(sorted(image_formats.SUFFIXES))}"
            )
        yield from ((file, classes.index(name)) for file in found)


def _images(folder: Path, ignored: list[str]) -> Iterator[Path]:
    """Image files at any depth; links to directories are not followed."""
    for place, folders, files in image_formats.walk(
        folder, onerror=data_path.unreadable
    ):
        ignored += [
            name for name in folders if os.path.islink(os.path.join(place, name))
        ]
        for name in files:
            path = Path(place, name)
            readable = path.is_file() and os.access(
                path, os.R_OK
            )  # opening a pipe would block
            if path.suffix.lower() in image_formats.SUFFIXES and readable:
                yield path
            else:
                ignored.append(name)


def _split_folders(root: Path) -> dict[str, Path]:
    """Maps splits to directories; `train` is the root if no subdirectory
    has this name.
    """
    names = set(data_path.list_folder(root)[0])
    similar = {name.lower() for name in names} <= _NAMES | _SIMILAR_NAMES
    if "train" not in names and not (names and similar):
        return {"train": root}
    if "train" not in names or names - _NAMES:
        raise UsageError(
            f"{root} has the directories {', '.join(sorted(names))}; splits must be"
            " named train, validation and test, without other directories next to them"
        )
    return split_names.directories(root, names)


def _groups(files: list[str], pattern: str) -> np.ndarray:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"--source.group must be a valid regular expression; got {pattern!r}:"
            f" {error}"
        ) from None
    matches = [compiled.search(file) for file in files]
    texts = [
        match[1 if compiled.groups else 0] or "" if match else "" for match in matches
    ]
    if "" in texts:
        file = files[texts.index("")]
        raise UsageError(f"--source.group {pattern!r} does not match {file}")
    return np.array([stable_hash(os.fsencode(text)) for text in texts], np.int64)
