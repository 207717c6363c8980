"""Reads examples from files: images, and rows of tables."""

import csv
import glob
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.utils import safe_io
from pipeline.utils.errors import reason

TABLES = (".csv", ".npy")


class Item(NamedTuple):
    """One example of a request."""

    name: dict[str, Any]
    """`file`, and for a table also `row`, counted from 0."""
    value: Any
    """The bytes of an image, or float32 (features,); None if there is an error."""
    error: str = ""
    """Why the example cannot be read."""


def find(words: Iterable[str], endings: tuple[str, ...]) -> list[str]:
    """Returns the files that the words denote, in order.

    A word is a file, a pattern (`**` for any depth), or a directory; from a directory, all files
    with these endings are taken, at any depth, sorted, except hidden files. Other words are kept
    unchanged.
    """
    names: list[str] = []
    for word in words:
        if os.path.isdir(word):
            inside = _matching(os.path.join(glob.escape(word), "**"))
            names += [name for name in inside if name.lower().endswith(endings)]
        else:
            names += [word] if os.path.lexists(word) else _matching(word) or [word]
    return names


def _matching(pattern: str) -> list[str]:
    found = sorted(glob.glob(pattern, recursive=True))
    return [name for name in found if not os.path.isdir(name)]


def images(names: Iterable[str]) -> Iterator[Item]:
    """Yields the bytes of each file."""
    for name in names:
        try:
            yield Item({"file": name}, Path(name).read_bytes())
        except (OSError, ValueError) as error:
            yield Item({"file": name}, None, _reason(error))


def rows(names: Iterable[str], width: int, columns: Sequence[str] | None = None) -> Iterator[Item]:
    """Yields the rows of each `.npy` or `.csv` file as float32 (width,).

    The first line of a `.csv` is a header if it contains no numbers, or 0, 1, 2, 3, ... as written
    by pandas; named columns are reordered to match `columns`, and other names are an error.
    """
    for name in names:
        try:
            is_array = name.lower().endswith(".npy")
            table = _array(name) if is_array else _lines(name, columns)
        except (OSError, ValueError, csv.Error) as error:
            yield Item({"file": name}, None, _reason(error))
            continue
        if not len(table):
            yield Item({"file": name}, None, "it contains no rows of numbers")
        for index, row in enumerate(table):
            yield _row({"file": name, "row": index}, row, width)


def _array(name: str) -> np.ndarray:
    array = np.lib.format.open_memmap(name, mode="r")
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise ValueError("it does not contain an array of numbers (rows, features)")
    return array


def _lines(name: str, columns: Sequence[str] | None) -> list[list[str]]:
    reader = csv.reader(io.StringIO(safe_io.read_text(Path(name))), skipinitialspace=True)
    lines = list(filter(None, reader))
    header = [cell.strip() for cell in lines[0]] if lines else []
    counted = [str(index) for index in range(len(header))]
    if any(map(_is_number, header)):
        return lines[1:] if len(header) > 3 and header == counted else lines
    if columns is None or columns == counted:  # no names
        return lines[1:]
    if sorted(header) != sorted(columns):
        raise ValueError(
            f"its header is {', '.join(header)[:200]!r}, but the model takes "
            f"{', '.join(columns)[:500]!r}"
        )
    order = [header.index(column) for column in columns]
    return [[line[i] for i in order] if len(line) == len(order) else line for line in lines[1:]]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _row(name: dict[str, Any], row: Any, width: int) -> Item:
    if len(row) != width:
        return Item(name, None, f"it has {len(row)} numbers, but the model takes {width}")
    for cell in row:
        if isinstance(cell, str) and not _is_number(cell):
            return Item(name, None, f"{cell[:100]!r} is not a number")
    with np.errstate(over="ignore"):  # the model decides about infinity
        return Item(name, np.array(row, np.float64).astype(np.float32))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or reason(error)
