"""A table of image files and their labels."""

import os
from csv import DictReader
from pathlib import Path
from typing import Annotated

import numpy as np

from pipeline.contracts import Source
from pipeline.data import split_names
from pipeline.data.seeds import stable_hash
from pipeline.data.sources import _columns
from pipeline.data.sources._image_files import ImageFiles
from pipeline.utils import image_formats, safe_io
from pipeline.utils.errors import UsageError

_IMAGE = ("path", "file", "filename", "filepath", "image", "image_path", "img", "image_id", "id")
_LABEL = ("label", "class", "class_name", "category", "target", "species", "breed")
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
    image, label = _column(rows[0], image, _IMAGE, path), _column(rows[0], label, _LABEL, path)
    split = _column(rows[0], split, ("split",), path) if split or "split" in rows[0] else None
    examples: dict[str, tuple[str, str]] = {}
    left_out = []
    files = _files([row[image] for row in rows], path)
    for number, (row, file) in enumerate(zip(rows, files, strict=True), 2):
        found = row[label], _SPLITS.get(row[split].lower(), "") if split else "train"
        if not file or not row[label]:
            left_out.append(f"row {number} ({os.path.join(path.parent, row[image])!r})")
        elif not found[1] or examples.setdefault(file, found) != found:
            wrong = "occurs twice, with different labels or splits" if found[1] else "has no split"
            raise UsageError(f"{path}, row {number}: {file} {wrong}; correct the table")
    note = f"{path}: no label or no existing file in {len(left_out):,} of {len(rows):,} rows"
    note += f", such as {left_out[0]}" if left_out else ""
    paths: dict[str, list[str]] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    for name in split_names.SPLITS:
        if some := {file: one for file, (one, part) in examples.items() if part == name}:
            ids = [stable_hash(os.fsencode(os.path.relpath(file, path.parent))) for file in some]
            columns[name] = {"id": np.array(ids, np.int64), "label": np.array([*some.values()])}
            paths[name] = [*some]
    if "train" not in paths:
        raise UsageError(f"{note}; no row is left for training: correct the table")
    classes = _columns.numbered(columns, None, "--source.label")
    notes = (f"{note}; left out",) if left_out else ()
    return ImageFiles(paths, columns, classes, root=str(path.parent), notes=notes)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        lines = safe_io.read_text(path).splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    separator = max(",;\t", key=lines[0].count) if lines else ","
    rows = list(DictReader(lines, delimiter=separator, restval="", skipinitialspace=True))
    if not rows:
        raise UsageError(f"{path} has no rows; add one with a file and a label for each image")
    return rows


def _column(row: dict[str, str], given: str | None, usual: tuple[str, ...], path: Path) -> str:
    names = {str(name).lower().replace(" ", "_"): name for name in row}
    found = given or names.get(next((name for name in usual if name in names), ""))
    if found not in row:
        raise UsageError(
            f"{path} has no column {given or ' or '.join(usual[:4])}; it has {', '.join(names)}; "
            "name its columns with --source.image and --source.label"
        )
    return found


def _files(names: list[str], table: Path) -> list[str]:
    """The file of each name, below the directory of the table; empty if there is none."""
    found = [os.path.join(table.parent, name) for name in names]
    if any(map(os.path.isfile, found)):
        return [file * os.path.isfile(file) for file in found]
    known: dict[str, str] = {}
    for folder, _, files in os.walk(table.parent):
        for file in files:
            if file.lower().endswith(image_formats.SUFFIXES):
                for name in (file, os.path.splitext(file)[0]):  # empty: it is not unique
                    known[name] = "" if name in known else os.path.join(folder, file)
    return [known.get(os.path.basename(name), "") for name in names]
