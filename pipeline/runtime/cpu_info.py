"""What the CPU can do, and what TensorFlow should use of it."""

import contextlib
import os


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


def use_onednn() -> None:
    """Makes TensorFlow use oneDNN if the CPU has AVX2; called before TensorFlow is loaded.

    By itself, TensorFlow does so only on CPUs with, say, AVX-512 VNNI. On one without AVX-512,
    `convnet` trains 1.7 times as fast with oneDNN, and `lenet` 4 times.
    """
    if "avx2" in flags():
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
