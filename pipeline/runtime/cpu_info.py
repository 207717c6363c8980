"""What the CPU can do, and what TensorFlow should use of it."""

import contextlib
import os
from collections.abc import Iterator

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
BFLOAT16 = {"avx512_bf16", "amx_bf16"}  # the flags of CPUs with bfloat16 arithmetic


def cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def flags() -> set[str]:
    """The instruction sets of the CPU, as Linux names them; empty if unknown."""
    return set(value("flags").split())


def value(name: str) -> str:
    """A value in /proc/cpuinfo, of the first core."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith(name):
                return line.partition(": ")[2].strip()
    return ""


@contextlib.contextmanager
def onednn() -> Iterator[None]:
    """TensorFlow uses oneDNN if it is imported inside, unless the user has decided
    otherwise.

    By itself, it does so only on CPUs with, say, AVX-512 VNNI. On one with AVX2 but no
    AVX-512, `convnet` trains 1.7 times as fast with oneDNN, and `lenet` 4 times. Other
    processes do not inherit this: on that CPU, an exported model needs 14 ms for a
    single image, not 1.
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
