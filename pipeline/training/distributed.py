"""Distributes batches over replicas, and runs several steps per call."""

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from pipeline.contracts import WHOLE_BATCH, Batches, ReplicaPart
from pipeline.runtime.cluster import Cluster
from pipeline.training.recovery import catch_out_of_memory
from pipeline.utils.errors import WorkerLost
from pipeline.utils.tf_data import READ_ERRORS, with_options

_AHEAD = 8  # the largest number of steps that are prefetched


def dataset(batches: Batches, repeat: bool = False) -> Any:
    """Returns a dataset of the batches that gives each replica its part.

    Each replica reads only its own examples. TensorFlow does not rebatch anything, so
    nothing is copied and shapes are static.

    With `repeat`, the dataset starts over at the end. Keras's `fit` needs this: it
    counts one batch per call, restarts a dataset of known length when that count is
    reached, and draws one more batch than it uses before an evaluation.
    """
    strategy = tf.distribute.get_strategy()

    def read(part: ReplicaPart, device: str) -> tf.data.Dataset:
        dataset = batches.dataset(batches.first_step, part)
        if repeat:
            dataset = dataset.repeat()
        dataset = with_options(dataset)
        if "GPU" not in device.upper():
            return dataset
        return prefetch_to_device(dataset, device)

    if strategy.num_replicas_in_sync == 1:
        gpus = tf.config.list_logical_devices("GPU")
        return read(WHOLE_BATCH, gpus[0].name if gpus else "CPU")

    devices = strategy.extended.worker_devices
    is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if is_multi_worker and len(devices) == 1:
        # A distributed dataset of TensorFlow has tuned iterators. The longer they were
        # used, the longer it takes to delete them and so to end the process: 16 s after
        # a minute.
        replica_index = tf.function(
            functools.partial(strategy.run, _replica_index), autograph=False
        )
        first = int(replica_index())
        part = ReplicaPart(first=first, total=strategy.num_replicas_in_sync)
        device = tf.DeviceSpec.from_string(devices[0])
        return read(part, f"/device:{device.device_type}:{device.device_index}")

    # With one iterator per replica, `digits` gets its data on two logical CPU devices
    # 1.1 to 1.7 times as fast as with a shared iterator. This mode is not available
    # with several machines.
    per_replica = isinstance(strategy, tf.distribute.MirroredStrategy)

    def read_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        replicas = context.num_replicas_in_sync
        count = replicas // context.num_input_pipelines
        part = ReplicaPart(context.input_pipeline_id * count, count, replicas)
        device = devices[context.input_pipeline_id] if per_replica else "CPU"
        return read(part, device)

    modes = tf.distribute.InputReplicationMode
    mode = modes.PER_REPLICA if per_replica else modes.PER_WORKER
    has_gpu = bool(tf.config.list_logical_devices("GPU"))
    options = tf.distribute.InputOptions(
        experimental_fetch_to_device=has_gpu and not per_replica,
        experimental_replication_mode=mode,
    )
    return strategy.distribute_datasets_from_function(read_pipeline, options)


def _replica_index() -> Any:
    """Returns the index of this replica among the replicas of all workers."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def mean_over_workers(value: float) -> float:
    """Returns the mean of a number over all workers."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return value
    mean = _mean_function(strategy)
    return float(mean(tf.constant(value, tf.float64)))


@functools.cache
def _mean_function(strategy: tf.distribute.Strategy) -> Any:
    def mean(value: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("mean", strategy.run(lambda: value + 0.0), axis=None)

    return tf.function(mean, autograph=False)


@contextlib.contextmanager
def name_lost_workers(cluster: Cluster | None) -> Iterator[None]:
    """Converts TensorFlow's error about a lost worker to one that names the worker."""
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
        other_workers = set(range(len(cluster.workers))) - {cluster.index}
        lost_workers = sorted(tasks & other_workers)
        if not lost_workers:  # this worker itself failed
            raise
        names = ", ".join(cluster.name(index) for index in lost_workers)
        raise WorkerLost(
            f"{names} was lost; start all workers again with the same command: the run"
            " resumes from its last checkpoint"
        ) from error


@contextlib.contextmanager
def name_undecodable_examples(
    batches: Batches, first: int, count: int
) -> Iterator[None]:
    """Names the example if one of these steps fails because it cannot be decoded."""
    try:
        yield
    except READ_ERRORS:
        # An example is prefetched, and so fails, before its step.
        last = min(first + count + _AHEAD, batches.last_step)
        batches.raise_if_undecodable(first, last)
        raise


def prefetch_to_device(dataset: tf.data.Dataset, device: str) -> tf.data.Dataset:
    """Prefetches two batches to the memory of a device."""
    return dataset.apply(tf.data.experimental.prefetch_to_device(device, buffer_size=2))


class StepFunction:
    """Runs a step on all replicas, `model.steps_per_execution` times in each call.

    This is one `tf.function` with one trace for any number of steps. The host passes
    the number of steps to take, because an iterator that ends inside the loop gives a
    wrong loss and no error.

    Args:
        model: From `build`, after `set_inputs`.
        name: The method of `model.step` to run, `train` or `evaluate`.
        batches: The batches that the iterator of each call yields, from `first_step`
            on.
    """

    def __init__(self, model: keras.Model, name: str, batches: Batches) -> None:
        self._model = model
        self._batches = batches
        self._name = name
        self.position = batches.first_step
        """The next step."""
        self._end = batches.end_of(batches.first_epoch)
        # Without autograph, which would wrap errors that are meant for the user.
        trace = tf.function(functools.partial(_steps, model, name), autograph=False)
        self._run = model.step.compiled.setdefault(name, trace)

    def begin(self, epoch: int) -> None:
        """Begins a training epoch; calls stop at its end."""
        self._end = self._batches.end_of(epoch)
        self._model.step.position = self.position

    def __call__(self, iterator: Any) -> dict[str, Any]:
        """Takes the next steps and returns the running metrics.

        Takes no steps at the end of a training epoch. After the end of an evaluation,
        another one begins.
        """
        if self._name == "evaluate" and self.position == self._end:
            self.position = self._batches.first_step
        is_training = self._name == "train"
        count = min(self._model.steps_per_execution, self._end - self.position)
        with (
            name_undecodable_examples(self._batches, self.position, count),
            catch_out_of_memory(is_training),
        ):
            logs = self._run(iterator, tf.constant(count), self._model.step.phase)
        self.position += count
        if is_training:
            self._model.step.position = self.position
        return logs


def _steps(
    model: keras.Model, name: str, iterator: Any, count: tf.Tensor, phase: int
) -> dict[str, tf.Tensor]:
    # `phase` is a Python number, so that unfreezing layers causes another trace.
    strategy = tf.distribute.get_strategy()
    step = getattr(model.step, name)

    def body(done: tf.Tensor) -> tuple[tf.Tensor]:
        strategy.run(step, args=(model, iterator.get_next()))
        return (done + 1,)  # if functions run eagerly, the loop requires a tuple

    tf.while_loop(lambda done: done < count, body, (0,), parallel_iterations=1)
    return {metric.name: metric.result() for metric in model.metrics}
