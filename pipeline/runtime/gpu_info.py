"""Information about the GPUs without TensorFlow: memory, driver, problems."""

import contextlib
import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# Device nodes of the drivers: NVIDIA, NVIDIA under WSL, AMD.
_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_QUERY = (
    "nvidia-smi",
    "--query-gpu=memory.free,memory.total,uuid",
    "--format=csv,noheader,nounits",
)
_TIMEOUT = 20  # seconds; the driver may have to wake up
_DRIVER = Path("/proc/driver/nvidia/version")
# The libraries of the driver and of TensorFlow 2.21.
_LIBRARIES = (
    "libcuda.so.1",
    "libcudart.so.12",
    "libcublas.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
    "libnccl.so.2",
)
# https://docs.nvidia.com/deploy/cuda-compatibility/: the first driver of CUDA 12.
_OLDEST_DRIVER = 525


class Memory(NamedTuple):
    """Free and total bytes of a GPU."""

    free: int
    total: int


def none_here() -> str | None:
    """Returns why there is no GPU; None if TensorFlow may see one."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "$CUDA_VISIBLE_DEVICES hides all of them"
    if sys.platform == "linux" and not any(os.path.exists(node) for node in _NODES):
        return "this machine has none, or its driver is not loaded"
    return None


def visible() -> list[str]:
    """The GPUs that a process may use, as in CUDA_VISIBLE_DEVICES; empty if there is
    none, or the driver does not tell.
    """
    if none_here() is not None:
        return []
    if chosen := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return chosen.split(",")
    try:
        process = subprocess.run(
            _QUERY, capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number in range(len(process.stdout.splitlines()))]


def memory(count: int) -> list[Memory]:
    """Returns the memory of the `count` GPUs of TensorFlow; empty if unknown."""
    try:
        process = subprocess.run(
            _QUERY, capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
        rows = [line.split(", ") for line in process.stdout.splitlines()]
        gpus = [Memory(int(free) << 20, int(total) << 20) for free, total, _ in rows]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        numbers = range(len(gpus)) if visible is None else map(int, visible.split(","))
        selected = [gpus[number] for number in numbers]
    except (OSError, ValueError, LookupError, subprocess.SubprocessError):
        return []
    # nvidia-smi numbers GPUs by bus, CUDA by speed unless this variable is set.
    in_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    in_order = in_order or len({gpu.total for gpu in gpus}) == 1
    return selected if in_order and len(selected) == count else []


def identifiers(count: int) -> list[str]:
    """Returns the UUIDs of the `count` GPUs of TensorFlow; empty if unknown.

    Numbers do not tell whether two processes use the same GPU: Slurm's control groups
    number the GPUs of each task from 0.
    """
    try:
        process = subprocess.run(
            _QUERY, capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
        uuids = [line.split(", ")[2] for line in process.stdout.splitlines()]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else map(str, range(len(uuids)))
        selected = [
            uuids[int(name)] if name.strip().isdecimal() else name.strip()
            for name in names
        ]
    except (OSError, ValueError, LookupError, subprocess.SubprocessError):
        return []
    return selected if len(selected) == count else []


def driver_version() -> str | None:
    """Returns the version of the NVIDIA driver; None if it is not loaded."""
    try:
        text = _DRIVER.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for word in text.split():
        if "." in word and word[0].isdecimal():
            return word
    return "unknown"


def missing_libraries() -> str | None:
    """Returns the libraries that cannot be opened, and the remedy; None if all can."""
    missing = [name for name in _LIBRARIES if not _opens(name)]
    if "libcuda.so.1" in missing:
        return "libcuda.so.1 cannot be opened: install the driver's user library"
    if missing:
        names = ", ".join(missing)
        return f"{names} cannot be opened: pip install 'tensorflow[and-cuda]'"
    return None


def missing_gpu() -> str | None:
    """Returns the remedy for a GPU that cannot be used; None without a driver."""
    version = driver_version()
    if version is None:
        return None
    driver = f"the NVIDIA driver {version} is installed"
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < _OLDEST_DRIVER:
        return (
            f"{driver}, but CUDA 12 needs {_OLDEST_DRIVER} or later: update the driver"
        )
    if problem := missing_libraries():
        return f"{driver}, but {problem}"
    return (
        f"{driver} and its libraries can be opened; check `nvidia-smi` and"
        " $CUDA_VISIBLE_DEVICES"
    )


def _opens(name: str) -> bool:
    """Whether a library is found by the linker or in NVIDIA's Python packages."""
    spec = importlib.util.find_spec("nvidia")
    paths = [name]
    for folder in (spec and spec.submodule_search_locations) or ():
        paths += map(str, Path(folder).glob(f"*/lib/{name}"))
    for path in paths:
        with contextlib.suppress(OSError):
            ctypes.CDLL(path)
            return True
    return False
