"""Distributes batches over replicas, and runs several steps per call."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from pipeline.contracts import WHOLE_BATCH, Batches, Example, ReplicaPart
from pipeline.runtime.cluster import Cluster
from pipeline.runtime.environment import Machine
from pipeline.runtime.signals import StopSignals
from pipeline.training import xla_support
from pipeline.training.recovery import catch_out_of_memory
from pipeline.utils.errors import WorkerLost
from pipeline.utils.tf_data import READ_ERRORS, row_bytes, with_options

_AHEAD = 8  # steps that are prefetched when batches are not stacked into blocks
# One block is in use while up to two more are prefetched, so a few times this much
# memory of the device is needed.
BLOCK_BYTES = 64 << 20
# Of rows that the program gathers itself, and of data: a call should not have to wait
# long for the next block to be decoded.
MAX_BLOCK_STEPS = 1024
MAX_DATA_STEPS = 16


def open_iterator(step: Any, name: str, batches: Batches) -> Any:
    """Returns TensorFlow's iterator over batches or, if the step is one XLA program,
    over blocks.

    For an evaluation, it repeats.
    """
    repeat = name == "evaluate"
    if not step.is_one_program(name):
        return iter(dataset(batches, repeat))
    gpus = tf.config.list_logical_devices("GPU")
    stacked = blocks(batches, block_length(batches))
    if repeat:
        stacked = stacked.repeat()
    stacked = with_options(stacked)
    if gpus:
        return iter(prefetch_to_device(stacked, gpus[0].name))
    return iter(stacked.prefetch(1))


def block_length(batches: Batches) -> int:
    """Batches per block: as many as fit in `BLOCK_BYTES`, at most an epoch."""
    specs = batches.dataset(batches.first_step).element_spec
    fitting = BLOCK_BYTES // max(1, row_bytes(specs))
    limit = MAX_DATA_STEPS if batches.device_cache is None else MAX_BLOCK_STEPS
    return max(1, min(fitting, batches.steps_per_epoch, limit))


def blocks(batches: Batches, length: int) -> tf.data.Dataset:
    """Stacks `length` batches at a time: tensors (length, batch size, ...).

    The last block is padded with zeros, so that all have the same static shape.
    """
    rest = (batches.last_step - batches.first_step) % length
    whole = dataclasses.replace(batches, last_step=batches.last_step - rest)
    stacked = whole.dataset(batches.first_step).batch(length, drop_remainder=True)
    if not rest:
        return stacked

    def pad(block: Example) -> Example:
        padded = {}
        for name, values in block.items():
            missing = tf.zeros((length - rest, *values.shape[1:]), values.dtype)
            padded[name] = tf.concat([values, missing], axis=0)
        return padded

    end = batches.dataset(whole.last_step).batch(rest, drop_remainder=True)
    return stacked.concatenate(end.map(pad))


def _length(block: Example) -> int:
    """The number of batches in a block; 0 before the first one."""
    return next((values.shape[0] for values in block.values()), 0)


def dataset(batches: Batches, repeat: bool = False) -> Any:
    """Returns a dataset of the batches that gives each replica its part.

    Each replica reads only its own examples. TensorFlow does not rebatch anything, so
    nothing is copied and shapes are static. With `repeat`, it starts over at the end.
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
def translate_worker_errors(cluster: Cluster | None) -> Iterator[None]:
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
def explain_decode_errors(
    batches: Batches, first: int, count: int, ahead: int = _AHEAD
) -> Iterator[None]:
    """Names the example if one of these steps fails because it cannot be decoded.

    `ahead` is the number of steps that are prefetched.
    """
    try:
        yield
    except READ_ERRORS:
        # An example is prefetched, and so fails, before its step.
        last = min(first + count + ahead, batches.last_step)
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

    If XLA compiles whole steps (`Step.is_one_program`), the function is one XLA
    program. It takes a block (several batches, stacked) that is already on the device,
    and the range of the batches to use. A call that spans several blocks runs the
    program once per block.

    Args:
        model: From `build`, after `set_inputs`.
        name: The method of `model.step` to run, `train` or `evaluate`.
        batches: Read from `first_step` on; in an evaluation, again and again.
        source: As `open_iterator`, which is used if it is None.
    """

    def __init__(
        self, model: keras.Model, name: str, batches: Batches, source: Any = None
    ) -> None:
        self._model = model
        self._batches = batches
        self._name = name
        self.position = batches.first_step
        """The next step."""
        self._end = batches.end_of(batches.first_epoch)
        self._given_source = source
        self._open()

    def _open(self) -> None:
        """Starts to read at `position`."""
        step = self._model.step
        self._is_one_program = step.is_one_program(self._name)
        rest = dataclasses.replace(self._batches, first_step=self.position)
        self._source = self._given_source or open_iterator(step, self._name, rest)
        self._block: dict[str, tf.Tensor] = {}
        self._unused = 0  # batches at the end of the block
        function = _steps_of_block if self._is_one_program else _steps
        # Without autograph, which would wrap errors that are meant for the user.
        trace = tf.function(
            functools.partial(function, self._model, self._name),
            autograph=False,
            jit_compile=self._is_one_program or None,
        )
        self._run = step.compiled.setdefault(self._name, trace)

    def begin(self, epoch: int) -> None:
        """Begins a training epoch; calls stop at its end."""
        self._end = self._batches.end_of(epoch)
        self._model.step.position = self.position

    def __call__(self, iterator: Any = None) -> dict[str, Any]:
        """Takes the next steps and returns the running metrics.

        Takes no steps at the end of a training epoch. After the end of an evaluation,
        another one begins. The iterator that Keras passes is not used.
        """
        if self._name == "evaluate" and self.position == self._end:
            self.position = self._batches.first_step
            self._unused = 0  # the rest of the block is padding
        is_training = self._name == "train"
        count = min(self._model.steps_per_execution, self._end - self.position)
        if not count:
            return _results(self._model)
        with (
            explain_decode_errors(
                self._batches, self.position, count, _AHEAD + 3 * _length(self._block)
            ),
            catch_out_of_memory(is_training),
        ):
            logs = self._compile_and_take(count)
        self.position += count
        if is_training:
            self._model.step.position = self.position
        return logs

    def _compile_and_take(self, count: int) -> dict[str, Any]:
        """Takes steps; without XLA if it cannot compile them, which ends the first call
        before an update.
        """
        while True:
            try:
                if self._is_one_program and not self._block:
                    self._compile()
                return self._take(count)
            except xla_support.ERRORS as error:
                self._model.step.disable_xla(self._name, error, self._model)
                self._model.reset_metrics()  # a replica's forward pass may have run
                self._open()

    def _compile(self) -> None:
        """Takes no step of an empty block: XLA compiles the program while the first
        block is decoded.
        """
        block = tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, spec.dtype), self._source.element_spec
        )
        with xla_support.say_if_slow(self._name):
            self._run(block, tf.zeros(2, tf.int64), self._model.step.phase)

    def _take(self, count: int) -> dict[str, Any]:
        phase = self._model.step.phase
        if not self._is_one_program:
            return self._run(self._source, tf.constant(count), phase)
        logs: dict[str, Any] = {}
        while count:
            if not self._unused:
                self._block = next(self._source)
                self._unused = _length(self._block)
            first = _length(self._block) - self._unused
            taken = min(count, self._unused)
            # Not int32, which TensorFlow keeps in the memory of the host.
            limits = tf.constant([first, first + taken], tf.int64)
            logs = self._run(self._block, limits, phase)
            self._unused -= taken
            count -= taken
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
    return _results(model)


def _steps_of_block(
    model: keras.Model, name: str, block: Example, limits: tf.Tensor, phase: int
) -> dict[str, tf.Tensor]:
    step = getattr(model.step, name)

    def body(index: tf.Tensor) -> tuple[tf.Tensor]:
        step(model, {name: values[index] for name, values in block.items()})
        return (index + 1,)

    first, end = tf.unstack(limits)
    tf.while_loop(lambda index: index < end, body, (first,), parallel_iterations=1)
    return _results(model)


def _results(model: keras.Model) -> dict[str, tf.Tensor]:
    return {metric.name: metric.result() for metric in model.metrics}


def wait_for_workers(machine: Machine, stops: StopSignals) -> None:
    """Waits until all workers get here.

    The chief has more to do, such as saving and testing, and TensorFlow reports a
    worker that exits before the chief as crashed. The chief no longer needs the other
    workers, so it ignores one that is lost here.
    """
    ignored_errors = [WorkerLost] if machine.is_chief else []
    with (
        contextlib.suppress(*ignored_errors),
        stops.at_once(),
        machine.strategy.scope(),
        translate_worker_errors(machine.cluster),
    ):
        mean_over_workers(0.0)
