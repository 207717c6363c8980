"""Where decoded examples are kept: chosen by their size and the free memory; on disk,
verified.
"""

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

from pipeline.config.config import Config, DataConfig
from pipeline.contracts import Decision, Example, Source, Task
from pipeline.data.example_store import DIGEST, Store, decoded_specs, row_bytes
from pipeline.data.splits import Sampled
from pipeline.runtime import devices
from pipeline.utils import files, locks, safe_io, temp_files
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import is_short

_PACKAGE = Path(__file__).parents[1]
_STARTED = time.time()
# Fraction of the memory of a GPU; the network, its gradients and activations need the
# rest.
_SHARE_OF_DEVICE = 0.4
# Fraction of the free disk space, unless the disk cache is requested.
_SHARE_OF_DISK = 0.5
_CHUNK = 8 << 20  # bytes
_MANIFEST = "manifest.json"
_Batches = Iterable[Mapping[str, np.ndarray]]


def decided(source: Source, task: Task, options: DataConfig) -> Decision:
    """The choice among `device`, `memory`, `disk` and `none`, with its reason.

    Raises UsageError if the requested cache is impossible.
    """
    keyed = source.fingerprint() is not None
    specs = decoded_specs(source, task)
    size = row_bytes(specs) * sum(source.info.splits.values())
    strings = [name for name, spec in specs.items() if spec.dtype == tf.string]
    if options.cache == "disk" and strings:
        raise UsageError(
            f"--data.cache disk: the decoded field {strings[0]!r} has strings, which"
            " differ in length; choose memory or none"
        )
    free, total = memory()
    sizes = f"{size / 1e6:,.1f} MB decoded, {free / 1e9:.0f} GB of memory free"
    # Twice: TensorFlow copies each column once it is full.
    fits = 2 * size <= (free if options.cache == "auto" else total)
    if options.cache == "disk" and not keyed:
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
    on_gpu = devices.memory()
    if fits and on_gpu and size <= _SHARE_OF_DEVICE * on_gpu:
        return Decision(
            "cache", "device", f"{sizes}, {on_gpu / 1e9:.0f} GB on each GPU"
        )
    if fits:
        return Decision("cache", "memory", sizes)
    folders = (options.cache_folder, *options.cache_folder.parents)
    space = shutil.disk_usage(next(path for path in folders if path.exists())).free
    sizes += f", {space / 1e9:,.0f} GB of disk"
    if keyed and not strings and size <= _SHARE_OF_DISK * space:
        return Decision("cache", "disk", sizes)
    return Decision("cache", "none", f"{sizes}; each example is decoded in each epoch")


def place(
    config: Config, source: Source, task: Task, split: str, dropped: np.ndarray
) -> tuple[Path, dict[str, str | None]]:
    """The directory in which the disk cache keeps a split, and what its content depends
    on.
    """
    options = {k: str(v) for k, v in config.source.options.items()}
    if config.source.path is not None:
        options["path"] = str(config.source.path.absolute())
    identity = [config.source.name, options, config.data.limit, config.task.name]
    text = json.dumps([*identity, dict(task.metadata)], sort_keys=True)
    name = f"{Path(config.source.title).stem[:60]}-{split}"
    folder = (
        config.data.cache_folder
        / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    )
    return folder, {
        "the data": source.fingerprint(),
        "the decoding code": _code_digest(source, task),
        "the excluded examples": hashlib.sha256(np.sort(dropped).tobytes()).hexdigest(),
    }


def _code_digest(source: Source, task: Task) -> str:
    """A digest that changes if a file of the packages that define the source and task
    changes.
    """
    whole = source.whole if isinstance(source, Sampled) else source
    modules = {
        kind.__module__ for part in (whole, task) for kind in type(part).__mro__[:-1]
    }
    # In this package, only `data` and `tasks` contain decoding code.
    found = {*_PACKAGE.glob("data/**/*.py"), *_PACKAGE.glob("tasks/**/*.py")}
    code = hashlib.sha256(tf.__version__.encode())
    for name in sorted(modules):
        if name.startswith("pipeline."):
            continue
        paths = _files_of(name)
        if not paths:  # a cell of a notebook
            code.update(os.urandom(16))
        for path in paths:
            found |= set(path.parent.glob("**/*.py")) if "." in name else {path}
    for path in sorted(found):
        code.update(path.read_bytes())
        if path.stat().st_mtime > _STARTED:
            code.update(os.urandom(16))  # an older version of the file may be loaded
    return code.hexdigest()


def _files_of(name: str) -> list[Path]:
    """The files of the modules with this name: that of Python, and those from
    `file.py:function`, which `registry` keeps by their path.
    """
    modules = [
        module
        for key, module in sys.modules.items()
        if key == name or (key.endswith(".py") and module.__name__ == name)
    ]
    return [
        Path(file) for module in modules if (file := getattr(module, "__file__", None))
    ]


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
    """In a directory: one file per field, which contains all rows; short fields are
    also in memory.

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
                # Open as long as the store exists, even if another run replaces the
                # directory.
                self._files[name] = os.open(folder / name, os.O_RDONLY)
                weakref.finalize(self, os.close, self._files[name])
        digest = short.pop(DIGEST, None)
        super().__init__({n: s for n, s in specs.items() if n != DIGEST}, short, digest)

    def gather(self, rows: tf.Tensor) -> Example:
        types = [spec.dtype for spec in self.specs.values()]
        found = tf.numpy_function(
            lambda rows: [*self.take(rows).values()], [rows], types
        )
        fields = zip(self.specs.items(), found, strict=True)
        return {
            n: tf.ensure_shape(v, (*rows.shape, *spec.shape)) for (n, spec), v in fields
        }

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        rows = np.asarray(rows)
        try:
            read = {name: self._read(name, rows) for name in self._files}
        except OSError as error:
            raise UsageError(
                f"--data.cache disk: {error}; run again to rebuild it"
            ) from None
        return {
            name: read[name] if name in read else self.short[name][rows]
            for name in self.specs
        }

    def _read(self, name: str, rows: np.ndarray) -> np.ndarray:
        spec = self.specs[name]
        each = row_bytes({name: spec})
        values = np.empty((len(rows), each), np.uint8)
        # Reads consecutive rows in one call, because evaluation reads in order.
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            part = values[start:end].reshape(-1).data
            if os.preadv(self._files[name], [part], int(rows[start]) * each) != len(
                part
            ):
                raise OSError(f"the file of {name!r} was truncated while it was in use")
        return values.view(spec.dtype.as_numpy_dtype).reshape(-1, *spec.shape)


def obtained(
    folder: Path,
    state: Mapping[str, Any],
    specs: Mapping[str, tf.TensorSpec],
    batches: _Batches,
) -> tuple[Disk, str]:
    """The store in a directory, built from `batches` unless it is intact; and which of
    the two.

    If `state` (JSON) has changed, the directory is rebuilt. The keys of `state` appear
    in messages.
    """
    try:
        lock = folder.with_name(f"{folder.name}.lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        with locks.in_turn(
            lock, f"waiting for another process to build or verify {folder}"
        ):
            temp_files.sweep(folder.parent)
            wrong = _wrong(folder, state, specs)
            if wrong:
                _build(folder, state, list(specs), batches)
            return Disk(folder, specs), (
                f"built, {wrong}" if wrong else "found and verified"
            )
    except OSError as error:
        raise UsageError(
            f"--data.cache disk: cannot write {folder}: {error.strerror or error}; "
            "choose another --data.cache-directory, or another --data.cache"
        ) from None


def _wrong(
    folder: Path, state: Mapping[str, Any], specs: Mapping[str, tf.TensorSpec]
) -> str:
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
        sums = {name: _checksum(temporary / name) for name in names}
        files.write_json(temporary / _MANIFEST, {"state": state, "files": sums})
        if folder.exists():
            temp_files.remove(folder)
        files.publish_as(temporary, folder)
    except BaseException:
        temp_files.remove(temporary)
        raise
