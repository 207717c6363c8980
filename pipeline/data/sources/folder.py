"""A directory of files, with one subdirectory for each class."""

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np

from pipeline.config import data_path, file_types
from pipeline.contracts import Source
from pipeline.data import split_names
from pipeline.data.file_source import FileSource
from pipeline.data.labels import distinct, in_order
from pipeline.data.seeds import stable_hash
from pipeline.utils import image_formats
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError, suggest

_NAMES = {name for names in split_names.ALIASES.values() for name in names}
# Other common names of splits, which would be mistaken for classes.
_SIMILAR_NAMES = {"training", "dev", "eval", "evaluation", "testing"}


def folder(
    *,
    path: Annotated[Path, "directory"],
    group: str | None = None,
    field: str | None = None,
    suffixes: tuple[str, ...] = (),
) -> Source:
    """Files in `CLASS/...`, or in `train/CLASS/...` and likewise for each split.

    Reads the files of one input, recognized by their suffixes, at any depth below the
    class, sorted by path: images are JPEG, PNG, GIF, BMP and WebP files. Hidden files
    and folders of systems and tools, such as `__MACOSX` and `@eaDir`, are ignored;
    other files too, with a note. Classes that are all numbers are in the order of their
    values. A class without files in train is an error. The id of an example is a hash
    of its path below the root, so adding files does not change other ids.

    Args:
        path: The root directory. The other splits are `validation` (or `valid`, `val`)
            and `test`; they need not contain every class.
        group: Regular expression to search for in each path below the root. Files with
            the same match (of its first group, if it has one) stay in one split; for
            example, `patient(\\d+)` keeps all images of a patient together.
        field: Raw field for the content of a file, `image` for images; by default the
            field of the input that reads most of the files.
        suffixes: Suffixes of the files to read, such as `.png`; by default those of the
            input. Files of an input of your own need `field`, too.
    """
    types = file_types.select(field, suffixes)
    folders = _split_folders(path)
    names, _ = data_path.list_folder(folders["train"])
    if not names:
        raise UsageError(
            f"{folders['train']} has no subdirectories; create one for each class"
        )
    classes = distinct(in_order(names), f"the subdirectories of {folders['train']}")
    ignored: list[str] = []
    candidates = {
        split: _class_files(folder, classes, types, ignored)
        for split, folder in folders.items()
    }
    every = [
        file
        for files_by_class in candidates.values()
        for files in files_by_class.values()
        for file in files
    ]
    field = file_types.most_common((file.name for file in every), types)
    paths: dict[str, dict[str, list[str]]] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    group_names: dict[str, int] = {}
    for split, files_by_class in candidates.items():
        examples = []
        for name, readable in files_by_class.items():
            files = [file for file in readable if _has_suffix(file, types[field])]
            if not files and split == "train":
                raise UsageError(
                    f"{folders[split] / name} contains no {field} files;"
                    " remove it, or add files named"
                    f" *{', *'.join(sorted(types[field]))}"
                )
            label = classes.index(name)
            examples += [(file, label) for file in files]
        names = [file.relative_to(path).as_posix() for file, _ in examples]
        ids = [stable_hash(os.fsencode(name)) for name in names]
        columns[split] = {
            "id": np.array(ids, np.int64),
            "label": np.array([label for _, label in examples], np.int64),
        }
        if group is not None:
            names_of_files = _groups(names, group)
            values = {name: stable_hash(os.fsencode(name)) for name in names_of_files}
            group_of_files = [values[name] for name in names_of_files]
            columns[split]["group"] = np.array(group_of_files, np.int64)
            group_names = values if split == "train" else group_names
        paths[split] = {field: [str(file) for file, _ in examples]}
    notes = _notes(path, every, field, types, ignored)
    return FileSource(
        paths,
        columns,
        classes,
        root=str(path),
        notes=notes,
        group_names=group_names if group is not None else None,
    )


def _class_files(
    folder: Path,
    classes: tuple[str, ...],
    types: Mapping[str, tuple[str, ...]],
    ignored: list[str],
) -> dict[str, list[Path]]:
    """The sorted files of each class of a split, in alphabetical order of the classes.

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
    suffixes = tuple(itertools.chain(*types.values()))
    by_class = {}
    for name in names:
        paths = _files(folder / name, suffixes, ignored)
        by_class[name] = sorted(paths, key=Path.as_posix)
    return by_class


def _files(
    folder: Path, suffixes: tuple[str, ...], ignored: list[str]
) -> Iterator[Path]:
    """Yields files at any depth; links to directories are not followed."""
    walk = image_formats.walk(folder, onerror=data_path.unreadable)
    for directory, folders, files in walk:
        for name in folders:
            if os.path.islink(os.path.join(directory, name)):
                ignored.append(name)
        for name in files:
            path = Path(directory, name)
            # Opening a pipe would block.
            if (
                _has_suffix(path, suffixes)
                and path.is_file()
                and os.access(path, os.R_OK)
            ):
                yield path
            else:
                ignored.append(name)


def _has_suffix(path: Path, suffixes: tuple[str, ...]) -> bool:
    return path.name.lower().endswith(suffixes)


def _notes(
    root: Path,
    files: list[Path],
    field: str,
    types: Mapping[str, tuple[str, ...]],
    ignored: list[str],
) -> tuple[str, ...]:
    """What was not read: files of other fields, and files that no input reads."""
    notes = []
    fields = Counter(file_types.field_of(file.name, types) for file in files)
    used = fields.pop(field, 0)
    for unread, count in fields.items():
        notes.append(
            f"{root}: {used:,} of {len(files):,} files are read, the {field} files;"
            f" --source.field {unread} reads {pluralize(count, f'{unread} file')}"
            " instead"
        )
    if ignored:
        sample = ", ".join(sorted(set(ignored))[:3])
        kind = "an image" if field == file_types.IMAGE else f"a {field}"
        notes.append(
            f"{root}: ignored {pluralize(len(ignored), 'file')}, such as {sample}:"
            f" without the suffix of {kind} file, not readable, or a link to a"
            " directory"
        )
    return tuple(notes)


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
