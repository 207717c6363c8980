"""Examples in files: images, and rows of tables."""

import csv
import glob
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.utils import safe_io

IMAGES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
TABLES = (".csv", ".npy")
_MAX_IMAGE_BYTES = 2**29  # of one file
_MAX_BATCH_BYTES = 2**26  # of the files in one request
_NO_ARRAY = "it does not contain an array of numbers (rows, features)"
_MIN_HEADER = 4  # columns; shorter headers of 0, 1, 2 may be a row


class Item(NamedTuple):
    """One example of a request."""

    name: dict[str, Any]
    """`file`, and for a table `row`, counted from 0."""
    value: Any
    """Bytes of an image, or float32 (features,); None if there is an error."""
    error: str = ""
    """Why it cannot be read."""


def find(words: Iterable[str], endings: tuple[str, ...]) -> list[str]:
    """Returns the files that words stand for, in their order.

    Args:
        words: A file; a directory, for its files with these endings at any depth, sorted, without
            hidden ones; or a pattern (`**` for any depth). Other words are kept as they are.
        endings: In lower case, such as `.png`.
    """
    names: list[str] = []
    for word in words:
        found = [word] if os.path.lexists(word) else sorted(glob.glob(word, recursive=True))
        # A pattern such as `**` matches a directory and each file in it.
        unique: dict[str, str] = {}
        for name in found or [word]:
            inside = _inside(name, endings) if os.path.isdir(name) else [name]
            unique |= {os.path.normpath(one): one for one in inside}
        names += unique.values()
    return names


def _inside(directory: str, endings: tuple[str, ...]) -> Iterator[str]:
    visited: set[str] = set()  # links may be circular
    for place, folders, names in os.walk(directory, followlinks=True):
        real = os.path.realpath(place)
        folders[:] = sorted(n for n in folders if not n.startswith(".") and real not in visited)
        for name in sorted(names) if real not in visited else ():
            if name.lower().endswith(endings) and not name.startswith("."):
                yield os.path.join(place, name)
        visited.add(real)


def images(names: Iterable[str]) -> Iterator[Item]:
    """Yields the bytes of each file."""
    for name in names:
        try:
            yield Item({"file": name}, safe_io.read_bytes(Path(name), _MAX_IMAGE_BYTES))
        except (OSError, ValueError) as error:
            yield Item({"file": name}, None, _reason(error))


def rows(names: Iterable[str], width: int, columns: Sequence[str] | None = None) -> Iterator[Item]:
    """Yields the rows of each `.npy` or `.csv` file as float32 (width,).

    The first line of a `.csv` is a header if it contains no numbers, the names of the columns, or
    0, 1, 2, 3, ... as written by pandas for columns without names.

    Args:
        names: The files.
        width: Numbers in a row.
        columns: Their names: the columns of a header are brought into this order, and other names
            are an error. None if they are unknown.
    """
    for name in names:
        index = -1
        try:
            is_array = name.lower().endswith(".npy")
            for index, row in enumerate(_array(name) if is_array else _lines(name, columns)):
                yield _row({"file": name, "row": index}, row, width)
            if index < 0:
                yield Item({"file": name}, None, "it contains no rows of numbers")
        except (OSError, ValueError, csv.Error) as error:
            yield Item({"file": name}, None, _reason(error))


def _array(name: str) -> np.ndarray:
    try:
        array = np.lib.format.open_memmap(name, mode="r")
    except ValueError:
        raise ValueError(_NO_ARRAY) from None
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise ValueError(_NO_ARRAY)
    return array


def _lines(name: str, columns: Sequence[str] | None) -> Iterator[list[str]]:
    reader = csv.reader(io.StringIO(safe_io.read_text(Path(name))), skipinitialspace=True)
    lines = filter(None, reader)
    first = next(lines, [])
    header = [cell.strip() for cell in first]
    counted = [str(index) for index in range(len(header))]
    wanted = [column.strip() for column in columns or ()]
    if wanted == [str(index) for index in range(len(wanted))]:  # a source without names
        wanted = []
    order = None
    if not any(map(_is_number, first)) or (wanted and sorted(header) == sorted(wanted)):
        order = _order(header, wanted) if wanted else None
    elif header != counted or len(header) < _MIN_HEADER:
        yield first
    for line in lines:
        yield [line[index] for index in order] if order and len(line) == len(order) else line


def _order(header: list[str], columns: list[str]) -> list[int]:
    """Returns the index of each column in a header; raises ValueError if its names differ."""
    if header == columns:
        return list(range(len(columns)))
    if sorted(header) != sorted(columns) or len(set(columns)) != len(columns):
        raise ValueError(
            f"its header is {', '.join(header)[:200]!r}, but the model takes "
            f"{', '.join(columns)[:500]!r}; without a header, columns must be in that order"
        )
    return [header.index(name) for name in columns]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # which Python accepts between digits


def _row(name: dict[str, Any], row: Any, width: int) -> Item:
    if len(row) != width:
        return Item(name, None, f"it has {len(row)} numbers, but the model takes {width}")
    for cell in row:
        if isinstance(cell, str) and not _is_number(cell):
            return Item(name, None, f"{cell[:100]!r} is not a number")
    with np.errstate(over="ignore"):  # the model decides about infinity
        return Item(name, np.array(row, np.float64).astype(np.float32))


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yields lists of up to `size` items, and of up to 64 MiB of images."""
    batch: list[Item] = []
    total = 0
    for item in items:
        length = len(item.value) if isinstance(item.value, bytes) else 0
        if batch and (len(batch) == size or total + length > _MAX_BATCH_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += length
    if batch:
        yield batch


def prefetch(batches: Iterator[list[Item]]) -> Iterator[list[Item]]:
    """Yields the same batches; the next one is read while the caller uses one."""
    with ThreadPoolExecutor(1) as reader:
        future = reader.submit(next, batches, None)
        while (batch := future.result()) is not None:
            future = reader.submit(next, batches, None)
            yield batch


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and glob.has_magic(str(error.filename)):
        return "no file has this name or matches the pattern"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
