"""Information about the GPUs without TensorFlow: whether there are any, their memory, problems."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

# Device nodes of the drivers: NVIDIA, the same under Windows' Linux, AMD.
_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_QUERY = ("nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits")
_TIMEOUT = 20  # seconds; the driver may have to wake up

_DRIVER = Path("/proc/driver/nvidia/version")


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of a GPU."""

    free: int
    """Free bytes."""
    total: int
    """Bytes."""


def none_here() -> str | None:
    """Why there cannot be a GPU, as far as this is known without TensorFlow; None otherwise."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "$CUDA_VISIBLE_DEVICES hides all of them"
    if sys.platform == "linux" and not any(os.path.exists(node) for node in _NODES):
        return "this machine has none, or its driver is not loaded"
    return None


def memory() -> list[Memory]:
    """Memory of the visible GPUs, in order; empty if it is unknown."""
    try:
        process = subprocess.run(
            _QUERY, capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
        rows = [line.split(", ") for line in process.stdout.splitlines()]
        gpus = [Memory(int(free) << 20, int(total) << 20) for free, total in rows]
        by_number = {str(number): gpu for number, gpu in enumerate(gpus)}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        numbers = by_number if visible is None else visible.split(",")
        shown = [by_number[number.strip()] for number in numbers]
    except (OSError, ValueError, LookupError, subprocess.SubprocessError):
        return []
    # nvidia-smi numbers GPUs by bus, CUDA by speed unless this variable is set.
    in_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not in_order and len({gpu.total for gpu in gpus}) > 1:
        return []
    return shown


def missing_gpu(driver: Path = _DRIVER) -> str | None:
    """One line with the remedy for a GPU that cannot be used; None if there is no driver.

    Args:
        driver: The file in which the kernel module reports its version.
    """
    try:
        text = driver.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    version = next((w for w in text.split() if "." in w and w[0].isdecimal()), "unknown")
    # https://docs.nvidia.com/deploy/cuda-compatibility/: CUDA 12 needs the driver 525.
    return (
        f"the NVIDIA driver {version} is installed (525 or later is needed); "
        "pip install 'tensorflow[and-cuda]', and check `nvidia-smi` and $CUDA_VISIBLE_DEVICES"
    )
