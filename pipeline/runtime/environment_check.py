"""Checks whether this machine can train and export.

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
_MIN_MEMORY = 2 << 30  # bytes
_MIN_DISK = 1 << 30  # bytes
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


def _finding(name: str, value: str, *problems: tuple[bool, str, str]) -> Finding:
    """Returns a finding with status and remedy of the first problem that applies."""
    for applies, status, remedy in problems:
        if applies:
            return Finding(name, value, status, remedy)
    return Finding(name, value)


def check() -> Iterator[Finding]:
    """Yields all findings, in the order in which they are shown."""
    oldest, newest = _PYTHONS
    remedy = f"install Python {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    unsupported = not oldest <= sys.version_info[:2] <= newest
    yield _finding("Python", platform.python_version(), (unsupported, "error", remedy))
    yield from _packages()
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "")
    if legacy.lower() not in ("", "0", "false"):
        # `import keras`, as here, is Keras 3 all the same.
        remedy = "unset it if your own code uses tf.keras, which it makes Keras 2"
        yield Finding("TF_USE_LEGACY_KERAS", legacy, "warning", remedy)
    yield from _tensorflow()
    yield from _machine()


def _packages() -> Iterator[Finding]:
    """Checks the versions of the packages and their requirements."""
    from packaging.requirements import Requirement

    tensorflows = {}
    for name in _TENSORFLOWS:
        if version := installed_version(name):
            tensorflows[name] = version
    if len(tensorflows) > 1:
        names = ", ".join(f"{name} {version}" for name, version in tensorflows.items())
        remedy = f"pip uninstall {' '.join(tensorflows)}; then install only one of them"
        yield Finding("TensorFlow packages", names, "error", remedy)
    versions = {name: installed_version(name) for name in ("keras", "numpy")}
    versions = {"tensorflow": next(iter(tensorflows.values()), None), **versions}
    for name, version in versions.items():
        yield Finding(name, version or "not installed")
    for name in (
        "keras-savedmodel-pipeline",
        *tensorflows,
        "keras",
        "tensorflow-datasets",
    ):
        if installed_version(name) is None:
            continue
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate():
                continue
            package = requirement.name
            specifier = requirement.specifier
            version = versions.get(package) or installed_version(package)
            if version is None or not specifier.contains(version, prereleases=True):
                value = (
                    f"{version or 'not installed'}, but {name} needs"
                    f" {specifier or 'it'}"
                )
                remedy = f"pip install '{package}{specifier}'"
                yield Finding(package, value, "error", remedy)


def installed_version(name: str) -> str | None:
    """Returns the version of a distribution; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _tensorflow() -> Iterator[Finding]:
    """Checks whether TensorFlow can be imported, and which GPUs it sees."""
    # -P: a file such as tensorflow.py in the current directory is not imported.
    command = [sys.executable, "-P", "-c", _PROBE]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, env=environment
        )
        gpus = json.loads(process.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        remedy = "run `nvidia-smi`: the driver may be hanging"
        yield Finding(
            "import tensorflow", f"no result in {_TIMEOUT} s", "error", remedy
        )
    except (ValueError, IndexError):
        value = (process.stderr.strip().splitlines() or ["no message"])[-1][:200]
        if process.returncode < 0:
            value = f"ended by {signal.Signals(-process.returncode).name}"
        reinstall = "pip install --force-reinstall 'tensorflow[and-cuda]' keras"
        remedy = _NO_AVX if process.returncode == -signal.SIGILL else reinstall
        yield Finding("import tensorflow", value, "error", remedy)
    else:
        yield Finding("import tensorflow", "works")
        yield from _gpus(gpus)


def _gpus(gpus: list[tuple[str, tuple[int, int]]]) -> Iterator[Finding]:
    """Checks driver and libraries, required only if there is a driver, and the GPUs."""
    yield Finding("NVIDIA driver", gpu_info.driver_version() or "not found")
    libraries = "missing" if gpu_info.missing_libraries() else "found"
    yield Finding("CUDA libraries", libraries)
    if not gpus and (problem := gpu_info.missing_gpu()):
        yield Finding("GPU", "not used", "warning", problem)
    elif not gpus:
        reason = gpu_info.none_here() or "-"
        yield Finding("GPU", f"none, training uses the CPU: {reason}")
    memory = gpu_info.memory(len(gpus))
    for number, (name, (major, minor)) in enumerate(gpus):
        value = f"{name}, compute capability {major}.{minor}"
        if memory:
            free = _gib(memory[number].free)
            value += f", {free} of {_gib(memory[number].total)} free"
        yield Finding(f"GPU {number}", value)


def hardware() -> str:
    """Describes the CPU and the memory of this machine in one line."""
    return "; ".join(finding.value for finding in itertools.islice(_machine(), 2))


def _machine() -> Iterator[Finding]:
    """Checks CPU, memory and disks."""
    import psutil

    flags = cpu_info.flags()
    isa = ", ".join(name for name in _ISA if name in flags)
    name = cpu_info.value("model name") or platform.machine()
    value = f"{name}, {pluralize(cpu_info.cores(), 'core')}; {isa}"
    lacks_avx = bool(flags) and "avx" not in flags
    lacks_avx2 = bool(flags) and "avx2" not in flags
    remedy = "use a CPU with AVX2: training is slow without it"
    slow = (lacks_avx2, "warning", remedy)
    yield _finding("CPU", value, (lacks_avx, "error", _NO_AVX), slow)
    memory = psutil.virtual_memory()
    value = f"{_gib(memory.available)} of {_gib(memory.total)} available"
    remedy = "close other programs; use --data.cache disk"
    low = (memory.available < _MIN_MEMORY, "warning", remedy)
    yield _finding("memory", value, low)
    datasets = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    for name, path, status in (
        ("current directory", Path.cwd(), "error"),
        ("temporary directory", Path(tempfile.gettempdir()), "error"),
        ("TFDS data directory", Path(datasets).expanduser(), "warning"),
    ):
        ancestor = next(folder for folder in (path, *path.parents) if folder.exists())
        free = shutil.disk_usage(ancestor).free
        read_only = not os.access(ancestor, os.W_OK)
        remedy = f"make {ancestor} writable, or choose another one"
        closed = (read_only, status, remedy)
        full = (free < _MIN_DISK, "warning", "free some disk space")
        yield _finding(name, f"{path}: {_gib(free)} free", closed, full)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
