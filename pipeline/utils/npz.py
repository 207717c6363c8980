"""Reads and writes `.npz` archives; reading checks the unpacked size first."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.utils import files


def read(path: Path, limit: int) -> dict[str, np.ndarray]:
    """Reads the arrays of an archive, as written by `numpy.savez`, compressed or not.

    Raises:
        OSError: The archive cannot be opened.
        ValueError: It is not an archive, contains arrays of objects, which need
            unpickling, or unpacks to more than `limit` bytes; nothing was unpacked.
    """
    try:
        # Not a path: `numpy.load` does not close a file that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            # Unpacking stops at the length in the table of contents.
            size = sum(part.file_size for part in archive.zip.infolist())
            if size > limit:
                raise ValueError(f"it unpacks to {size:,} bytes, more than {limit:,}")
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError):
        raise
    except Exception as error:
        # zipfile, zlib and NumPy raise many types for damaged files.
        raise ValueError(str(error)) from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it contains files that are not arrays")
    return arrays


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays without compression, as `files.write_bytes` does."""
    contents = io.BytesIO()
    np.savez(contents, allow_pickle=False, **arrays)
    files.write_bytes(path, contents.getvalue())
