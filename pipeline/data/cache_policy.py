"""Where decoded examples are kept, decided from their size and the free memory, with the reason."""

import hashlib
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from pipeline.config.config import Config, Data
from pipeline.contracts import Decision, Source, Task
from pipeline.data import disk_cache
from pipeline.data.example_store import decoded_specs
from pipeline.data.splits import Sampled
from pipeline.runtime import devices
from pipeline.utils.errors import UsageError

# Of the memory of a GPU; the network, its gradients and activations need the rest.
_SHARE_OF_DEVICE = 0.4
# Of what is free on the disk, without being asked.
_SHARE_OF_DISK = 0.5


def decided(source: Source, task: Task, options: Data) -> Decision:
    """`device`, `memory`, `disk` or `none`, and why.

    Raises UsageError for what was asked for and cannot be.
    """
    in_order = any(source.reader(split) is None for split in source.info.splits)
    keyed = source.fingerprint() is not None
    size = decoded_size(source, task)
    free, total = memory()
    sizes = f"{size / 1e6:,.1f} MB decoded, {free / 1e9:.0f} GB of memory free"
    anew = "each example is decoded in each epoch"
    anew += ", and shuffled among its neighbours, as it cannot be read by number" * in_order
    # Twice: TensorFlow copies each column once it is full.
    fits = 2 * size <= (free if options.cache == "auto" else total)
    if options.cache == "disk" and not keyed:
        raise UsageError(
            "--data.cache disk: this source cannot tell whether its data have changed; "
            "choose memory or none"
        )
    if options.cache in ("device", "memory") and not fits:
        raise UsageError(
            f"--data.cache {options.cache}: the decoded data need {size / 1e9:.1f} GB of "
            f"{total / 1e9:.1f} GB of memory; choose disk or none, a smaller --data.limit, or a "
            "smaller --data.image-size for images"
        )
    if options.cache != "auto":
        reason = f"asked for; {anew}" if options.cache == "none" else "asked for"
        return Decision("cache", options.cache, reason)
    room = devices.memory()
    if fits and room and size <= _SHARE_OF_DEVICE * room:
        return Decision("cache", "device", f"{sizes}, {room / 1e9:.0f} GB on each GPU")
    if fits:
        return Decision("cache", "memory", sizes)
    space = _disk_space(options.cache_folder)
    if keyed and size <= _SHARE_OF_DISK * space:
        return Decision("cache", "disk", f"{sizes}, {space / 1e9:,.0f} GB of disk")
    return Decision("cache", "none", f"{sizes}, {space / 1e9:,.0f} GB of disk; {anew}")


def place(
    config: Config, source: Source, task: Task, split: str, dropped: np.ndarray
) -> disk_cache.Place:
    """Where the disk cache keeps a split, and what makes that stale."""
    name = Path(config.source.title).stem
    whole = source.whole if isinstance(source, Sampled) else source
    kinds = [kind for part in (whole, task) for kind in type(part).__mro__[:-1]]
    own = _modules([sys.modules[kind.__module__] for kind in kinds])
    code = hashlib.sha256(tf.__version__.encode())
    for module in sorted(own, key=lambda module: module.__name__):
        if file := getattr(module, "__file__", None):
            code.update(Path(file).read_bytes())
        # And what runs: in a notebook a file may have changed since it was imported.
        code.update(_compiled(vars(module), module.__name__))
    options = {k: str(v) for k, v in config.source.options.items()}
    if config.source.path is not None:
        options["path"] = str(config.source.path.absolute())
    return disk_cache.Place(
        config.data.cache_folder,
        f"{name[:60]}-{split}",
        identity={
            "source": [config.source.name, options],
            "split": split,
            "limit": config.data.limit,
            "task": [config.task.name, dict(task.metadata)],
        },
        state={
            "the data": source.fingerprint(),
            "the code that decodes": code.hexdigest(),
            "what is left out": hashlib.sha256(np.sort(dropped).tobytes()).hexdigest(),
        },
    )


def _modules(found: Iterable[ModuleType]) -> set[ModuleType]:
    """These modules, and those of their packages that they use: all the code that decodes.

    Of this package only `data` and `tasks` decode.
    """
    queue, known = list(found), set()
    while queue:
        module = queue.pop()
        if module in known:
            continue
        known.add(module)
        top = module.__name__.partition(".")[0]
        packages = ("pipeline.data.", "pipeline.tasks.") if top == "pipeline" else (f"{top}.",)
        for member in vars(module).values():
            is_module = isinstance(member, ModuleType)
            name = member.__name__ if is_module else getattr(member, "__module__", None)
            if isinstance(name, str) and name.startswith(packages) and name in sys.modules:
                queue.append(sys.modules[name])
    return known


def _compiled(members: Mapping[str, Any], module: str, above: tuple[type, ...] = ()) -> bytes:
    """What the functions and classes of a module do; `above` are those whose members they are."""
    found = b""
    for name, member in sorted(members.items()):
        if getattr(member, "__module__", None) != module:
            continue
        within = isinstance(member, type) and member not in above  # one may name itself
        inner = _compiled(vars(member), module, (*above, member)) if within else b""
        function = getattr(member, "__wrapped__", member)
        found += name.encode() + inner + _code(getattr(function, "__code__", None))
    return found


def _code(code: CodeType | None) -> bytes:
    """The same in every process, unlike `marshal`, which depends on references."""
    if code is None:
        return b""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    constants = [repr(one) for one in code.co_consts if isinstance(one, int | float | str | bytes)]
    return code.co_code + repr((constants, code.co_names)).encode() + b"".join(map(_code, inner))


def decoded_size(source: Source, task: Task) -> int:
    """Bytes of all decoded examples of all splits."""
    each = sum(s.dtype.size * s.shape.num_elements() for s in decoded_specs(source, task).values())
    return each * sum(source.info.splits.values())


def memory() -> tuple[int, int]:
    """Bytes of memory that are free, and in all, to this process or its container."""
    host = psutil.virtual_memory()
    free, total = host.available, host.total
    try:  # control groups, version 2: a container dies beyond its own limit
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # none, or "max"
        return free, total
    return min(free, limit - used), min(total, limit)


def _disk_space(folder: Path) -> int:
    """Free bytes on the disk of a folder that need not be there yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
