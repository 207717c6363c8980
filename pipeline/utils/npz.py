"""`.npz` archives: of those that are read, the unpacked size is checked first."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.utils import files


def read(path: Path, most: int) -> dict[str, np.ndarray]:
    """The arrays of an archive by name; arrays of objects, which need unpickling, are
    rejected.

    The archive is as written by `numpy.savez`, compressed or not. Raises OSError if it
    cannot be opened, and ValueError if it is not an archive of plain arrays, or unpacks
    to more than `most` bytes; nothing was unpacked then.
    """
    try:
        # Not a path: `numpy.load` does not close a file that it cannot read.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            # Unpacking stops at the length in the table of contents.
            unpacked = sum(part.file_size for part in file.zip.infolist())
            if unpacked > most:
                raise ValueError(
                    f"it unpacks to {unpacked:,} bytes, more than {most:,}"
                )
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError):
        raise
    except (
        Exception
    ) as error:  # zipfile, zlib and NumPy raise many types for damaged files
        raise ValueError(str(error)) from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it contains files that are not arrays")
    return arrays


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays without compression, as `files.write_bytes` does."""
    contents = io.BytesIO()
    np.savez(contents, allow_pickle=False, **arrays)
    files.write_bytes(path, contents.getvalue())
