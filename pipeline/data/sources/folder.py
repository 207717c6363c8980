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
    """Image files in `CLASS/...`, or in `train/CLASS/...` and likewise for each split.

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
    group_names: dict[str, int] = {}
    ignored: list[str] = []
    for split, folder in folders.items():
        examples = list(_examples(folder, classes, split, ignored))
        files = [file.relative_to(path).as_posix() for file, _ in examples]
        ids = [stable_hash(os.fsencode(file)) for file in files]
        labels = [label for _, label in examples]
        columns[split] = {
            "id": np.array(ids, np.int64),
            "label": np.array(labels, np.int64),
        }
        if group is not None:
            names_of_files = _groups(files, group)
            values = {name: stable_hash(os.fsencode(name)) for name in names_of_files}
            group_of_files = [values[name] for name in names_of_files]
            columns[split]["group"] = np.array(group_of_files, np.int64)
            group_names = values if split == "train" else group_names
        paths[split] = [str(file) for file, _ in examples]
    notes: tuple[str, ...] = ()
    if ignored:
        sample = ", ".join(sorted(set(ignored))[:3])
        note = (
            f"{path}: ignored {pluralize(len(ignored), 'file')}, such as {sample}:"
            " without the suffix of an image file, not readable, or a link to a"
            " directory"
        )
        notes = (note,)
    return ImageFiles(
        paths,
        columns,
        classes,
        root=str(path),
        notes=notes,
        group_names=group_names if group is not None else None,
    )


def _examples(
    folder: Path, classes: tuple[str, ...], split: str, ignored: list[str]
) -> Iterator[tuple[Path, int]]:
    """Yields the sorted files of a split with their labels.

    Appends the names of files that are not read to `ignored`.
    """
    names, files = data_path.list_folder(folder)
    ignored += files
    for name in names:
        if name not in classes:
            raise UsageError(
                f"{folder / name}: train has no class {name!r};"
                f" {suggest(name, classes)}"
            )
        images = sorted(_images(folder / name, ignored), key=Path.as_posix)
        if not images and split == "train":
            raise UsageError(
                f"{folder / name} contains no image files; remove it, or add files"
                f" named *{', *'.join(sorted(image_formats.SUFFIXES))}"
            )
        for image in images:
            yield image, classes.index(name)


def _images(folder: Path, ignored: list[str]) -> Iterator[Path]:
    """Yields image files at any depth; links to directories are not followed."""
    walk = image_formats.walk(folder, onerror=data_path.unreadable)
    for directory, folders, files in walk:
        for name in folders:
            if os.path.islink(os.path.join(directory, name)):
                ignored.append(name)
        for name in files:
            path = Path(directory, name)
            has_suffix = path.suffix.lower() in image_formats.SUFFIXES
            # Opening a pipe would block.
            if has_suffix and path.is_file() and os.access(path, os.R_OK):
                yield path
            else:
                ignored.append(name)


def _split_folders(root: Path) -> dict[str, Path]:
    """Maps splits to directories; the root is `train` if there are no splits."""
    names = set(data_path.list_folder(root)[0])
    all_similar = {name.lower() for name in names} <= _NAMES | _SIMILAR_NAMES
    if "train" not in names and not (names and all_similar):
        return {"train": root}
    if "train" not in names or names - _NAMES:
        raise UsageError(
            f"{root} has the directories {', '.join(sorted(names))}; splits must be"
            " named train, validation and test, without other directories next to them"
        )
    return split_names.directories(root, names)


def _groups(files: list[str], pattern: str) -> list[str]:
    """The name of each file's group."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"--source.group must be a valid regular expression; got {pattern!r}:"
            f" {error}"
        ) from None
    number = 1 if compiled.groups else 0
    groups = []
    for file in files:
        match = compiled.search(file)
        text = match[number] if match else None
        if not text:
            raise UsageError(f"--source.group {pattern!r} does not match {file}")
        groups.append(text)
    return groups
