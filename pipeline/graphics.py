"""Why TensorFlow sees no GPU although a driver is there: which library is missing or too old."""

import ctypes
import importlib.util
from pathlib import Path

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


def missing_gpu(driver: Path = _DRIVER) -> str | None:
    """One line saying what to do about a GPU that cannot be used; None where there is none.

    Args:
        driver: The file in which the kernel module says its version.
    """
    try:
        text = driver.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    numbers = [word for word in text.split() if word.count(".") >= 1 and word[0].isdecimal()]
    version = numbers[0] if numbers else "unknown"
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
    for root in spec.submodule_search_locations if spec and folder else ():
        places += map(str, Path(root, folder, "lib").glob(name))
    for place in places:
        try:
            ctypes.CDLL(place)
            return True
        except OSError:
            continue
    return False
