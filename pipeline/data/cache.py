"""Chooses the cache of decoded examples, and keeps the one on disk."""

import hashlib
import json
import os
import shutil
import sys
import time
import weakref
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from pipeline.config.config import Config
from pipeline.config.sections import DataConfig
from pipeline.contracts import Decision, Example, Source, Task
from pipeline.data.example_store import DIGEST, Store
from pipeline.data.splits import Subset
from pipeline.runtime import devices
from pipeline.utils import files, locks, safe_io, temp_files
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import is_short, row_bytes

_PACKAGE = Path(__file__).parents[1]
_STARTED = time.time()
# Fraction of the memory of a GPU; the network, its gradients and activations need the
# rest.
_MAX_DEVICE_FRACTION = 0.4
# Fraction of the free disk space, unless the disk cache is requested.
_MAX_DISK_FRACTION = 0.5
_CHUNK_BYTES = 8 << 20
_MANIFEST = "manifest.json"
_Batches = Iterable[Mapping[str, np.ndarray]]


def choose(
    source: Source, specs: Mapping[str, tf.TensorSpec], options: DataConfig
) -> Decision:
    """Chooses `device`, `memory`, `disk` or `none`, by the size of the decoded data.

    `specs` are those of the decoded fields.

    Raises UsageError if the requested cache is impossible.
    """
    has_fingerprint = source.fingerprint() is not None
    size = row_bytes(specs) * sum(source.info.splits.values())
    free, total = memory()
    sizes = f"{size / 1e6:,.1f} MB decoded, {free / 1e9:.0f} GB of memory free"
    # Twice the size, because `tf.data` has a copy for a moment when an iterator starts.
    limit = free if options.cache == "auto" else total
    fits = 2 * size <= limit
    if options.cache == "disk" and not has_fingerprint:
        raise UsageError(
            "--data.cache disk: this source cannot detect whether its data has changed;"
            " choose memory or none"
        )
    if options.cache in ("device", "memory") and not fits:
        raise UsageError(
            f"--data.cache {options.cache}: the decoded data needs {size / 1e9:.1f} GB"
            f" of {total / 1e9:.1f} GB of memory; choose disk or none, a smaller"
            " --data.limit, or a smaller --data.image-size for images"
        )
    if options.cache != "auto":
        return Decision("cache", options.cache, "requested")
    gpu_memory = devices.memory()
    if fits and gpu_memory and size <= _MAX_DEVICE_FRACTION * gpu_memory:
        sizes += f", {gpu_memory / 1e9:.0f} GB on each GPU"
        return Decision("cache", "device", sizes)
    if fits:
        return Decision("cache", "memory", sizes)
    folders = (options.cache_folder, *options.cache_folder.parents)
    disk_space = shutil.disk_usage(next(path for path in folders if path.exists())).free
    sizes += f", {disk_space / 1e9:,.0f} GB of disk"
    if has_fingerprint and size <= _MAX_DISK_FRACTION * disk_space:
        return Decision("cache", "disk", sizes)
    return Decision("cache", "none", f"{sizes}; each example is decoded in each epoch")


def directory_and_state(
    config: Config, source: Source, task: Task, split: str, excluded: np.ndarray
) -> tuple[Path, dict[str, str | None]]:
    """The directory of a split in the disk cache, and what its content depends on."""
    options = {name: str(value) for name, value in config.source.options.items()}
    if config.source.path is not None:
        options["path"] = str(config.source.path.absolute())
    identity = [config.source.name, options, config.data.limit, config.task.name]
    text = json.dumps([*identity, dict(task.decode_metadata)], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    name = f"{Path(config.source.title).stem[:60]}-{split}-{key}"
    excluded_ids = np.sort(excluded).tobytes()
    state = {
        "the data": source.fingerprint(),
        "the decoding code": _code_digest(source, task),
        "the excluded examples": hashlib.sha256(excluded_ids).hexdigest(),
    }
    return config.data.cache_folder / name, state


def _code_digest(source: Source, task: Task) -> str:
    """A digest of the code of the packages that define the source and the task."""
    whole = source.whole if isinstance(source, Subset) else source
    modules = set()
    for part in (whole, *task.decoders):
        modules |= {cls.__module__ for cls in type(part).__mro__[:-1]}
    # In this package, only `data` and `tasks` contain decoding code.
    paths = {*_PACKAGE.glob("data/**/*.py"), *_PACKAGE.glob("tasks/**/*.py")}
    digest = hashlib.sha256(tf.__version__.encode())
    for name in sorted(modules):
        if name.startswith("pipeline."):
            continue
        module_files = _module_files(name)
        if not module_files:  # a cell of a notebook
            digest.update(os.urandom(16))
        for path in module_files:
            is_in_package = "." in name
            paths |= set(path.parent.glob("**/*.py")) if is_in_package else {path}
    for path in sorted(paths):
        digest.update(path.read_bytes())
        if path.stat().st_mtime > _STARTED:
            digest.update(os.urandom(16))  # an older version of the file may be loaded
    return digest.hexdigest()


def _module_files(name: str) -> list[Path]:
    """The files of all modules with this name.

    A module of `file.py:function` is a key of `sys.modules` by its path.
    """
    paths = []
    for key, module in sys.modules.items():
        is_user_file = key.endswith(".py") and module.__name__ == name
        if key == name or is_user_file:
            # Not for other modules: an attribute may import a lazy module.
            paths.append(getattr(module, "__file__", None))
    return [Path(path) for path in paths if path]


def memory() -> tuple[int, int]:
    """Free and total bytes of memory of this machine or container."""
    host = psutil.virtual_memory()
    free, total = host.available, host.total
    try:  # control groups, version 2: exceeding the limit kills the container
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no limit
        return free, total
    return min(free, limit - used), min(total, limit)


class Disk(Store):
    """A directory with a file for each field; short fields are also in memory.

    Rows are read with `pread` through the kernel's page cache, which is as fast as
    memory and does not count as memory of this process. (A memory map does, and holds
    the GIL while the disk is read.)
    """

    def __init__(self, folder: Path, specs: Mapping[str, tf.TensorSpec]) -> None:
        self._files: dict[str, int] = {}
        short = {}
        for name, spec in specs.items():
            if is_short(spec):
                values = np.fromfile(folder / name, spec.dtype.as_numpy_dtype)
                short[name] = values.reshape(-1, *spec.shape)
            else:
                # Stays open even if another run replaces the directory.
                self._files[name] = os.open(folder / name, os.O_RDONLY)
                weakref.finalize(self, os.close, self._files[name])
        digest = short.pop(DIGEST, None)
        fields = {name: spec for name, spec in specs.items() if name != DIGEST}
        super().__init__(fields, short, digest)

    def gather(self, rows: tf.Tensor) -> Example:
        types = [spec.dtype for spec in self.specs.values()]
        values = tf.numpy_function(
            lambda rows: [*self.take(rows).values()], [rows], types
        )
        batch = {}
        for (name, spec), value in zip(self.specs.items(), values, strict=True):
            batch[name] = tf.ensure_shape(value, (*rows.shape, *spec.shape))
        return batch

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        rows = np.asarray(rows)
        try:
            long = {name: self._read(name, rows) for name in self._files}
        except OSError as error:
            raise UsageError(
                f"--data.cache disk: {error}; run again to rebuild it"
            ) from None
        return {
            name: long[name] if name in long else self.short[name][rows]
            for name in self.specs
        }

    def _read(self, name: str, rows: np.ndarray) -> np.ndarray:
        spec = self.specs[name]
        size = row_bytes({name: spec})
        values = np.empty((len(rows), size), np.uint8)
        # Reads consecutive rows in one call, because evaluation reads in order.
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            part = values[start:end].reshape(-1).data
            count = os.preadv(self._files[name], [part], int(rows[start]) * size)
            if count != len(part):
                raise OSError(f"the file of {name!r} was truncated while it was in use")
        return values.view(spec.dtype.as_numpy_dtype).reshape(-1, *spec.shape)


def load_or_build(
    folder: Path,
    state: Mapping[str, Any],
    specs: Mapping[str, tf.TensorSpec],
    batches: _Batches,
) -> tuple[Disk, str]:
    """Opens the store in a directory; builds it from `batches` if it is unusable.

    Returns the store, and a note that says whether and why it was built: it does not
    exist, it is damaged, or `state` (JSON) has changed, whose keys appear in the note.
    """
    lock = folder.with_name(f"{folder.name}.lock")
    waiting = f"waiting for another process to build or verify {folder}"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        with locks.in_turn(lock, waiting):
            temp_files.sweep(folder.parent)
            problem = _find_problem(folder, state, specs)
            if problem:
                _build(folder, state, list(specs), batches)
            note = f"built, {problem}" if problem else "found and verified"
            return Disk(folder, specs), note
    except OSError as error:
        raise UsageError(
            f"--data.cache disk: cannot write {folder}: {error.strerror or error}; "
            "choose another --data.cache-directory, or another --data.cache"
        ) from None


def _find_problem(
    folder: Path, state: Mapping[str, Any], specs: Mapping[str, tf.TensorSpec]
) -> str:
    """Why the directory cannot be used; empty if it can."""
    try:
        manifest = safe_io.read_json(folder / _MANIFEST)
        previous = manifest["state"]
        changed = [name for name, value in state.items() if previous.get(name) != value]
        if changed:
            return f"because {changed[0]} changed"
        if manifest["files"] == {name: _checksum(folder / name) for name in specs}:
            return ""
    except FileNotFoundError:
        return "because it did not exist"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return "because it was damaged"


def _checksum(path: Path) -> list[int]:
    """Length and CRC-32 of a file; 3 GB/s if it is in the page cache."""
    length = 0
    checksum = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
            length += len(chunk)
    return [length, checksum]


def _build(
    folder: Path, state: Mapping[str, Any], names: list[str], batches: _Batches
) -> None:
    """Writes a new directory, which then replaces the old one."""
    temporary = temp_files.folder(folder.parent)
    try:
        for name in names:
            (temporary / name).touch()
        for batch in batches:
            for name in names:
                with (temporary / name).open("ab") as file:
                    file.write(batch[name].tobytes())
        checksums = {name: _checksum(temporary / name) for name in names}
        files.write_json(temporary / _MANIFEST, {"state": state, "files": checksums})
        if folder.exists():
            temp_files.remove(folder)
        files.publish_as(temporary, folder)
    except BaseException:
        temp_files.remove(temporary)
        raise
