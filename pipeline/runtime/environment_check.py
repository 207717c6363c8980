"""Checks whether this machine can train and export: packages, GPUs, CPU, memory and disk.

TensorFlow is imported in a separate process, so that a broken installation is reported like
everything else.
"""

import dataclasses
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata

from pipeline.runtime import gpu_info

_SHOWN = ("tensorflow", "keras", "numpy")
_ISA = ("avx", "avx2", "avx512f", "avx512_bf16", "amx_bf16")
_LEAST_MEMORY, _LEAST_DISK = 2 << 30, 1 << 30  # bytes
_TIMEOUT = 300  # seconds
_PROBE = """
import json, tensorflow as tf, keras
gpus = tf.config.list_physical_devices("GPU")
details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
names = [[d.get("device_name", "GPU"), d.get("compute_capability", (0, 0))] for d in details]
print(json.dumps(names))
"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    name: str
    value: str
    status: str = "ok"
    """`ok`, `warning` (usable) or `error` (something required is broken)."""
    remedy: str = ""


def check() -> Iterator[Finding]:
    """Yields all findings, in the order in which they are shown."""
    yield Finding("Python", platform.python_version())
    yield from _packages()
    yield from _tensorflow()
    yield _cpu()
    yield _memory()
    yield from _disks()


def _packages() -> Iterator[Finding]:
    """Versions, and what this package, TensorFlow and Keras require but do not find."""
    from packaging.requirements import Requirement

    for name in _SHOWN:
        yield Finding(name, installed(name) or "not installed")
    for name in ("keras-savedmodel-pipeline", *_SHOWN):
        for text in (metadata.requires(name) or ()) if installed(name) else ():
            needed = Requirement(text)
            version = installed(needed.name)
            if needed.marker and not needed.marker.evaluate():
                continue
            if version is None or not needed.specifier.contains(version, prereleases=True):
                value = f"{version or 'not installed'}, but {name} needs {needed.specifier or 'it'}"
                remedy = f"pip install '{needed.name}{needed.specifier}'"
                yield Finding(needed.name, value, "error", remedy)


def installed(name: str) -> str | None:
    """The version of an installed distribution; None if there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _tensorflow() -> Iterator[Finding]:
    """Whether TensorFlow can be imported, and the GPUs it sees."""
    # -P: a file such as tensorflow.py in the current directory is not imported.
    command = [sys.executable, "-P", "-c", _PROBE]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, env=environment
        )
        seen = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        remedy = "run `nvidia-smi`: the driver may be hanging"
        yield Finding("import tensorflow", f"no result in {_TIMEOUT} s", "error", remedy)
        return
    except (ValueError, IndexError):
        value = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if done.returncode < 0:
            value = f"ended by {signal.Signals(-done.returncode).name}"
        remedy = "pip install --force-reinstall 'tensorflow[and-cuda]' keras"
        yield Finding("import tensorflow", value[:200], "error", remedy)
        return
    yield Finding("import tensorflow", "works")
    yield from _gpus(seen)


def _gpus(gpus: list[tuple[str, tuple[int, int]]]) -> Iterator[Finding]:
    """The GPUs, and why there are none although there is a driver."""
    yield Finding("NVIDIA driver", gpu_info.driver_version() or "not found")
    if not gpus and (problem := gpu_info.missing_gpu()):
        yield Finding("GPU", "not used", "warning", problem)
    elif not gpus:
        yield Finding("GPU", f"none, training uses the CPU: {gpu_info.none_here() or '-'}")
    memory = gpu_info.memory(len(gpus))
    for number, (name, (major, minor)) in enumerate(gpus):
        value = f"{name}, compute capability {major}.{minor}"
        if memory:
            value += f", {_gib(memory[number].free)} of {_gib(memory[number].total)} free"
        yield Finding(f"GPU {number}", value)


def cpu_flags() -> set[str]:
    """The instruction sets of the CPU, as Linux names them; empty if unknown."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return set(next(line for line in file if line.startswith("flags")).split())
    except (OSError, StopIteration):
        return set()


def _cpu() -> Finding:
    flags = cpu_flags()
    known = [name for name in _ISA if name in flags]
    value = f"{os.cpu_count()} cores; {', '.join(known) or platform.machine()}"
    if flags and "avx" not in flags:
        return Finding("CPU", value, "error", "use a CPU with AVX, which TensorFlow requires")
    return Finding("CPU", value)


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    value = f"{_gib(memory.available)} of {_gib(memory.total)} available"
    if memory.available < _LEAST_MEMORY:
        return Finding("memory", value, "warning", "close other programs; use --data.cache disk")
    return Finding("memory", value)


def _disks() -> Iterator[Finding]:
    places = {"current directory": os.getcwd(), "temporary directory": tempfile.gettempdir()}
    for name, path in places.items():
        free = shutil.disk_usage(path).free
        value = f"{path}: {_gib(free)} free"
        if not os.access(path, os.W_OK):
            yield Finding(name, value, "error", "make it writable, or choose another one")
        elif free < _LEAST_DISK:
            yield Finding(name, value, "warning", "free some disk space")
        else:
            yield Finding(name, value)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
