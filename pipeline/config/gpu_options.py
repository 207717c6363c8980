"""What may be asked of GPUs: which, how much of their memory, and that there are any."""

import re

from pipeline.config.validation import require
from pipeline.utils.errors import UsageError

_UNITS = {"MIB": 2**20, "GIB": 2**30, "MB": 10**6, "GB": 10**9}


def numbers(devices: str) -> tuple[int, ...] | None:
    """`0,2` -> (0, 2); None for `auto` and `cpu`, which name no GPU."""
    if devices in ("auto", "cpu"):
        return None
    return tuple(int(number) for number in devices.split(","))


def amount(text: str) -> tuple[float, bool]:
    """`8GiB` -> (8589934592, False), bytes; `80%` -> (0.8, True), a share of the GPU's memory.

    Raises ValueError for what is neither, or none at all.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(%|[MG]i?B)", text.strip(), flags=re.IGNORECASE)
    if not found:
        raise ValueError(text)
    number, unit = float(found[1]), found[2].upper()
    value = number / 100 if unit == "%" else number * _UNITS[unit]
    if not (0 < value <= 1 if unit == "%" else 2**20 <= value < 2**50):
        raise ValueError(text)
    return value, unit == "%"


def check(devices: str, gpu_memory: str | None, require_gpu: bool, replicas: str | int) -> None:
    """Raises UsageError for values of these options of `--runtime` that mean nothing together."""
    named = re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", devices)
    known = (numbers(devices) or ()) if named else ()
    good = devices in ("auto", "cpu") or (bool(known) and len(set(known)) == len(known))
    meant = "auto, cpu, or different numbers such as 0,2"
    require(good, "--runtime.devices", repr(devices), meant)
    if known and replicas != "auto" and replicas > len(known):
        raise UsageError(
            f"--runtime.replicas {replicas} are more than the {len(known)} GPUs of "
            f"--runtime.devices {devices}"
        )
    if gpu_memory is not None:
        try:
            amount(gpu_memory)
        except ValueError:
            meant = "at least 1MiB, such as 8GiB, or a share such as 80%"
            require(False, "--runtime.gpu-memory", repr(gpu_memory), meant)
    for flag, given in (("require-gpu", require_gpu), ("gpu-memory", gpu_memory)):
        if devices == "cpu" and given:
            raise UsageError(f"--runtime.devices cpu and --runtime.{flag} exclude each other")
