"""What the machine says of its GPUs without TensorFlow: are there any, their memory, what fails."""

import ctypes
import dataclasses
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

# Device nodes of the drivers: NVIDIA, the same under Windows' Linux, AMD.
_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_QUERY = (
    "nvidia-smi",
    "--query-gpu=uuid,memory.free,memory.total",
    "--format=csv,noheader,nounits",
)
_PATIENCE = 20  # seconds; a driver that has to wake up takes some

_DRIVER = Path("/proc/driver/nvidia/version")
# The driver's library, and those that TensorFlow 2.21 opens; folders of NVIDIA's wheels.
_LIBRARIES = {
    "libcuda.so.1": None,
    "libcudart.so.12": "cuda_runtime",
    "libcublas.so.12": "cublas",
    "libcufft.so.11": "cufft",
    "libcusolver.so.11": "cusolver",
    "libcusparse.so.12": "cusparse",
    "libcudnn.so.9": "cudnn",
    "libnccl.so.2": "nccl",
}
# https://docs.nvidia.com/deploy/cuda-compatibility/: the first driver of CUDA 12.
_OLDEST_DRIVER = 525


@dataclasses.dataclass(frozen=True)
class Memory:
    """Of one GPU."""

    uuid: str
    free: int
    """Bytes that no process uses."""
    total: int
    """Bytes."""


def none_here() -> str | None:
    """Why there can be no GPU, where that is plain already; None if there may be one."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "$CUDA_VISIBLE_DEVICES hides all of them"
    if sys.platform == "linux" and not any(os.path.exists(node) for node in _NODES):
        return "this machine has none, or its driver is not loaded"
    return None


def memory() -> list[Memory]:
    """Of the GPUs that this process may use, in their order; empty where nobody can tell."""
    try:
        process = subprocess.run(
            _QUERY, capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
        rows = [line.split(", ") for line in process.stdout.splitlines()]
        gpus = [Memory(uuid, int(free) << 20, int(total) << 20) for uuid, free, total in rows]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    # nvidia-smi counts by place in the machine; CUDA does so only if told, else by speed.
    in_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not in_order and len({gpu.total for gpu in gpus}) > 1:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    shown: list[Memory] = []
    for name in map(str.strip, visible.split(",")):
        if name.isdecimal():
            found = gpus[int(name) : int(name) + 1]
        else:
            found = [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
        if len(found) != 1:  # CUDA stops at the first that it does not know
            break
        shown += found
    return shown


def driver_version(driver: Path = _DRIVER) -> str | None:
    """The version of the NVIDIA driver; None if it is not loaded.

    Args:
        driver: The file in which the kernel module reports its version.
    """
    try:
        text = driver.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    numbers = [word for word in text.split() if word.count(".") >= 1 and word[0].isdecimal()]
    return numbers[0] if numbers else "unknown"


def missing_gpu(driver: Path = _DRIVER) -> str | None:
    """One line with the remedy for a GPU that cannot be used; None if there is no driver."""
    version = driver_version(driver)
    if version is None:
        return None
    found = f"the NVIDIA driver {version} is there"
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < _OLDEST_DRIVER:
        return f"{found}, but CUDA 12 needs {_OLDEST_DRIVER} or later: update the driver"
    missing = [name for name, folder in _LIBRARIES.items() if not _opens(name, folder)]
    if "libcuda.so.1" in missing:
        return f"{found}, but libcuda.so.1 cannot be opened: install the driver's user library"
    if missing:
        names = ", ".join(missing)
        return f"{found}, but {names} cannot be opened: pip install 'tensorflow[and-cuda]'"
    return f"{found} and its libraries open; look at `nvidia-smi` and $CUDA_VISIBLE_DEVICES"


def _opens(name: str, folder: str | None) -> bool:
    places = [name]
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        places += map(str, Path(root, folder or "", "lib").glob(name))
    for place in places:
        try:
            ctypes.CDLL(place)
            return True
        except OSError:
            continue
    return False
