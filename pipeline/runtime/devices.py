"""Selects GPUs, limits their memory, and creates the distribution strategy."""

import contextlib
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from pipeline.config import config
from pipeline.config.formats import parse_devices, parse_memory
from pipeline.contracts import Decision
from pipeline.runtime import gpu_info, rendezvous, signals
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
    selected = _select_gpus(options, gpus)
    if set(selected) != set(tf.config.get_visible_devices("GPU")):
        try:
            tf.config.set_visible_devices(selected, "GPU")
        except RuntimeError:  # TensorFlow has already initialized its devices
            selected = tf.config.get_visible_devices("GPU")
            replicas = 1 if options.replicas == "auto" else options.replicas
            if options.devices != "auto" or len(selected) < replicas:
                raise UsageError(
                    f"--runtime.devices {options.devices}: this process already uses "
                    f"{len(selected)} GPUs; {_TOO_LATE}"
                ) from None
    if options.gpu_memory is None:
        _enable_memory_growth(selected)
    else:
        _limit_memory(options.gpu_memory, gpus, selected)


def memory() -> int:
    """Returns the bytes that the run may use on its smallest GPU; 0 if unknown.

    TensorFlow's list of devices with their memory would initialize all GPUs, even
    hidden ones.
    """
    gpus = tf.config.get_visible_devices("GPU")
    limits = [tf.config.get_logical_device_configuration(gpu) for gpu in gpus]
    if gpus and all(limits):
        return min(limit[0].memory_limit for limit in limits) * 2**20
    physical = tf.config.list_physical_devices("GPU")
    memory = gpu_info.memory(len(physical)) if gpus else []
    return min(memory[physical.index(gpu)].free for gpu in gpus) if memory else 0


def _select_gpus(options: config.RuntimeConfig, gpus: list[Any]) -> list[Any]:
    """Selects the GPUs with the most free memory, in TensorFlow's order."""
    if options.devices == "cpu" or (not gpus and options.devices == "auto"):
        return []
    numbers: Sequence[int] = parse_devices(options.devices) or range(len(gpus))
    count = len(numbers) if options.replicas == "auto" else options.replicas
    if max(numbers) >= len(gpus):
        raise UsageError(
            f"--runtime.devices {options.devices}: TensorFlow sees {len(gpus)} GPUs"
        )
    if count > len(numbers):
        raise UsageError(
            f"--runtime.replicas {count}: TensorFlow sees {len(gpus)} GPUs"
        )
    if count < len(numbers) and (memory := gpu_info.memory(len(gpus))):
        numbers = sorted(numbers, key=lambda number: -memory[number].free)
    return [gpus[number] for number in sorted(numbers[:count])]


def _enable_memory_growth(gpus: list[Any]) -> None:
    # RuntimeError: TensorFlow has already initialized its devices.
    with contextlib.suppress(RuntimeError):
        for gpu in gpus:
            # The limit of an earlier run in this process rules out growth.
            if not tf.config.get_logical_device_configuration(gpu):
                tf.config.experimental.set_memory_growth(gpu, True)


def _limit_memory(limit: str, gpus: list[Any], selected: list[Any]) -> None:
    flag = f"--runtime.gpu-memory {limit}"
    amount, is_share = parse_memory(limit)
    memory = gpu_info.memory(len(gpus)) if is_share else []
    if selected and is_share and not memory:
        raise UsageError(
            f"{flag}: nvidia-smi does not report the memory of the GPUs; "
            "use an amount, such as 8GiB"
        )
    for gpu in selected:
        size = amount
        if is_share:
            size *= memory[gpus.index(gpu)].total
        # In MiB, although TensorFlow's documentation says MB.
        device = tf.config.LogicalDeviceConfiguration(memory_limit=int(size) // 2**20)
        try:
            tf.config.set_logical_device_configuration(gpu, [device])
        except RuntimeError:
            raise UsageError(
                f"{flag}: this process already uses another limit; {_TOO_LATE}"
            ) from None


def choose(
    options: config.RuntimeConfig,
    cluster: Cluster | None = None,
    versions: Mapping[str, str] | None = None,
) -> tuple[tf.distribute.Strategy, Decision]:
    """Creates the distribution strategy of the model; returns it with the reason.

    Several workers must have the same `versions` of the packages.

    Raises UsageError if there are fewer devices than replicas, or a worker is missing
    or cannot train together with this one.
    """
    if cluster:
        return _several_machines(options, cluster, versions or {})
    gpus = tf.config.get_visible_devices("GPU")
    physical = tf.config.list_physical_devices("GPU")
    count = max(len(gpus), 1) if options.replicas == "auto" else options.replicas
    if gpus:
        details = tf.config.experimental.get_device_details(gpus[0])
        name = details.get("device_name", "GPU")
        value = f"{count} GPUs {name}, mirrored" if count > 1 else f"GPU {name}"
        numbers = ", ".join(str(physical.index(gpu)) for gpu in gpus[:count])
        reason = f"number {numbers}; TensorFlow sees {len(physical)}"
    else:
        _divide_cpu(count)
        value = f"CPU, {pluralize(cores(), 'core')}"
        if count > 1:
            value += f", as {count} logical devices, mirrored"
        reason = f"TensorFlow sees {len(physical) or 'no'} GPUs"
    if count == 1:
        return tf.distribute.get_strategy(), Decision("device", value, reason)
    kind = "gpu" if gpus else "cpu"
    devices = tuple(f"/{kind}:{number}" for number in range(count))
    return _mirrored_strategy(devices), Decision("device", value, reason)


def _several_machines(
    options: config.RuntimeConfig, cluster: Cluster, versions: Mapping[str, str]
) -> tuple[tf.distribute.Strategy, Decision]:
    if options.replicas != "auto":
        raise UsageError(
            f"--runtime.replicas {options.replicas}: of several workers, each uses"
            " all of its GPUs, or its CPU; use --runtime.replicas auto"
        )
    if context.context()._collective_ops_server_def is not None:
        raise UsageError(
            f"{cluster.source}: this process has already trained with other workers,"
            f" which TensorFlow supports only once; {_TOO_LATE}"
        )
    gpus = tf.config.get_visible_devices("GPU")
    physical = tf.config.list_physical_devices("GPU")
    names = gpu_info.identifiers(len(physical)) if gpus else []
    own = [names[physical.index(gpu)] for gpu in gpus] if names else []
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.workers)}),
        task_type="worker",
        task_id=cluster.index,
        rpc_layer="grpc",
    )
    peers = rendezvous.meet(cluster, options.worker_timeout, versions, own)
    with peers.ending_together(), signals.keep_handlers():
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    peers.watch()
    peers.started()
    value = f"{len(cluster.workers)} workers, {strategy.num_replicas_in_sync} replicas"
    reason = f"{cluster.source}; this is {cluster.name(cluster.index)}"
    return strategy, Decision("device", value, reason)


def _divide_cpu(count: int) -> None:
    """Creates logical devices of the CPU, which share its threads and memory.

    TensorFlow can create them only once, so enough are created for later runs in this
    process.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    existing = len(tf.config.get_logical_device_configuration(cpu) or ())
    if existing >= count:
        return
    number = max(count, min(os.cpu_count() or 1, 8))
    parts = [tf.config.LogicalDeviceConfiguration()] * number
    try:
        tf.config.set_logical_device_configuration(cpu, parts)
    except RuntimeError:
        existing = len(tf.config.list_logical_devices("CPU"))
        if existing < count:
            raise UsageError(
                f"--runtime.replicas {count}: this process has already started with"
                f" {existing} CPU devices; {_TOO_LATE}"
            ) from None


@functools.cache
def _mirrored_strategy(devices: tuple[str, ...]) -> Any:
    # Cached: a second strategy on the same devices cannot use their collectives.
    return tf.distribute.MirroredStrategy(list(devices))
