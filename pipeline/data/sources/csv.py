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
from pipeline.data.columns import ImageFiles
from pipeline.data.labels import numbered
from pipeline.data.seeds import stable_hash
from pipeline.utils import image_formats, safe_io
from pipeline.utils.errors import UsageError

_SPLITS = {name: split for split, names in split_names.ALIASES.items() for name in names}


def csv(
    *,
    path: Annotated[Path, "file"],
    image: str | None = None,
    label: str | None = None,
    split: str | None = None,
) -> Source:
    """A table with a row for each image: a file, a label, and perhaps a split.

    Files are searched below the directory of the table: by their path, or else by their name, with
    or without its suffix. Rows without a label or an existing file are left out, with a note. The
    id of an example is a hash of its path below that directory.

    Args:
        path: A `.csv` or `.tsv` file in UTF-8 whose first line names the columns.
        image: Column with the files; None: found by its name, such as path, file, image.
        label: Column with the names of the classes; None: found by its name, such as label, class.
        split: Column with train, validation (valid, val) or test; None: `split`, if it exists.
    """
    rows = _rows(path)
    image = _column(rows[0], image, data_path.IMAGES, path)
    label = _column(rows[0], label, data_path.LABELS, path)
    split = _column(rows[0], split, ["split"], path) if split or "split" in rows[0] else None
    root = os.path.abspath(path.parent)
    examples: dict[str, tuple[str, str]] = {}
    left_out = []
    files = _files([row[image] for row in rows], root)
    for number, (row, file) in enumerate(zip(rows, files, strict=True), 2):
        part = row[split] if split else "train"
        found = row[label], _SPLITS.get(part.lower(), "")
        if not file or not row[label]:
            left_out.append(f"row {number} ({os.path.join(path.parent, row[image])!r})")
        elif not found[1] or examples.setdefault(file, found) != found:
            wrong = f"{row[image]} occurs twice, with different labels or splits"
            if not found[1]:
                wrong = f"the split {part!r} is not one of {', '.join(_SPLITS)}"
            raise UsageError(f"{path}, row {number}: {wrong}; correct the table")
    note = f"{path}: no label or no existing file in {len(left_out):,} of {len(rows):,} rows"
    note += f", such as {left_out[0]}" if left_out else ""
    paths: dict[str, list[str]] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    for name in split_names.SPLITS:
        if some := {file: one for file, (one, its) in examples.items() if its == name}:
            ids = [stable_hash(os.fsencode(os.path.relpath(file, root))) for file in some]
            columns[name] = {"id": np.array(ids, np.int64), "label": np.array([*some.values()])}
            paths[name] = [*some]
    if "train" not in paths:
        raise UsageError(f"{note}; no row is left for training: correct the table")
    classes = numbered(columns, None, "--source.label")
    notes = (f"{note}; left out",) if left_out else ()
    return ImageFiles(paths, columns, classes, root=root, notes=notes)


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
        raise UsageError(f"{path}, line {line + 1}: {error}; correct the quotes") from None
    if len(rows) < 2:
        raise UsageError(f"{path} has no rows; add one with a file and a label for each image")
    names = [data_path.column(name) for name in rows[0]]
    return [dict(zip(names, [*row, *[""] * len(names)], strict=False)) for row in rows[1:]]


def _column(row: dict[str, str], given: str | None, usual: list[str], path: Path) -> str:
    wanted = [data_path.column(given)] if given else usual
    for name in wanted:
        if name in row:
            return name
    raise UsageError(
        f"{path} has no column {' or '.join(wanted[:5])}; it has {', '.join(row)}; "
        "name its columns with --source.image and --source.label"
    )


def _files(names: list[str], root: str) -> list[str]:
    """The file of each name, below the directory of the table; empty if there is none."""
    found = [os.path.normpath(os.path.join(root, name)) for name in names]
    if any(map(os.path.isfile, found)):
        return [file * os.path.isfile(file) for file in found]
    known: dict[str, str] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(image_formats.HIDDEN)]
        for file in files:
            if file.lower().endswith(image_formats.SUFFIXES):
                for name in (file, os.path.splitext(file)[0]):  # empty: it is not unique
                    known[name] = "" if name in known else os.path.join(folder, file)
    return [known.get(os.path.basename(name), "") for name in names]
