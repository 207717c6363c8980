"""A table of image files and their labels."""

import io
import itertools
import os
from csv import Error, reader
from pathlib import Path
from typing import Annotated

import numpy as np

from pipeline.config import data_path
from pipeline.contracts import Source
from pipeline.data import split_names
from pipeline.data.array_source import ImageFiles
from pipeline.data.labels import is_missing, labels_of, numbered
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

    Files are searched below the directory of the table: by their path, with slashes or
    backslashes. If no file is there, as in a table from another machine, by the last
    parts of the path, upper or lower case, with or without its suffix; a note says so.
    Rows without a label or an existing file are left out, with a note. The id of an
    example is a hash of its path below that directory. Labels that are all numbers are
    in the order of their values.

    Args:
        path: A `.csv` or `.tsv` file in UTF-8 whose first line names the columns.
        image: Column with the files; None: found by its name, such as path, file,
            image.
        label: Column with the names of the classes; None: found by its name, such as
            label, class.
        split: Column with train, validation (valid, val) or test; None: `split`, if it
            exists.
    """
    rows = _rows(path)
    image = _column(rows[0], image, data_path.IMAGES, path)
    label = _column(rows[0], label, data_path.LABELS, path)
    split = (
        _column(rows[0], split, ["split"], path)
        if split or "split" in rows[0]
        else None
    )
    root = os.path.abspath(path.parent)
    files, notes = _files([row[image] for row in rows], root, path)
    examples: dict[str, tuple[str, str]] = {}
    left_out = []
    for number, (row, file) in enumerate(zip(rows, files, strict=True), 2):
        part = row[split] if split else "train"
        about = row[label], _SPLITS.get(part.lower(), "")
        if not file or is_missing(row[label]):
            left_out.append(f"row {number} ({os.path.join(path.parent, row[image])!r})")
        elif not about[1] or examples.setdefault(file, about) != about:
            wrong = f"{row[image]} occurs twice, with different labels or splits"
            if not about[1]:
                wrong = f"the split {part!r} is not one of {', '.join(_SPLITS)}"
            raise UsageError(f"{path}, row {number}: {wrong}; correct the table")
    note = (
        f"{path}: no label or no existing file in {len(left_out):,} of {len(rows):,}"
        " rows"
    )
    note += f", such as {left_out[0]}" if left_out else ""
    splits = np.array([split for _, split in examples.values()], str)
    if "train" not in splits:
        raise UsageError(f"{note}; no row is left for training: correct the table")
    notes += [f"{note}; left out"] if left_out else []
    labels = labels_of([label for label, _ in examples.values()], str(path))
    names = [*examples]
    ids = [stable_hash(os.fsencode(os.path.relpath(file, root))) for file in names]
    paths: dict[str, list[str]] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    for name in split_names.SPLITS:
        rows_of = np.flatnonzero(splits == name)
        if len(rows_of):
            paths[name] = [names[row] for row in rows_of]
            columns[name] = {
                "id": np.array(ids, np.int64)[rows_of],
                "label": labels[rows_of],
            }
    classes = numbered(columns, None, "--source.label")
    return ImageFiles(paths, columns, classes, root=root, notes=tuple(notes))


def _rows(path: Path) -> list[dict[str, str]]:
    rows, line = [], 0
    try:
        text = safe_io.read_text(path)
        separator = max(",;\t", key=text.partition("\n")[0].count)
        lines = io.StringIO(text, newline="")
        table = reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
        for values in table:
            rows += [[value.strip() for value in values]] if values else []
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
    return [
        dict(zip(names, [*row, *[""] * len(names)], strict=False)) for row in rows[1:]
    ]


def _column(
    row: dict[str, str], given: str | None, usual: list[str], path: Path
) -> str:
    wanted = [data_path.column(given)] if given else usual
    for name in wanted:
        if name in row:
            return name
    raise UsageError(
        f"{path} has no column {' or '.join(wanted[:5])}; it has {', '.join(row)}; "
        "name its columns with --source.image and --source.label"
    )


def _files(names: list[str], root: str, table: Path) -> tuple[list[str], list[str]]:
    """The file of each name, below the directory of the table; empty if there is none.

    If no file is where the table says, files are searched by the last parts of their
    paths. And notes for the user.
    """
    names = [data_path.with_slashes(name) for name in names]
    paths = [os.path.normpath(os.path.join(root, name)) for name in names]
    if any(map(os.path.isfile, paths)):
        return [path * os.path.isfile(path) for path in paths], []
    files = _Files(root)
    paths = [files.search(name) for name in names]
    below = [path and os.path.relpath(path, root) for path in paths]
    moved = [
        at
        for at, name in enumerate(names)
        if "/" in name and not below[at].startswith(name)
    ]
    moved = [at for at in moved if paths[at]]
    if not moved:
        return paths, []
    example = f"{below[moved[0]]} for {names[moved[0]]}"
    return paths, [
        f"{table}: {len(moved):,} of {pluralize(len(names), 'file')} are not where the"
        f" table says, but below {table.parent}, found by the last parts of their"
        f" paths, such as {example}"
    ]


class _Files:
    """The image files below a directory, to be found by the last parts of
    their paths.
    """

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
        """The file whose path ends in most parts of a name; empty if there is none, or
        several.
        """
        parts = [part.lower() for part in name.split("/")]
        paths = self._by_name.get(parts[-1], [])
        lengths = [self._equal(path, parts) for path in paths]
        most = max(lengths, default=0)
        if lengths.count(most) != 1:
            return ""
        if most == 0 and len(parts) > 1 and parts[-2] in self._folders:
            return ""  # a file of this name, but of another class
        return paths[lengths.index(most)]

    def _equal(self, path: str, parts: list[str]) -> int:
        """How many of the last directories are the same."""
        folders = os.path.relpath(os.path.dirname(path), self._root).lower().split("/")
        pairs = zip(reversed(folders), reversed(parts[:-1]), strict=False)
        return sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        )
