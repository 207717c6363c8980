"""Reading untrusted `.npz` archives: their unpacked size is checked first."""

import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pipeline.utils import safe_io


class TooLarge(ValueError):
    """The unpacked archive would exceed the limit."""


def read(path: Path, most: int, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an archive by name; arrays of objects, which need unpickling, are rejected.

    Args:
        path: Written by `numpy.savez`, compressed or not.
        most: Limit of the unpacked size in bytes.
        wanted: Names of the arrays to read; None: all.

    Raises:
        OSError: It cannot be opened.
        TooLarge: By its table of contents it exceeds `most`; nothing has been unpacked.
        ValueError: It is not an archive of plain arrays.
    """
    try:
        # Not a path: `numpy.load` does not close a file that it cannot read.
        with safe_io.opened(path) as opened:
            # Unpacking stops at the length in the table of contents.
            unpacked = sum(part.file_size for part in _contents(opened, wanted))
            if unpacked > most:
                raise TooLarge(f"it unpacks to {unpacked:,} bytes, more than {most:,}")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as file:
                arrays = {n: file[n] for n in file.files if wanted is None or n in wanted}
    except (OSError, TooLarge):
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise many kinds for damaged files
        raise ValueError("it is not an archive of plain arrays") from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it is not an archive of plain arrays")
    return arrays


def names(path: Path) -> list[str]:
    """Names of the arrays of an archive."""
    with safe_io.opened(path) as opened:
        return [part.filename.removesuffix(".npy") for part in _contents(opened, None)]


def _contents(opened: BinaryIO, wanted: Collection[str] | None) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(opened) as archive:
        parts = archive.infolist()
    return [p for p in parts if wanted is None or p.filename.removesuffix(".npy") in wanted]
