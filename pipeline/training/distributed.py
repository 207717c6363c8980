"""Training on several replicas: each gets its part of every batch; a call runs several
steps.
"""

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from pipeline.contracts import WHOLE_BATCH, Batches, ReplicaPart
from pipeline.runtime.cluster import Cluster
from pipeline.training.recovery import out_of_memory
from pipeline.utils.errors import WorkerLost
from pipeline.utils.tf_data import READ_ERRORS, with_options

_AHEAD = 8  # the largest number of steps that are prefetched


def dataset(batches: Batches, repeat: bool = False) -> Any:
    """The batches' dataset; with several replicas, one that gives each replica its
    part.

    The dataset makes the parts itself, instead of TensorFlow rebatching whole batches:
    nothing is copied, shapes are static, and each of several workers reads only its own
    examples.

    With `repeat`, it starts over at the end. Keras's `fit` needs this: it counts one
    batch per call, restarts a dataset of known length when that count is reached, and
    draws one more batch than it uses before an evaluation.
    """
    strategy = tf.distribute.get_strategy()

    def read(part: ReplicaPart, device: str) -> tf.data.Dataset:
        dataset = batches.dataset(batches.first_step, part)
        dataset = with_options(dataset.repeat() if repeat else dataset)
        # A CPU device reads batches where they are.
        return prefetched(dataset, device) if "GPU" in device.upper() else dataset

    if strategy.num_replicas_in_sync == 1:
        gpus = tf.config.list_logical_devices("GPU")
        return read(WHOLE_BATCH, gpus[0].name if gpus else "CPU")

    def read_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        replicas = context.num_replicas_in_sync
        count = replicas // context.num_input_pipelines
        part = ReplicaPart(context.input_pipeline_id * count, count, replicas)
        device = devices[context.input_pipeline_id] if per_replica else "CPU"
        return read(part, device)

    devices = strategy.extended.worker_devices
    if (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and len(devices) == 1
    ):
        # TensorFlow's distributed dataset has iterators that are tuned. Deleting them,
        # and so the end of the process, takes longer the longer they were used: 16 s
        # after a minute.
        replica = int(
            tf.function(functools.partial(strategy.run, _replica), autograph=False)()
        )
        device = tf.DeviceSpec.from_string(devices[0])
        part = ReplicaPart(first=replica, total=strategy.num_replicas_in_sync)
        return read(part, f"/device:{device.device_type}:{device.device_index}")

    # With one iterator per replica, `digits` gets its data on two logical CPU devices
    # 1.1 to 1.7 times as fast as with a shared one. With several machines, this mode is
    # not available.
    per_replica = isinstance(strategy, tf.distribute.MirroredStrategy)
    mode = tf.distribute.InputReplicationMode
    has_gpu = bool(tf.config.list_logical_devices("GPU"))
    options = tf.distribute.InputOptions(
        experimental_fetch_to_device=has_gpu and not per_replica,
        experimental_replication_mode=(
            mode.PER_REPLICA if per_replica else mode.PER_WORKER
        ),
    )
    return strategy.distribute_datasets_from_function(read_pipeline, options)


def _replica() -> Any:
    """The number of this replica among those of all workers."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def agreed(value: float) -> float:
    """The mean of a number over all workers."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return value
    return float(_mean(strategy)(tf.constant(value, tf.float64)))


@functools.cache
def _mean(strategy: tf.distribute.Strategy) -> Any:
    def mean(value: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("mean", strategy.run(lambda: value + 0.0), axis=None)

    return tf.function(mean, autograph=False)


@contextlib.contextmanager
def lost_workers(cluster: Cluster | None) -> Iterator[None]:
    """Turns TensorFlow's error about a lost worker into one line that names it."""
    try:
        yield
    except (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.InternalError,
    ) as error:
        if cluster is None:
            raise
        tasks = {int(number) for number in re.findall(r"task[:=](\d+)", error.message)}
        others = sorted(tasks & set(range(len(cluster.workers))) - {cluster.index})
        if not others:  # this worker itself failed
            raise
        names = ", ".join(cluster.name(index) for index in others)
        raise WorkerLost(
            f"{names} was lost; start all workers again with the same command: the run"
            " resumes from its last checkpoint"
        ) from error


@contextlib.contextmanager
def explained(batches: Batches, first: int, count: int) -> Iterator[None]:
    """If these steps fail because an example cannot be decoded, raises an error that
    names it.
    """
    try:
        yield
    except READ_ERRORS:
        # A prefetched example fails before its step.
        batches.raise_if_undecodable(
            first, min(first + count + _AHEAD, batches.last_step)
        )
        raise


def prefetched(batches: tf.data.Dataset, device: str) -> tf.data.Dataset:
    """Prefetches two batches to the memory of a device."""
    return batches.apply(tf.data.experimental.prefetch_to_device(device, buffer_size=2))


class Calls:
    """Runs a step on all replicas, `model.steps_per_execution` times in each call.

    Uses one `tf.function` with one trace for any number of steps. The host passes the
    number of steps to take, because an iterator that ends inside the loop gives a wrong
    loss and no error. The model is from `build`, after `set_inputs`; `name` is the
    method of `model.step` to run, `train` or `evaluate`; the iterator yields the
    batches from `first_step` on.
    """

    def __init__(self, model: keras.Model, name: str, batches: Batches) -> None:
        self._model = model
        self._batches = batches
        self._name = name
        self.position = batches.first_step
        """Number of the next step."""
        self._end = batches.end_of(batches.first_epoch)
        # Without autograph, which would wrap errors that are meant for the user.
        trace = tf.function(functools.partial(_steps, model, name), autograph=False)
        self._run = model.step.compiled.setdefault(name, trace)

    def begin(self, epoch: int) -> None:
        """Begins an epoch of training; calls stop at its end."""
        self._end = self._batches.end_of(epoch)
        self._model.step.position = self.position

    def __call__(self, iterator: Any) -> dict[str, Any]:
        """Takes the next steps, none at the end of a training epoch; returns the
        running metrics.

        After the end of an evaluation, another one begins.
        """
        if self._name == "evaluate" and self.position == self._end:
            self.position = self._batches.first_step
        count = min(self._model.steps_per_execution, self._end - self.position)
        memory = out_of_memory(is_training=self._name == "train")
        with explained(self._batches, self.position, count), memory:
            logs = self._run(iterator, tf.constant(count), self._model.step.phase)
        self.position += count
        if self._name == "train":
            self._model.step.position = self.position
        return logs


def _steps(
    model: keras.Model, name: str, iterator: Any, count: tf.Tensor, phase: int
) -> dict[str, tf.Tensor]:
    """`phase` is a Python number, so that unfreezing layers causes another trace."""
    strategy = tf.distribute.get_strategy()
    step = getattr(model.step, name)

    def body(done: tf.Tensor) -> tuple[tf.Tensor]:
        strategy.run(step, args=(model, iterator.get_next()))
        return (done + 1,)  # a tuple, as the loop requires if functions run eagerly

    tf.while_loop(lambda done: done < count, body, (0,), parallel_iterations=1)
    return {metric.name: metric.result() for metric in model.metrics}
