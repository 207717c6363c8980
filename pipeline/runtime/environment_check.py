"""Checks whether this machine can train and export: packages, CUDA, CPU, memory and disk.

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
# Each of them installs the module `tensorflow`.
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tf-nightly")
_ISA = ("avx", "avx2", "avx512f", "avx512_bf16", "amx_bf16")
_LEAST_MEMORY, _LEAST_DISK = 2 << 30, 1 << 30  # bytes
_NO_AVX = "use a CPU with AVX, which TensorFlow requires"
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
    yield _python()
    yield from _packages()
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "")
    if legacy.lower() not in ("", "0", "false"):
        remedy = "unset TF_USE_LEGACY_KERAS: models would be built with Keras 2"
        yield Finding("TF_USE_LEGACY_KERAS", legacy, "error", remedy)
    yield from _tensorflow()
    yield _cpu()
    yield _memory()
    yield from _disks()


def _python() -> Finding:
    version, (oldest, newest) = sys.version_info[:2], PYTHONS
    if oldest <= version <= newest:
        return Finding("Python", platform.python_version())
    supported = " to ".join(".".join(map(str, numbers)) for numbers in PYTHONS)
    return Finding("Python", platform.python_version(), "error", f"install Python {supported}")


def _packages() -> Iterator[Finding]:
    """Versions, several installed TensorFlows, and what the packages require of each other."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    found = {name: version for name in _TENSORFLOWS if (version := installed(name))}
    if len(found) > 1:
        names = ", ".join(f"{name} {version}" for name, version in found.items())
        remedy = f"pip uninstall {' '.join(found)}; then install only one of them"
        yield Finding("TensorFlow packages", names, "error", remedy)
    for name, supported in PACKAGES.items():
        version = next(iter(found.values()), None) if name == "tensorflow" else installed(name)
        if version and SpecifierSet(supported).contains(version, prereleases=True):
            yield Finding(name, version)
        else:
            remedy = f"pip install '{name}{supported}'"
            yield Finding(name, version or "not installed", "error", remedy)
    yield Finding("numpy", installed("numpy") or "not installed")
    for name in ("keras-savedmodel-pipeline", *found, "keras", "tensorflow-datasets"):
        for text in (metadata.requires(name) or ()) if installed(name) else ():
            needed = Requirement(text)
            if needed.name in PACKAGES or (needed.marker and not needed.marker.evaluate()):
                continue
            version = installed(needed.name)
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
        if done.returncode < 0:
            value = f"ended by {signal.Signals(-done.returncode).name}"
        if done.returncode == -signal.SIGILL:
            remedy = _NO_AVX
        yield Finding("import tensorflow", value[:200], "error", remedy.format(**PACKAGES))
        return
    yield Finding("import tensorflow", "works")
    yield from _gpus(seen)


def _gpus(gpus: list[tuple[str, tuple[int, int]]]) -> Iterator[Finding]:
    """The driver and libraries, which are required only if there is a driver, and the GPUs."""
    yield Finding("NVIDIA driver", gpu_info.driver_version() or "not found")
    yield Finding("CUDA libraries", "missing" if gpu_info.missing_libraries() else "found")
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
        return Finding("CPU", value, "error", _NO_AVX)
    if flags and "avx2" not in flags:
        return Finding("CPU", value, "warning", "use a CPU with AVX2: training is slow without it")
    return Finding("CPU", value)


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    value = f"{_gib(memory.available)} of {_gib(memory.total)} available"
    if memory.available < _LEAST_MEMORY:
        return Finding("memory", value, "warning", "close other programs; use --data.cache disk")
    return Finding("memory", value)


def _disks() -> Iterator[Finding]:
    default = "~/tensorflow_datasets"
    places = {
        "current directory": Path.cwd(),
        "temporary directory": Path(tempfile.gettempdir()),
        "TFDS data directory": Path(os.environ.get("TFDS_DATA_DIR", default)).expanduser(),
    }
    for name, path in places.items():
        existing = next(place for place in (path, *path.parents) if place.exists())
        free = shutil.disk_usage(existing).free
        value = f"{path}: {_gib(free)} free"
        if not os.access(existing, os.W_OK):
            status = "warning" if name.startswith("TFDS") else "error"
            yield Finding(name, value, status, f"make {existing} writable, or choose another one")
        elif free < _LEAST_DISK:
            yield Finding(name, value, "warning", "free some disk space")
        else:
            yield Finding(name, value)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
