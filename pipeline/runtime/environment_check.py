"""Checks whether this machine can train and export: packages, devices, memory and disk.

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
from pathlib import Path

from pipeline.runtime import gpu_info

PYTHONS = ((3, 11), (3, 13))
"""Oldest and newest supported version."""
PACKAGES = {"tensorflow": ">=2.21,<2.22", "keras": ">=3.15.1,<4"}
"""Supported versions; setup.cfg has the same."""
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
    """All findings, in the order in which they are shown."""
    yield _python()
    yield from _packages()
    yield from _tensorflow()
    yield _memory()
    yield from _disks()


def _python() -> Finding:
    version, (oldest, newest) = sys.version_info[:2], PYTHONS
    if oldest <= version <= newest:
        return Finding("Python", platform.python_version())
    supported = " to ".join(".".join(map(str, numbers)) for numbers in PYTHONS)
    return Finding("Python", platform.python_version(), "error", f"install Python {supported}")


def _packages() -> Iterator[Finding]:
    from packaging.specifiers import SpecifierSet

    for name, supported in PACKAGES.items():
        version = _version(name)
        if version and SpecifierSet(supported).contains(version, prereleases=True):
            yield Finding(name, version)
        else:
            remedy = f"pip install '{name}{supported}'"
            yield Finding(name, version or "not installed", "error", remedy)


def _version(name: str) -> str | None:
    names = (name, "tensorflow-cpu") if name == "tensorflow" else (name,)
    for distribution in names:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _tensorflow() -> Iterator[Finding]:
    """Whether TensorFlow can be imported, and the GPUs it sees."""
    # -P: a file such as tensorflow.py in the current directory is not imported.
    command = [sys.executable, "-P", "-c", _PROBE]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    reinstall = "pip install --force-reinstall 'tensorflow[and-cuda]{tensorflow}' 'keras{keras}'"
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
        value, remedy = (done.stderr.strip().splitlines() or ["no message"])[-1], reinstall
        if done.returncode == -signal.SIGILL:
            value, remedy = "ended by SIGILL", "use a CPU with AVX, which TensorFlow requires"
        yield Finding("import tensorflow", value[:200], "error", remedy.format(**PACKAGES))
        return
    yield Finding("import tensorflow", "works")
    yield from _gpus(seen)


def _gpus(gpus: list[tuple[str, tuple[int, int]]]) -> Iterator[Finding]:
    if not gpus and (problem := gpu_info.missing_gpu()):
        yield Finding("GPU", "not used", "warning", problem)
    elif not gpus:
        yield Finding("GPU", f"none, training uses the CPU: {gpu_info.none_here() or '-'}")
    for number, (name, (major, minor)) in enumerate(gpus):
        yield Finding(f"GPU {number}", f"{name}, compute capability {major}.{minor}")


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    value = f"{_gib(memory.available)} of {_gib(memory.total)} available"
    if memory.available < _LEAST_MEMORY:
        return Finding("memory", value, "warning", "close other programs; use --data.cache disk")
    return Finding("memory", value)


def _disks() -> Iterator[Finding]:
    directories = {"current": Path.cwd(), "temporary": Path(tempfile.gettempdir())}
    for kind, path in directories.items():
        free = shutil.disk_usage(path).free
        name, value = f"{kind} directory", f"{path}: {_gib(free)} free"
        if not os.access(path, os.W_OK):
            yield Finding(name, value, "error", "make it writable, or choose another one")
        elif free < _LEAST_DISK:
            yield Finding(name, value, "warning", "free some disk space")
        else:
            yield Finding(name, value)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
