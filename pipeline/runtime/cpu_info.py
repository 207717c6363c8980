"""Cores and instruction sets of the CPU, and oneDNN."""

import contextlib
import os
from collections.abc import Iterator

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
BFLOAT16 = {"avx512_bf16", "amx_bf16"}  # the flags of CPUs with bfloat16 arithmetic


def cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def flags() -> set[str]:
    """Returns the instruction sets of the CPU, as Linux names them."""
    return set(value("flags").split())


def value(name: str) -> str:
    """Returns a value in /proc/cpuinfo, of the first core; empty if there is none."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith(name):
                return line.partition(": ")[2].strip()
    return ""


@contextlib.contextmanager
def onednn() -> Iterator[None]:
    """Enables oneDNN if TensorFlow is imported inside, unless the user has set it.

    By default, TensorFlow uses it only on CPUs with, say, AVX-512 VNNI. On a CPU with
    AVX2 but no AVX-512, `convnet` trains 1.7 times as fast with oneDNN, and `lenet` 4
    times. Other processes do not inherit this: on that CPU, an exported model would
    need 14 ms for a single image instead of 1.
    """
    is_ours = _ONEDNN not in os.environ and "avx2" in flags()
    if is_ours:
        os.environ[_ONEDNN] = "1"
    try:
        yield
    finally:
        if is_ours:
            del os.environ[_ONEDNN]


def has_onednn() -> bool:
    """Whether TensorFlow uses oneDNN in this process."""
    from tensorflow.python.util import _pywrap_util_port

    return _pywrap_util_port.IsMklEnabled()
