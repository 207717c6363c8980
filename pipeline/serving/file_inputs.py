"""What a model is asked about: image files, or rows of tables, found by words and read ahead."""

import contextlib
import csv
import glob
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.config.validation import require
from pipeline.utils import safe_io

IMAGES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
TABLES = (".csv", ".npy")
# Whole numbers counted from 0 are a heading; two or three may be a row as well.
_FEWEST = 4
# Which TensorFlow does not decode, and cameras, scanners and phones write.
_OTHER_IMAGES = (".avif", ".heic", ".heif", ".jfif", ".jp2", ".jxl", ".tif", ".tiff")
_MAGIC = b"\x93NUMPY"
# No image below decoding's limit of pixels takes more.
_MOST_BYTES = 2**29
# Of the files in one request: several of them are held at once, here and by a server.
_MOST_TOGETHER = 2**26


class Item(NamedTuple):
    """One example of a request."""

    name: dict[str, Any]
    """`file`, and of a table `row`, which counts from 0."""
    value: Any
    """Bytes of an image, or float32 (features,); None where there is an error."""
    error: str = ""
    """Why it cannot be read."""


def named(
    words: Iterable[str], endings: tuple[str, ...], others: set[str] | None = None
) -> list[str]:
    """The files that words name, in their order.

    Args:
        words: A file; a folder: its files with these endings at any depth, sorted, hidden ones
            passed by; or a pattern (`**` for any depth). A word that is none of these is kept: it
            cannot be read, and will be named for that.
        endings: In lower case, such as `.png`.
        others: Gets the files of folders that are images by name, but of formats not taken.

    Raises UsageError for an empty word.
    """
    names: list[str] = []
    for word in words:
        require(bool(word), "FILES", "''", "names, and no empty one")
        found = [word] if os.path.lexists(word) else sorted(set(_matching(word)))
        # A pattern such as `**` matches a folder, and each file in it once more.
        once: dict[str, str] = {}
        for name in found or [word]:
            for one in _inside(name, endings, others) if os.path.isdir(name) else (name,):
                once.setdefault(os.path.normpath(one), one)
        names += once.values()
    return names


def _matching(pattern: str) -> Iterator[str]:
    """As `glob.glob(recursive=True)`, which never ends where links lead in a circle."""
    parts = pattern.split(os.sep)
    if "**" not in parts:
        yield from glob.glob(pattern)
        return
    at = parts.index("**")
    before, after = os.sep.join([*parts[:at], ""]), parts[at + 1 :]
    for base in glob.glob(before) if before else ("",):
        if not any(after):
            yield base or os.curdir
            continue
        for place, _ in _folders(base or os.curdir, []):
            inside = glob.escape(place if base else place[2:])  # not "./"
            yield from _matching(os.path.join(inside, *after))


def _inside(folder: str, endings: tuple[str, ...], others: set[str] | None) -> Iterator[str]:
    # A folder that cannot be listed stands for its files: reading it will say why.
    denied: list[str] = []
    for place, files in _folders(folder, denied):
        for name in files:
            if name.startswith("."):
                continue
            if name.lower().endswith(endings):
                yield os.path.join(place, name)
            elif others is not None and endings == IMAGES and name.lower().endswith(_OTHER_IMAGES):
                others.add(os.path.join(place, name))
    yield from denied


def _folders(folder: str, denied: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each folder at any depth, once, with its files; hidden ones are passed by."""
    seen: set[str] = set()  # links may lead in a circle
    walk = os.walk(folder, followlinks=True, onerror=lambda error: denied.append(error.filename))
    for place, folders, files in walk:
        real = os.path.realpath(place)
        folders[:] = sorted(n for n in folders if not n.startswith(".") and real not in seen)
        if real not in seen:
            seen.add(real)
            yield place, sorted(files)


def listed(text: bytes) -> list[str]:
    """Names out of a list: one a line, or between zero bytes as `find -print0` writes them."""
    separator = b"\0" if b"\0" in text else b"\n"
    names = (name if separator == b"\0" else name.rstrip(b"\r") for name in text.split(separator))
    return [os.fsdecode(name) for name in names if name]


def images(names: Iterable[str]) -> Iterator[Item]:
    """The bytes of each file, as they are on the disk."""
    for name in names:
        try:
            yield Item({"file": name}, safe_io.read_bytes(Path(name), _MOST_BYTES))
        except (OSError, ValueError) as error:
            yield Item({"file": name}, None, _reason(error))


def rows(names: Iterable[str], width: int, columns: Sequence[str] | None = None) -> Iterator[Item]:
    """The rows of each file, float32 (width,): `.npy` (rows, width), or `.csv` with commas.

    A first line of a `.csv` in which no number stands, or with the names of the columns, or 0, 1,
    2, 3, ... as pandas writes for columns without names, is a heading.

    Args:
        names: Of the files.
        width: Numbers in a row.
        columns: What they are: a heading with the same names in another order puts them in order,
            one with other names is an error. None: nobody knows.
    """
    for name in names:
        at = None
        try:
            table = _array(name) if name.lower().endswith(".npy") else _lines(name, columns)
            for at, row in enumerate(table):
                yield _row({"file": name, "row": at}, row, width)
            if at is None:
                yield Item({"file": name}, None, "it holds no rows of numbers")
        except (OSError, ValueError, csv.Error) as error:
            yield Item({"file": name}, None, _reason(error))


def _array(name: str) -> np.ndarray:
    with safe_io.opened(Path(name)) as file:  # refuses what is no regular file
        array = None
        if file.read(len(_MAGIC)) == _MAGIC:  # no .npz, no pickle
            with contextlib.suppress(Exception):  # a damaged header: Python's own parser reads it
                array = np.load(name, mmap_mode="r", allow_pickle=False)
    if array is None or array.ndim != 2 or array.dtype.kind not in "biuf":
        raise ValueError("it holds no array of numbers (rows, features)")
    return array


def _lines(name: str, columns: Sequence[str] | None) -> Iterator[list[str]]:
    lines = csv.reader(io.StringIO(safe_io.read_text(Path(name))), skipinitialspace=True)
    filled = (line for line in lines if line)
    first = next(filled, [])
    order, heading = None, [cell.strip() for cell in first]
    wanted = [column.strip() for column in columns or ()]
    if wanted == _counted(len(wanted)):  # of a source that has no names
        wanted = []
    if not any(map(_is_number, first)) or sorted(heading) == sorted(wanted):
        order = _order(heading, wanted) if wanted else None
    elif len(first) < _FEWEST or heading != _counted(len(first)):
        yield first
    for line in filled:
        yield line if order is None or len(line) != len(order) else [line[at] for at in order]


def _counted(count: int) -> list[str]:
    return list(map(str, range(count)))


def _order(heading: list[str], columns: list[str]) -> list[int]:
    """Places of the columns in a heading; ValueError if it names others."""
    if heading == columns:
        return list(range(len(columns)))
    if sorted(heading) != sorted(columns) or len(set(columns)) != len(columns):
        raise ValueError(
            f"its heading is {', '.join(heading)[:200]!r}, and the model takes "
            f"{', '.join(columns)[:500]!r}; without a heading, columns are taken in that order"
        )
    return [heading.index(name) for name in columns]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # which Python takes for digits apart


def _row(name: dict[str, Any], row: Any, width: int) -> Item:
    if len(row) != width:
        return Item(name, None, f"it has {len(row)} numbers, and the model takes {width}")
    for cell in row:
        if isinstance(cell, str) and not _is_number(cell):
            return Item(name, None, f"{cell[:100]!r} is no number")
    with np.errstate(over="ignore"):  # the model says what it thinks of infinity
        return Item(name, np.asarray([float(cell) for cell in row]).astype(np.float32))


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Items in lists of `size`, or of fewer where those are 64 MiB together."""
    batch: list[Item] = []
    together = 0
    for item in items:
        length = len(item.value) if isinstance(item.value, bytes) else 0
        if batch and (len(batch) == size or together + length > _MOST_TOGETHER):
            yield batch
            batch, together = [], 0
        batch.append(item)
        together += length
    if batch:
        yield batch


def ahead(batches: Iterator[list[Item]]) -> Iterator[list[Item]]:
    """The same; the next one is read while the one before is answered."""
    with ThreadPoolExecutor(1) as reader:
        following = reader.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = reader.submit(next, batches, None)
            yield batch


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and glob.has_magic(str(error.filename)):
        return "no file is named so, and none fits the pattern"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
