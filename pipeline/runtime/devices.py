"""Which GPUs this process takes, and how much of their memory: settled before it computes."""

from typing import Any

import tensorflow as tf

from pipeline.config import config
from pipeline.config.formats import parse_devices, parse_memory
from pipeline.runtime import gpu_info
from pipeline.utils.errors import UsageError

_TOO_LATE = "start a new process (in a notebook: restart the kernel)"


def claim(options: config.Runtime) -> str:
    """Shows TensorFlow the GPUs that the run may use and limits their memory.

    Without `gpu_memory` a GPU's memory is taken as it is needed and not all at once: TensorFlow
    allows one of both, and memory growth only for all GPUs alike (tensorflow#38367).

    Args:
        options: `devices`, `replicas`, `gpu_memory` and `require_gpu` are used.

    Returns:
        How the GPUs were chosen, where there was a choice; else an empty text.

    Raises:
        UsageError: They are not there, or this process has begun to compute under other limits.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if options.require_gpu and not gpus:
        why = gpu_info.missing_gpu() or "nvidia-smi shows those that a driver sees"
        raise UsageError(f"--runtime.require-gpu: TensorFlow sees no GPU; {why}")
    chosen, reason = _chosen(options, gpus)
    if set(chosen) != set(tf.config.get_visible_devices("GPU")):
        try:
            tf.config.set_visible_devices(chosen, "GPU")
        except RuntimeError:
            chosen, reason = _as_begun(options), "as this process began"
    if options.gpu_memory is None:
        _let_grow(chosen)
    else:
        _limit(options, gpus, chosen)
    return reason


def memory() -> int:
    """Bytes that the run may use on the smallest of its GPUs; 0 without one, or if nobody can tell.

    Not asked of TensorFlow: its list of devices with their memory begins to use all GPUs of the
    machine, the hidden ones too, and knows of no limit.
    """
    gpus = tf.config.get_visible_devices("GPU")
    limits = [tf.config.get_logical_device_configuration(gpu) for gpu in gpus]
    if gpus and all(limits):
        return min(limit[0].memory_limit for limit in limits) * 2**20
    there, known = tf.config.list_physical_devices("GPU"), gpu_info.memory() if gpus else []
    if not gpus or len(known) != len(there):
        return 0
    return min(known[there.index(gpu)].free for gpu in gpus)


def _chosen(options: config.Runtime, gpus: list[Any]) -> tuple[list[Any], str]:
    """The GPUs to be used, in TensorFlow's order, and why these."""
    if options.devices == "cpu" or (not gpus and options.devices == "auto"):
        return [], "asked for" if gpus else ""
    numbers = parse_devices(options.devices)
    if numbers is None:
        numbers = tuple(range(len(gpus)))
    elif max(numbers) >= len(gpus):
        there = f"TensorFlow sees {len(gpus)} GPUs" if gpus else "TensorFlow sees no GPU"
        raise UsageError(f"--runtime.devices {options.devices}: {there}; they count from 0")
    wanted = len(numbers) if options.replicas == "auto" else options.replicas
    if wanted > len(numbers):
        raise UsageError(f"--runtime.replicas {wanted}: TensorFlow sees {len(gpus)} GPUs")
    reason = "" if options.devices == "auto" else "asked for"
    if wanted < len(numbers):
        memory = gpu_info.memory()
        if len(memory) == len(gpus):
            numbers = sorted(numbers, key=lambda number: -memory[number].free)[:wanted]
            free = ", ".join(f"{memory[number].free / 2**30:.1f} GiB" for number in numbers)
            reason = f"the freest, {free} free"
        else:
            numbers, reason = numbers[:wanted], "nvidia-smi does not say which is the freest"
    if 0 < len(numbers) < len(gpus):
        names = ", ".join(map(str, sorted(numbers)))
        reason = f"number {names}, {reason}" if reason else f"number {names}"
    return [gpus[number] for number in sorted(numbers)], reason


def _as_begun(options: config.Runtime) -> list[Any]:
    """The GPUs that this process has begun with, if they will do."""
    there = tf.config.get_visible_devices("GPU")
    wanted = 1 if options.replicas == "auto" else options.replicas
    if options.devices == "auto" and len(there) >= wanted:
        return there
    flag, value = "devices", options.devices
    if options.devices == "auto" and options.replicas != "auto":
        flag, value = "replicas", options.replicas
    raise UsageError(
        f"--runtime.{flag} {value}: this process has begun to compute on "
        f"{len(there)} GPUs, which cannot be changed any more; {_TOO_LATE}"
    )


def _let_grow(gpus: list[Any]) -> None:
    for gpu in gpus:
        if tf.config.get_logical_device_configuration(gpu):
            continue  # an earlier run of this process has set a limit, which excludes growth
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except RuntimeError:  # it has begun to compute; whoever did so has decided
            return


def _limit(options: config.Runtime, gpus: list[Any], chosen: list[Any]) -> None:
    flag = f"--runtime.gpu-memory {options.gpu_memory}"
    amount, is_share = parse_memory(options.gpu_memory)
    memory = gpu_info.memory() if chosen else []
    if chosen and is_share and len(memory) != len(gpus):
        raise UsageError(
            f"{flag}: nvidia-smi, which knows the size of a GPU, does not answer; "
            "give an amount, such as 8GiB"
        )
    for gpu in chosen:
        size = int(amount)
        if len(memory) == len(gpus):
            total = memory[gpus.index(gpu)].total
            size = int(amount * total) if is_share else size
            if size > total:
                number, there = gpus.index(gpu), total / 2**30
                raise UsageError(f"{flag}: GPU {number} has {there:.1f} GiB; give less")
        # TensorFlow counts in MiB, though it says MB.
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=size // 2**20)
        try:
            tf.config.set_logical_device_configuration(gpu, [limit])
        except RuntimeError:
            raise UsageError(
                f"{flag}: this process has begun to compute under another limit; {_TOO_LATE}"
            ) from None
