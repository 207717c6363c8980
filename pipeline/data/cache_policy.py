"""Decides where decoded examples are kept, from their size and the free memory, with the reason."""

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import tensorflow as tf

from pipeline.config.config import Config, Data
from pipeline.contracts import Decision, Source, Task
from pipeline.data.example_store import decoded_specs, row_bytes
from pipeline.data.splits import Sampled
from pipeline.runtime import devices
from pipeline.utils.errors import UsageError

_PACKAGE = Path(__file__).parents[1]
_STARTED = time.time()
# Fraction of the memory of a GPU; the network, its gradients and activations need the rest.
_SHARE_OF_DEVICE = 0.4
# Fraction of the free disk space, unless the disk cache is requested.
_SHARE_OF_DISK = 0.5


def decided(source: Source, task: Task, options: Data) -> Decision:
    """The choice among `device`, `memory`, `disk` and `none`, with its reason.

    Raises UsageError if the requested cache is impossible.
    """
    keyed = source.fingerprint() is not None
    size = row_bytes(decoded_specs(source, task)) * sum(source.info.splits.values())
    free, total = memory()
    sizes = f"{size / 1e6:,.1f} MB decoded, {free / 1e9:.0f} GB of memory free"
    # Twice: TensorFlow copies each column once it is full.
    fits = 2 * size <= (free if options.cache == "auto" else total)
    if options.cache == "disk" and not keyed:
        raise UsageError(
            "--data.cache disk: this source cannot detect whether its data has changed; "
            "choose memory or none"
        )
    if options.cache in ("device", "memory") and not fits:
        raise UsageError(
            f"--data.cache {options.cache}: the decoded data needs {size / 1e9:.1f} GB of "
            f"{total / 1e9:.1f} GB of memory; choose disk or none, a smaller --data.limit, or a "
            "smaller --data.image-size for images"
        )
    if options.cache != "auto":
        return Decision("cache", options.cache, "requested")
    on_gpu = devices.memory()
    if fits and on_gpu and size <= _SHARE_OF_DEVICE * on_gpu:
        return Decision("cache", "device", f"{sizes}, {on_gpu / 1e9:.0f} GB on each GPU")
    if fits:
        return Decision("cache", "memory", sizes)
    folders = (options.cache_folder, *options.cache_folder.parents)
    space = shutil.disk_usage(next(path for path in folders if path.exists())).free
    sizes += f", {space / 1e9:,.0f} GB of disk"
    if keyed and size <= _SHARE_OF_DISK * space:
        return Decision("cache", "disk", sizes)
    return Decision("cache", "none", f"{sizes}; each example is decoded in each epoch")


def place(
    config: Config, source: Source, task: Task, split: str, dropped: np.ndarray
) -> tuple[Path, dict[str, str | None]]:
    """The directory in which the disk cache keeps a split, and what its content depends on."""
    options = {k: str(v) for k, v in config.source.options.items()}
    if config.source.path is not None:
        options["path"] = str(config.source.path.absolute())
    identity = [config.source.name, options, config.data.limit, config.task.name]
    text = json.dumps([*identity, dict(task.metadata)], sort_keys=True)
    name = f"{Path(config.source.title).stem[:60]}-{split}"
    folder = config.data.cache_folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return folder, {
        "the data": source.fingerprint(),
        "the decoding code": _code_digest(source, task),
        "the excluded examples": hashlib.sha256(np.sort(dropped).tobytes()).hexdigest(),
    }


def _code_digest(source: Source, task: Task) -> str:
    """A digest that changes if a file of the packages that define the source and task changes."""
    whole = source.whole if isinstance(source, Sampled) else source
    modules = {kind.__module__ for part in (whole, task) for kind in type(part).__mro__[:-1]}
    # In this package, only `data` and `tasks` contain decoding code.
    found = {*_PACKAGE.glob("data/**/*.py"), *_PACKAGE.glob("tasks/**/*.py")}
    code = hashlib.sha256(tf.__version__.encode())
    for name in sorted(modules):
        file = getattr(sys.modules[name], "__file__", None)
        if file is None:  # a cell of a notebook
            code.update(os.urandom(16))
        elif not name.startswith("pipeline."):
            found |= set(Path(file).parent.glob("**/*.py")) if "." in name else {Path(file)}
    for path in sorted(found):
        code.update(path.read_bytes())
        if path.stat().st_mtime > _STARTED:
            code.update(os.urandom(16))  # an older version of the file may be loaded
    return code.hexdigest()


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
