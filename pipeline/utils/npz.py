"""Reading `.npz` archives that anybody may have written: what they unpack to is weighed first."""

import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pipeline.utils import safe_io


class TooLarge(ValueError):
    """An archive would unpack to more bytes than are allowed."""


def read(path: Path, most: int, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an archive by name; objects, which would be unpickled, are refused.

    Args:
        path: Written by `numpy.savez`, compressed or not.
        most: Bytes that it may unpack to.
        wanted: Names of the arrays that are read; None: all.

    Raises:
        OSError: It cannot be opened.
        TooLarge: Its table of contents says more than `most`; nothing has been unpacked.
        ValueError: It is no archive of plain arrays.
    """
    try:
        # `numpy.load` leaves a path that it cannot read open, so it gets a file.
        with safe_io.opened(path) as opened:
            # Unpacking stops at the length that the table says, whatever follows.
            unpacked = sum(part.file_size for part in _contents(opened, wanted))
            if unpacked > most:
                raise TooLarge(f"it unpacks to {unpacked:,} bytes, more than {most:,}")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as file:
                arrays = {n: file[n] for n in file.files if wanted is None or n in wanted}
    except (OSError, TooLarge):
        raise
    except Exception as error:  # whatever damage makes zipfile, zlib or NumPy raise
        raise ValueError("it is no archive of plain arrays") from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it is no archive of plain arrays")
    return arrays


def names(path: Path) -> list[str]:
    """What the arrays of an archive are called."""
    with safe_io.opened(path) as opened:
        return [part.filename.removesuffix(".npy") for part in _contents(opened, None)]


def _contents(opened: BinaryIO, wanted: Collection[str] | None) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(opened) as archive:
        parts = archive.infolist()
    return [p for p in parts if wanted is None or p.filename.removesuffix(".npy") in wanted]
