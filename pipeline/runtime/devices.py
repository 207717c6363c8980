"""The GPUs of this process and their memory, and the distribution strategy on its
devices.
"""

import contextlib
import functools
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pipeline.config import config
from pipeline.config.formats import parse_devices, parse_memory
from pipeline.contracts import Decision
from pipeline.runtime import gpu_info, signals
from pipeline.runtime.cluster import Cluster
from pipeline.runtime.cpu_info import cores
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError

_TOO_LATE = "start a new process (in a notebook: restart the kernel)"


def claim(options: config.RuntimeConfig) -> None:
    """Makes the GPUs of the run visible to TensorFlow and limits their memory.

    Without `gpu_memory`, memory growth is enabled. TensorFlow allows only one of the
    two, and growth only for all GPUs at once (tensorflow#38367). Raises UsageError if
    the GPUs do not exist, or this process already uses others or other limits.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if options.require_gpu and not gpus:
        why = gpu_info.missing_gpu() or "check `nvidia-smi`"
        raise UsageError(f"--runtime.require-gpu: TensorFlow sees no GPU; {why}")
    chosen = _chosen(options, gpus)
    if set(chosen) != set(tf.config.get_visible_devices("GPU")):
        try:
            tf.config.set_visible_devices(chosen, "GPU")
        except RuntimeError:  # TensorFlow has already initialized its devices
            chosen = tf.config.get_visible_devices("GPU")
            wanted = 1 if options.replicas == "auto" else options.replicas
            if options.devices != "auto" or len(chosen) < wanted:
                raise UsageError(
                    f"--runtime.devices {options.devices}: this process already uses "
                    f"{len(chosen)} GPUs; {_TOO_LATE}"
                ) from None
    if options.gpu_memory is None:
        _let_grow(chosen)
    else:
        _limit(options.gpu_memory, gpus, chosen)


def memory() -> int:
    """Bytes that the run may use on the smallest of its GPUs; 0 without a GPU, or if
    unknown.

    TensorFlow's own list of devices with their memory would initialize all GPUs, even
    hidden ones.
    """
    gpus = tf.config.get_visible_devices("GPU")
    limits = [tf.config.get_logical_device_configuration(gpu) for gpu in gpus]
    if gpus and all(limits):
        return min(limit[0].memory_limit for limit in limits) * 2**20
    there = tf.config.list_physical_devices("GPU")
    known = gpu_info.memory(len(there)) if gpus else []
    return min(known[there.index(gpu)].free for gpu in gpus) if known else 0


def _chosen(options: config.RuntimeConfig, gpus: list[Any]) -> list[Any]:
    """The GPUs to use, in TensorFlow's order; of several, those with the most free
    memory.
    """
    if options.devices == "cpu" or (not gpus and options.devices == "auto"):
        return []
    numbers: Sequence[int] = parse_devices(options.devices) or range(len(gpus))
    wanted = len(numbers) if options.replicas == "auto" else options.replicas
    if max(numbers) >= len(gpus):
        raise UsageError(
            f"--runtime.devices {options.devices}: TensorFlow sees {len(gpus)} GPUs"
        )
    if wanted > len(numbers):
        raise UsageError(
            f"--runtime.replicas {wanted}: TensorFlow sees {len(gpus)} GPUs"
        )
    if wanted < len(numbers) and (memory := gpu_info.memory(len(gpus))):
        numbers = sorted(numbers, key=lambda number: -memory[number].free)
    return [gpus[number] for number in sorted(numbers[:wanted])]


def _let_grow(gpus: list[Any]) -> None:
    with contextlib.suppress(
        RuntimeError
    ):  # TensorFlow has already initialized its devices
        for gpu in gpus:
            # The limit of an earlier run in this process rules out growth.
            if not tf.config.get_logical_device_configuration(gpu):
                tf.config.experimental.set_memory_growth(gpu, True)


def _limit(limit: str, gpus: list[Any], chosen: list[Any]) -> None:
    flag = f"--runtime.gpu-memory {limit}"
    amount, is_share = parse_memory(limit)
    memory = gpu_info.memory(len(gpus)) if is_share else []
    if chosen and is_share and not memory:
        raise UsageError(
            f"{flag}: nvidia-smi does not report the memory of the GPUs; "
            "use an amount, such as 8GiB"
        )
    for gpu in chosen:
        size = int(amount * memory[gpus.index(gpu)].total if is_share else amount)
        # In MiB, although TensorFlow's documentation says MB.
        device = tf.config.LogicalDeviceConfiguration(memory_limit=size // 2**20)
        try:
            tf.config.set_logical_device_configuration(gpu, [device])
        except RuntimeError:
            raise UsageError(
                f"{flag}: this process already uses another limit; {_TOO_LATE}"
            ) from None


def choose(
    options: config.RuntimeConfig, cluster: Cluster | None = None, token: str = ""
) -> tuple[tf.distribute.Strategy, Decision]:
    """The distribution strategy of the model, and the reason.

    Several workers must have the same `token`, a digest of their options.

    Raises UsageError if there are fewer devices than replicas, or a worker is missing.
    """
    if cluster:
        return _several_machines(options, cluster, token)
    gpus, there = (
        tf.config.get_visible_devices("GPU"),
        tf.config.list_physical_devices("GPU"),
    )
    count = max(len(gpus), 1) if options.replicas == "auto" else options.replicas
    if gpus:
        name = tf.config.experimental.get_device_details(gpus[0]).get(
            "device_name", "GPU"
        )
        value = f"{count} GPUs {name}, mirrored" if count > 1 else f"GPU {name}"
        numbers = ", ".join(str(there.index(gpu)) for gpu in gpus[:count])
        reason = f"number {numbers}; TensorFlow sees {len(there)}"
    else:
        _divide_cpu(count)
        value = f"CPU, {pluralize(cores(), 'core')}"
        value += f", as {count} logical devices, mirrored" if count > 1 else ""
        reason = f"TensorFlow sees {len(there) or 'no'} GPUs"
    if count == 1:
        return tf.distribute.get_strategy(), Decision("device", value, reason)
    kind = "gpu" if gpus else "cpu"
    devices = tuple(f"/{kind}:{number}" for number in range(count))
    return _mirrored(devices), Decision("device", value, reason)


def _several_machines(
    options: config.RuntimeConfig, cluster: Cluster, token: str
) -> tuple[tf.distribute.Strategy, Decision]:
    if options.replicas != "auto":
        raise UsageError(
            f"--runtime.replicas {options.replicas}: with TF_CONFIG, each worker uses"
            " all of its GPUs, or its CPU; use --runtime.replicas auto"
        )
    cluster.meet(options.worker_timeout, token)
    with signals.keep_handlers():
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    value = f"{len(cluster.workers)} workers, {strategy.num_replicas_in_sync} replicas"
    return strategy, Decision(
        "device", value, f"TF_CONFIG; this is {cluster.name(cluster.index)}"
    )


def _divide_cpu(count: int) -> None:
    """Creates logical devices of the CPU, which share its threads and memory.

    TensorFlow can create them only once, so enough are created for later runs in this
    process.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    there = len(tf.config.get_logical_device_configuration(cpu) or ())
    if there >= count:
        return
    parts = [tf.config.LogicalDeviceConfiguration()] * max(
        count, min(os.cpu_count() or 1, 8)
    )
    try:
        tf.config.set_logical_device_configuration(cpu, parts)
    except RuntimeError:
        there = len(tf.config.list_logical_devices("CPU"))
        if there < count:
            raise UsageError(
                f"--runtime.replicas {count}: this process has already started with"
                f" {there} CPU devices; {_TOO_LATE}"
            ) from None


@functools.cache
def _mirrored(devices: tuple[str, ...]) -> Any:
    # Cached: a second strategy on the same devices cannot use their collectives.
    return tf.distribute.MirroredStrategy(list(devices))
