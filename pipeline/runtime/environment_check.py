"""Checks whether this machine can train and export: packages, CUDA, CPU, memory and
disk.

TensorFlow is imported in a separate process, so that a broken installation is reported
like everything else.
"""

import dataclasses
import itertools
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

from pipeline.runtime import cpu_info, gpu_info
from pipeline.utils.console import pluralize

_PYTHONS = ((3, 11), (3, 13))  # oldest and newest supported version
# Each of them installs the module `tensorflow`.
_TENSORFLOWS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-intel",
    "tf-nightly",
)
_ISA = ("avx", "avx2", "avx512f", "avx512_bf16", "amx_bf16")
_LEAST_MEMORY, _LEAST_DISK = 2 << 30, 1 << 30  # bytes
_NO_AVX = "use a CPU with AVX, which TensorFlow requires"
_TIMEOUT = 300  # seconds
_PROBE = """
import json, tensorflow as tf, keras
details = tf.config.experimental.get_device_details
gpus = [details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
unknown = {"device_name": "GPU", "compute_capability": (0, 0)}
gpus = [{**unknown, **gpu} for gpu in gpus]
print(json.dumps([[gpu[key] for key in unknown] for gpu in gpus]))
"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    name: str
    value: str
    status: str = "ok"
    """`ok`, `warning` (usable) or `error` (something required is broken)."""
    remedy: str = ""


def _judged(name: str, value: str, *problems: tuple[bool, str, str]) -> Finding:
    """The finding with status and remedy of the first problem that there is."""
    found = next((problem[1:] for problem in problems if problem[0]), ("ok", ""))
    return Finding(name, value, *found)


def check() -> Iterator[Finding]:
    """Yields all findings, in the order in which they are shown."""
    (oldest, newest), version = _PYTHONS, sys.version_info[:2]
    supported = f"install Python {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    wrong = not oldest <= version <= newest
    yield _judged("Python", platform.python_version(), (wrong, "error", supported))
    yield from _packages()
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "")
    if legacy.lower() not in ("", "0", "false"):
        # `import keras`, as here, is Keras 3 all the same.
        remedy = "unset it if your own code uses tf.keras, which it makes Keras 2"
        yield Finding("TF_USE_LEGACY_KERAS", legacy, "warning", remedy)
    yield from _tensorflow()
    yield from _machine()


def _packages() -> Iterator[Finding]:
    """Versions, several installed TensorFlows, and what the packages require of each
    other.
    """
    from packaging.requirements import Requirement

    found = {name: version for name in _TENSORFLOWS if (version := installed(name))}
    if len(found) > 1:
        names = ", ".join(f"{name} {version}" for name, version in found.items())
        remedy = f"pip uninstall {' '.join(found)}; then install only one of them"
        yield Finding("TensorFlow packages", names, "error", remedy)
    versions = {name: installed(name) for name in ("keras", "numpy")}
    versions = {"tensorflow": next(iter(found.values()), None), **versions}
    for name, version in versions.items():
        yield Finding(name, version or "not installed")
    for name in ("keras-savedmodel-pipeline", *found, "keras", "tensorflow-datasets"):
        for text in (metadata.requires(name) or ()) if installed(name) else ():
            needed = Requirement(text)
            version = versions.get(needed.name) or installed(needed.name)
            if needed.marker and not needed.marker.evaluate():
                continue
            if version is None or not needed.specifier.contains(
                version, prereleases=True
            ):
                value = (
                    f"{version or 'not installed'}, but {name} needs"
                    f" {needed.specifier or 'it'}"
                )
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
        yield Finding(
            "import tensorflow", f"no result in {_TIMEOUT} s", "error", remedy
        )
    except (ValueError, IndexError):
        value = (done.stderr.strip().splitlines() or ["no message"])[-1][:200]
        if done.returncode < 0:
            value = f"ended by {signal.Signals(-done.returncode).name}"
        reinstall = "pip install --force-reinstall 'tensorflow[and-cuda]' keras"
        remedy = _NO_AVX if done.returncode == -signal.SIGILL else reinstall
        yield Finding("import tensorflow", value, "error", remedy)
    else:
        yield Finding("import tensorflow", "works")
        yield from _gpus(seen)


def _gpus(gpus: list[tuple[str, tuple[int, int]]]) -> Iterator[Finding]:
    """The driver and libraries, which are required only if there is a driver, and the
    GPUs.
    """
    yield Finding("NVIDIA driver", gpu_info.driver_version() or "not found")
    yield Finding(
        "CUDA libraries", "missing" if gpu_info.missing_libraries() else "found"
    )
    if not gpus and (problem := gpu_info.missing_gpu()):
        yield Finding("GPU", "not used", "warning", problem)
    elif not gpus:
        yield Finding(
            "GPU", f"none, training uses the CPU: {gpu_info.none_here() or '-'}"
        )
    memory = gpu_info.memory(len(gpus))
    for number, (name, (major, minor)) in enumerate(gpus):
        value = f"{name}, compute capability {major}.{minor}"
        if memory:
            value += (
                f", {_gib(memory[number].free)} of {_gib(memory[number].total)} free"
            )
        yield Finding(f"GPU {number}", value)


def hardware() -> str:
    """The CPU and the memory of this machine, in one line."""
    return "; ".join(finding.value for finding in itertools.islice(_machine(), 2))


def _machine() -> Iterator[Finding]:
    """CPU, memory and disks."""
    import psutil

    flags = cpu_info.flags()
    known = [name for name in _ISA if name in flags]
    name = cpu_info.value("model name") or platform.machine()
    value = f"{name}, {pluralize(cpu_info.cores(), 'core')}; {', '.join(known)}"
    without = [name for name in ("avx", "avx2") if flags and name not in flags]
    slow = (
        "avx2" in without,
        "warning",
        "use a CPU with AVX2: training is slow without it",
    )
    yield _judged("CPU", value, ("avx" in without, "error", _NO_AVX), slow)
    memory = psutil.virtual_memory()
    value = f"{_gib(memory.available)} of {_gib(memory.total)} available"
    low = (
        memory.available < _LEAST_MEMORY,
        "warning",
        "close other programs; use --data.cache disk",
    )
    yield _judged("memory", value, low)
    datasets = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    for name, path, status in (
        ("current directory", Path.cwd(), "error"),
        ("temporary directory", Path(tempfile.gettempdir()), "error"),
        ("TFDS data directory", Path(datasets).expanduser(), "warning"),
    ):
        there = next(place for place in (path, *path.parents) if place.exists())
        free = shutil.disk_usage(there).free
        locked = not os.access(there, os.W_OK)
        closed = (locked, status, f"make {there} writable, or choose another one")
        full = (free < _LEAST_DISK, "warning", "free some disk space")
        yield _judged(name, f"{path}: {_gib(free)} free", closed, full)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
