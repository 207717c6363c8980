"""Decoded examples in a folder of the disk: built once, checked when opened, shared by runs."""

import dataclasses
import hashlib
import json
import math
import os
import shutil
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example
from pipeline.data.example_store import DIGEST, Indexed
from pipeline.utils import files, locks, safe_io, temp_files
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import is_short

_CHUNK = 8 << 20  # bytes
_MANIFEST = "manifest.json"
_FORMAT = 1


class Disk(Indexed):
    """One file for each field, row after row; short fields are read into memory.

    Rows are read by `pread`, which leaves what it read to the kernel's cache of files: that is
    as fast as memory and not counted as memory of this process. (A memory map is counted, and
    holds Python's lock while the disk turns.)

    Args:
        folder: Written by `built`, and checked.
        specs: Of the columns: the fields of an example, and perhaps `DIGEST`.
    """

    def __init__(self, folder: Path, specs: Mapping[str, tf.TensorSpec]) -> None:
        self._files: dict[str, int] = {}
        short = {}
        for name, spec in specs.items():
            if is_short(spec):
                values = np.fromfile(folder / name, spec.dtype.as_numpy_dtype)
                short[name] = values.reshape(-1, *spec.shape)
            else:
                # Open as long as the store lives, even if another run replaces the folder.
                self._files[name] = os.open(folder / name, os.O_RDONLY)
                weakref.finalize(self, os.close, self._files[name])
        digest = short.pop(DIGEST, None)
        super().__init__({n: s for n, s in specs.items() if n != DIGEST}, short, digest)
        self._kept = {name: tf.constant(values) for name, values in short.items()}

    def gather(self, rows: tf.Tensor) -> Example:
        example = {name: tf.gather(column, rows) for name, column in self._kept.items()}
        for name in self._files:
            spec = self.specs[name]
            read = tf.numpy_function(lambda r, name=name: self._read(name, r), [rows], spec.dtype)
            example[name] = tf.ensure_shape(read, (*rows.shape, *spec.shape))
        return example

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        rows = np.asarray(rows)
        read = {name: self._read(name, rows) for name in self._files}
        return {name: read[name] if name in read else self.short[name][rows] for name in self.specs}

    def raise_if_undecodable(self, rows: np.ndarray) -> None:
        try:
            self.take(rows)
        except OSError as error:
            raise UsageError(f"--data.cache disk: {error}; run again, it is then rebuilt") from None

    def _read(self, name: str, rows: np.ndarray) -> np.ndarray:
        spec = self.specs[name]
        each = _bytes(spec)
        values = np.empty((len(rows), each), np.uint8)
        # Neighbours in one call: evaluation reads in order.
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            part = memoryview(values[start:end]).cast("B")
            if os.preadv(self._files[name], [part], int(rows[start]) * each) != len(part):
                raise OSError(f"the file of {name!r} was cut off while it was in use")
        return values.view(spec.dtype.as_numpy_dtype).reshape(-1, *spec.shape)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the examples of one split are kept, and what they must have been made from.

    Args:
        directory: Holds the caches of many data sets.
        title: Beginning of the folder's name, for people.
        identity: What the cache is of; another one gets another folder. JSON.
        state: What it was made from; if it has changed the folder is built anew. Its keys are what
            a person calls them. JSON.
    """

    directory: Path
    title: str
    identity: Mapping[str, Any]
    state: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        text = json.dumps(self.identity, sort_keys=True)
        return self.directory / f"{self.title}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def obtained(
    place: Place,
    specs: Mapping[str, tf.TensorSpec],
    count: int,
    batches: Callable[[], Iterable[Mapping[str, np.ndarray]]],
) -> tuple[Disk, str]:
    """The store at a place, built from `batches` unless it is there and whole; and which of both.

    Args:
        place: Where, and of what.
        specs: Of the fields of a decoded example.
        count: So many examples at most.
        batches: Makes the columns of the decoded examples, some at a time.

    Raises:
        UsageError: The disk is full or cannot be written.
    """
    try:
        lock = place.folder.with_name(f"{place.folder.name}.lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        with locks.in_turn(lock, f"waiting for another process to build or check {place.folder}"):
            temp_files.sweep(place.directory)
            wrong = _wrong(place, specs)
            if wrong:
                _require_room(place.directory, count * sum(_bytes(s) for s in specs.values()))
                _build(place, specs, batches())
            return Disk(place.folder, specs), f"built, {wrong}" if wrong else "found and checked"
    except OSError as error:
        raise UsageError(
            f"--data.cache disk: cannot write {place.folder}: {error.strerror or error}; "
            "choose another --data.cache-directory, or another --data.cache"
        ) from None


def _require_room(directory: Path, size: int) -> None:
    """Before anything is written: a disk filled to the brim harms others, too."""
    free = shutil.disk_usage(directory).free
    if size > free:
        raise UsageError(
            f"--data.cache disk: the decoded examples need {_shown(size)}, but {directory} has "
            f"{_shown(free)} free; free some, or choose another --data.cache-directory or "
            "--data.cache"
        )


def _shown(size: int) -> str:
    """A number of bytes, in the unit that leaves digits before the point."""
    unit, name = next((u for u in ((1e9, "GB"), (1e6, "MB")) if size >= u[0]), (1e3, "kB"))
    return f"{size / unit:,.1f} {name}"


def _wrong(place: Place, specs: Mapping[str, tf.TensorSpec]) -> str:
    """Why the folder cannot be used, empty if it can."""
    try:
        manifest = safe_io.read_json(place.folder / _MANIFEST)
        before, known = manifest["state"], manifest["files"]
        if manifest["format"] != _FORMAT or set(known) != set(specs):
            return "because it was written by another version"
        changed = [name for name, value in place.state.items() if before.get(name) != value]
        if changed:
            return f"because {changed[0]} changed"
        for name, file in known.items():
            if _checksum(place.folder / name) != [file["bytes"], file["crc32"]]:
                return f"because {name!r} was damaged"
    except FileNotFoundError:
        return "because it was not there"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "because it was damaged"
    return ""


def _checksum(path: Path) -> list[int]:
    """Length and CRC-32 of a file; 3 GB/s where the kernel has it in memory."""
    total, checksum, buffer = 0, 0, bytearray(_CHUNK)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            checksum = zlib.crc32(memoryview(buffer)[:count], checksum)
            total += count
    return [total, checksum]


def _build(
    place: Place, specs: Mapping[str, tf.TensorSpec], batches: Iterable[Mapping[str, np.ndarray]]
) -> None:
    """Writes beside, and puts the new folder in the place of the old one when it is whole."""
    folder = place.folder
    beside = temp_files.folder(folder.parent)
    try:
        manifest = {"format": _FORMAT, "state": place.state, "of": place.identity}
        manifest["files"] = _written(beside, specs, batches)
        files.write_json(beside / _MANIFEST, manifest)
        if folder.exists():
            temp_files.remove(folder)
        files.publish_as(beside, folder)
    except BaseException:
        temp_files.remove(beside)
        raise


def _written(
    folder: Path,
    specs: Mapping[str, tf.TensorSpec],
    batches: Iterable[Mapping[str, np.ndarray]],
) -> dict[str, dict[str, int]]:
    opened = {name: (folder / name).open("wb") for name in specs}
    sums = {name: {"bytes": 0, "crc32": 0} for name in specs}
    try:
        for batch in batches:
            for name, file in opened.items():
                content = memoryview(np.ascontiguousarray(batch[name]).view(np.uint8)).cast("B")
                file.write(content)
                sums[name]["bytes"] += len(content)
                sums[name]["crc32"] = zlib.crc32(content, sums[name]["crc32"])
    finally:
        for file in opened.values():
            file.close()
    return sums


def _bytes(spec: tf.TensorSpec) -> int:
    """Of one row."""
    return spec.dtype.size * math.prod(spec.shape)
