"""Decoded examples in a directory on disk: built once, verified when opened, shared by runs."""

import os
import weakref
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example
from pipeline.data.example_store import DIGEST, Store, row_bytes
from pipeline.utils import files, locks, safe_io, temp_files
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import is_short

_CHUNK = 8 << 20  # bytes
_MANIFEST = "manifest.json"


class Disk(Store):
    """One file per field, which contains all rows; short fields are read into memory.

    Rows are read with `pread` through the kernel's page cache, which is as fast as memory and does
    not count as memory of this process. (A memory map does, and holds the GIL while the disk is
    read.)
    """

    def __init__(self, folder: Path, specs: Mapping[str, tf.TensorSpec]) -> None:
        self._files: dict[str, int] = {}
        short = {}
        for name, spec in specs.items():
            if is_short(spec):
                values = np.fromfile(folder / name, spec.dtype.as_numpy_dtype)
                short[name] = values.reshape(-1, *spec.shape)
            else:
                # Open as long as the store exists, even if another run replaces the directory.
                self._files[name] = os.open(folder / name, os.O_RDONLY)
                weakref.finalize(self, os.close, self._files[name])
        digest = short.pop(DIGEST, None)
        super().__init__({n: s for n, s in specs.items() if n != DIGEST}, short, digest)

    def gather(self, rows: tf.Tensor) -> Example:
        types = [spec.dtype for spec in self.specs.values()]
        found = tf.numpy_function(lambda rows: [*self.take(rows).values()], [rows], types)
        fields = zip(self.specs.items(), found, strict=True)
        return {n: tf.ensure_shape(v, (*rows.shape, *spec.shape)) for (n, spec), v in fields}

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        rows = np.asarray(rows)
        try:
            read = {name: self._read(name, rows) for name in self._files}
        except OSError as error:
            raise UsageError(f"--data.cache disk: {error}; run again to rebuild it") from None
        return {name: read[name] if name in read else self.short[name][rows] for name in self.specs}

    def _read(self, name: str, rows: np.ndarray) -> np.ndarray:
        spec = self.specs[name]
        each = row_bytes({name: spec})
        values = np.empty((len(rows), each), np.uint8)
        # Reads consecutive rows in one call, because evaluation reads in order.
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            part = values[start:end].reshape(-1).data
            if os.preadv(self._files[name], [part], int(rows[start]) * each) != len(part):
                raise OSError(f"the file of {name!r} was truncated while it was in use")
        return values.view(spec.dtype.as_numpy_dtype).reshape(-1, *spec.shape)


def obtained(
    folder: Path,
    state: Mapping[str, Any],
    specs: Mapping[str, tf.TensorSpec],
    batches: Iterable[Mapping[str, np.ndarray]],
) -> tuple[Disk, str]:
    """The store in a directory, built from `batches` unless it is intact; and which of the two.

    If `state` (JSON) has changed, the directory is rebuilt. The keys of `state` appear in messages.
    """
    try:
        lock = folder.with_name(f"{folder.name}.lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        with locks.in_turn(lock, f"waiting for another process to build or verify {folder}"):
            temp_files.sweep(folder.parent)
            wrong = _wrong(folder, state, specs)
            if wrong:
                _build(folder, state, specs, batches)
            return Disk(folder, specs), f"built, {wrong}" if wrong else "found and verified"
    except OSError as error:
        raise UsageError(
            f"--data.cache disk: cannot write {folder}: {error.strerror or error}; "
            "choose another --data.cache-directory, or another --data.cache"
        ) from None


def _wrong(folder: Path, state: Mapping[str, Any], specs: Mapping[str, tf.TensorSpec]) -> str:
    """Why the directory cannot be used; empty if it can."""
    try:
        manifest = safe_io.read_json(folder / _MANIFEST)
        before, known = manifest["state"], manifest["files"]
        changed = [name for name, value in state.items() if before.get(name) != value]
        if changed:
            return f"because {changed[0]} changed"
        if known == {name: _checksum(folder / name) for name in specs}:
            return ""
    except FileNotFoundError:
        return "because it did not exist"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return "because it was damaged"


def _checksum(path: Path) -> list[int]:
    """Length and CRC-32 of a file; 3 GB/s if it is in the page cache."""
    total, checksum = 0, 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
            total += len(chunk)
    return [total, checksum]


def _build(
    folder: Path,
    state: Mapping[str, Any],
    specs: Mapping[str, tf.TensorSpec],
    batches: Iterable[Mapping[str, np.ndarray]],
) -> None:
    """Writes a new directory, which then replaces the old one."""
    temporary = temp_files.folder(folder.parent)
    try:
        for name in specs:
            (temporary / name).touch()
        for batch in batches:
            for name in specs:
                with (temporary / name).open("ab") as file:
                    file.write(batch[name].tobytes())
        sums = {name: _checksum(temporary / name) for name in specs}
        files.write_json(temporary / _MANIFEST, {"state": state, "files": sums})
        if folder.exists():
            temp_files.remove(folder)
        files.publish_as(temporary, folder)
    except BaseException:
        temp_files.remove(temporary)
        raise
