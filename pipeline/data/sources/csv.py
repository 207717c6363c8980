"""A table of image files and their labels."""

import io
import os
from csv import Error, reader
from pathlib import Path
from typing import Annotated

import numpy as np

from pipeline.config import data_path
from pipeline.contracts import Source
from pipeline.data import split_names
from pipeline.data.array_source import ImageFiles
from pipeline.data.labels import encode_labels, is_missing, labels_of
from pipeline.data.seeds import stable_hash
from pipeline.utils import image_formats, safe_io
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError

_SPLITS = {
    name: split for split, names in split_names.ALIASES.items() for name in names
}


def csv(
    *,
    path: Annotated[Path, "file"],
    image: str | None = None,
    label: str | None = None,
    split: str | None = None,
) -> Source:
    """A table with a row for each image: a file, a label, and perhaps a split.

    Files are searched below the directory of the table, by their path with slashes or
    backslashes. If no file is there, as with a table from another machine, they are
    searched by the last parts of the path, upper or lower case, with or without suffix;
    a note says so. Rows without a label or an existing file are left out, with a note.
    The id of an example is a hash of its path below the directory of the table. Labels
    that are all numbers are in the order of their values.

    Args:
        path: A `.csv` or `.tsv` file in UTF-8 whose first line names the columns.
        image: Column with the files; by default recognized by its name, such as path,
            file, image.
        label: Column with the names of the classes; by default recognized by its name,
            such as label, class.
        split: Column with train, validation (valid, val) or test; by default `split`,
            if it exists.
    """
    rows = _rows(path)
    image = _column(rows[0], image, data_path.IMAGES, path)
    label = _column(rows[0], label, data_path.LABELS, path)
    if split or "split" in rows[0]:
        split = _column(rows[0], split, ["split"], path)
    root = os.path.abspath(path.parent)
    files, notes = _find_files([row[image] for row in rows], root, path)
    examples: dict[str, tuple[str, str]] = {}
    left_out = []
    for number, (row, file) in enumerate(zip(rows, files, strict=True), start=2):
        if not file or is_missing(row[label]):
            left_out.append(f"row {number} ({os.path.join(path.parent, row[image])!r})")
            continue
        part = row[split] if split else "train"
        if part.lower() not in _SPLITS:
            raise UsageError(
                f"{path}, row {number}: the split {part!r} is not one of"
                f" {', '.join(_SPLITS)}; correct the table"
            )
        example = (row[label], _SPLITS[part.lower()])
        if examples.setdefault(file, example) != example:
            raise UsageError(
                f"{path}, row {number}: {row[image]} occurs twice, with different"
                " labels or splits; correct the table"
            )
    note = (
        f"{path}: no label or no existing file in {len(left_out):,} of {len(rows):,}"
        " rows"
    )
    if left_out:
        note += f", such as {left_out[0]}"
    splits = np.array([split for _, split in examples.values()], str)
    if "train" not in splits:
        raise UsageError(f"{note}; no row is left for training: correct the table")
    if left_out:
        notes.append(f"{note}; left out")
    labels = labels_of([label for label, _ in examples.values()], str(path))
    files = list(examples)
    ids = [stable_hash(os.fsencode(os.path.relpath(file, root))) for file in files]
    paths: dict[str, list[str]] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    for name in split_names.SPLITS:
        positions = np.flatnonzero(splits == name)
        if len(positions):
            paths[name] = [files[position] for position in positions]
            columns[name] = {
                "id": np.array(ids, np.int64)[positions],
                "label": labels[positions],
            }
    classes = encode_labels(columns, None, "--source.label")
    return ImageFiles(paths, columns, classes, root=root, notes=tuple(notes))


def _rows(path: Path) -> list[dict[str, str]]:
    rows = []
    line = 0
    try:
        text = safe_io.read_text(path)
        separator = max(",;\t", key=text.partition("\n")[0].count)
        lines = io.StringIO(text, newline="")
        table = reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
        for values in table:
            if values:
                rows.append([value.strip() for value in values])
            line = table.line_num
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    except Error as error:
        raise UsageError(
            f"{path}, line {line + 1}: {error}; correct the quotes"
        ) from None
    if len(rows) < 2:
        raise UsageError(
            f"{path} has no rows; add one with a file and a label for each image"
        )
    names = [data_path.column(name) for name in rows[0]]
    padding = [""] * len(names)
    return [dict(zip(names, [*row, *padding], strict=False)) for row in rows[1:]]


def _column(
    row: dict[str, str], name: str | None, defaults: list[str], path: Path
) -> str:
    candidates = [data_path.column(name)] if name else defaults
    for candidate in candidates:
        if candidate in row:
            return candidate
    raise UsageError(
        f"{path} has no column {' or '.join(candidates[:5])}; it has {', '.join(row)};"
        " name its columns with --source.image and --source.label"
    )


def _find_files(
    names: list[str], root: str, table: Path
) -> tuple[list[str], list[str]]:
    """The path of each file, empty if it does not exist, and notes for the user.

    If no file is where the table says, files are searched by the last parts of their
    paths.
    """
    names = [data_path.with_slashes(name) for name in names]
    paths = [os.path.normpath(os.path.join(root, name)) for name in names]
    paths = [path if os.path.isfile(path) else "" for path in paths]
    if any(paths):
        return paths, []
    index = _FileIndex(root)
    paths = [index.search(name) for name in names]
    moved = []
    for name, path in zip(names, paths, strict=True):
        relative = path and os.path.relpath(path, root)
        if relative and "/" in name and not relative.startswith(name):
            moved.append(f"{relative} for {name}")
    if not moved:
        return paths, []
    note = (
        f"{table}: {len(moved):,} of {pluralize(len(names), 'file')} are not where the"
        f" table says, but below {table.parent}, found by the last parts of their"
        f" paths, such as {moved[0]}"
    )
    return paths, [note]


class _FileIndex:
    """Finds image files below a directory by the last parts of their paths."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folders: set[str] = set()
        self._by_name: dict[str, list[str]] = {}
        for folder, folders, files in image_formats.walk(root):
            self._folders |= {name.lower() for name in folders}
            for file in files:
                stem, suffix = os.path.splitext(file.lower())
                if suffix in image_formats.SUFFIXES:
                    for name in (file.lower(), stem):
                        path = os.path.join(folder, file)
                        self._by_name.setdefault(name, []).append(path)

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
