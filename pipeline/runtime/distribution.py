"""The distribution strategy: one device, several mirrored devices, or several machines."""

import functools
import os
from typing import Any

import tensorflow as tf

from pipeline.config import config
from pipeline.contracts import Decision
from pipeline.runtime.cluster import Cluster
from pipeline.utils.errors import UsageError


def choose(
    options: config.Runtime, cluster: Cluster | None = None, token: str = ""
) -> tuple[tf.distribute.Strategy, Decision]:
    """The distribution strategy of the model, and the reason.

    Several workers must have the same `token`, a digest of their options.

    Raises UsageError if there are fewer devices than replicas, or a worker is missing.
    """
    if cluster:
        return _several_machines(options, cluster, token)
    gpus, there = tf.config.get_visible_devices("GPU"), tf.config.list_physical_devices("GPU")
    count = max(len(gpus), 1) if options.replicas == "auto" else options.replicas
    if gpus:
        name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
        value = f"{count} GPUs {name}, mirrored" if count > 1 else f"GPU {name}"
        numbers = ", ".join(str(there.index(gpu)) for gpu in gpus[:count])
        reason = f"number {numbers}; TensorFlow sees {len(there)}"
    else:
        _divide_cpu(count)
        value = f"CPU, {os.cpu_count()} cores"
        value += f", as {count} logical devices, mirrored" if count > 1 else ""
        reason = f"TensorFlow sees {len(there) or 'no'} GPUs"
    if count == 1:
        return tf.distribute.get_strategy(), Decision("device", value, reason)
    kind = "gpu" if gpus else "cpu"
    devices = tuple(f"/{kind}:{number}" for number in range(count))
    return _mirrored(devices), Decision("device", value, reason)


def _several_machines(
    options: config.Runtime, cluster: Cluster, token: str
) -> tuple[tf.distribute.Strategy, Decision]:
    if options.replicas != "auto":
        raise UsageError(
            f"--runtime.replicas {options.replicas}: with TF_CONFIG, each worker uses all of its "
            "GPUs, or its CPU; use --runtime.replicas auto"
        )
    cluster.meet(options.worker_timeout, token)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    value = f"{len(cluster.workers)} workers, {strategy.num_replicas_in_sync} replicas"
    return strategy, Decision("device", value, f"TF_CONFIG; this is {cluster.name(cluster.index)}")


def _divide_cpu(count: int) -> None:
    """Creates logical devices of the CPU, which share its threads and memory.

    TensorFlow can create them only once, so enough are created for later runs in this process.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    there = len(tf.config.get_logical_device_configuration(cpu) or ())
    if there >= count:
        return
    parts = [tf.config.LogicalDeviceConfiguration()] * max(count, min(os.cpu_count() or 1, 8))
    try:
        tf.config.set_logical_device_configuration(cpu, parts)
    except RuntimeError:
        there = len(tf.config.list_logical_devices("CPU"))
        if there < count:
            raise UsageError(
                f"--runtime.replicas {count}: this process has already started with {there} CPU "
                "devices; start a new process (in a notebook: restart the kernel)"
            ) from None


@functools.cache
def _mirrored(devices: tuple[str, ...]) -> Any:
    # Cached: a second strategy on the same devices cannot use their collectives.
    return tf.distribute.MirroredStrategy(list(devices))
