"""Where the decoded examples of a split lie: in memory, on the device, or nowhere."""

import abc
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Source, Task
from pipeline.utils.errors import UsageError, reason
from pipeline.utils.tf_data import READ_ERRORS, chosen, is_short, without_autotune

DIGEST = "_digest"
"""Column of the hashes of the pixels, beside the fields of the examples."""


class Store(abc.ABC):
    """Decoded examples, by row.

    Args:
        specs: Shape and dtype of each field of one decoded example.
        short: Those fields that are numbers or short vectors (`id`, `label`, ...), in memory:
            name -> (rows, ...).
        digest: Hash of the pixels of each example, int64 (rows,); None where there are no images,
            or where they are not kept.
    """

    def __init__(
        self,
        specs: Mapping[str, tf.TensorSpec],
        short: Mapping[str, np.ndarray],
        digest: np.ndarray | None = None,
    ) -> None:
        self.specs = dict(specs)
        self.short = dict(short)
        self.digest = digest

    def __len__(self) -> int:
        return len(self.short["id"])

    @abc.abstractmethod
    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The examples of some rows, for Python."""

    @staticmethod
    def materialize(ticket: Any) -> Example:
        """A ticket to its examples, inside the compiled step; where it holds them, itself."""
        return ticket

    def raise_if_undecodable(self, rows: np.ndarray) -> None:  # noqa: B027 - what is decoded needs no words
        """Raises UsageError naming the first of these rows that cannot be decoded, if any."""


class Indexed(Store):
    """Decoded examples that can be had in any order."""

    @abc.abstractmethod
    def gather(self, rows: tf.Tensor) -> Example:
        """The examples of some rows, int64 (n,), inside `tf.data`."""

    def ticket(self, rows: tf.Tensor) -> Any:
        """What travels to the step, made inside `tf.data`."""
        return self.gather(rows)


class Memory(Indexed):
    """Columns in the memory of the host: name -> (rows, ...)."""

    def __init__(self, columns: Mapping[str, Any], digest: np.ndarray | None = None) -> None:
        self.columns = {name: tf.convert_to_tensor(column) for name, column in columns.items()}
        specs = {name: tf.TensorSpec(c.shape[1:], c.dtype) for name, c in self.columns.items()}
        short = {n: self.columns[n].numpy() for n, spec in specs.items() if is_short(spec)}
        super().__init__(specs, short, digest)

    def gather(self, rows: tf.Tensor) -> Example:
        return {name: tf.gather(column, rows) for name, column in self.columns.items()}

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {name: column.numpy() for name, column in self.gather(rows).items()}


class Device(Memory):
    """A copy of the columns on each device that computes; the step gathers its batch by row.

    What goes to a device for each example are the eight bytes of its row.
    """

    def __init__(self, columns: Mapping[str, Any], digest: np.ndarray | None = None) -> None:
        super().__init__(columns, digest)
        self._copies: dict[str, dict[str, tf.Tensor]] = {}

    def ticket(self, rows: tf.Tensor) -> Any:
        return {"row": rows}

    def materialize(self, ticket: Any) -> Example:
        known = dict(ticket)
        rows = known.pop("row")
        columns = self._copy(_device()).items()
        return {**{name: tf.gather(column, rows) for name, column in columns}, **known}

    def _copy(self, device: str) -> dict[str, tf.Tensor]:
        if device not in self._copies:
            with tf.init_scope(), tf.device(device):
                self._copies[device] = {n: tf.identity(c) for n, c in self.columns.items()}
        return self._copies[device]


def _device() -> str:
    """The device of this replica; outside of replicas, of the first one."""
    if not tf.distribute.has_strategy():
        return computing_devices()[0]
    context = tf.distribute.get_replica_context()
    devices = context.devices if context else tf.distribute.get_strategy().extended.worker_devices
    # MirroredStrategy gives a list of lists, and says the job and the task too.
    found = tf.DeviceSpec.from_string(tf.nest.flatten(devices)[0])
    return f"/device:{found.device_type}:{found.device_index}"


def computing_devices() -> list[str]:
    """Names of the GPUs, else of the CPU."""
    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")[:1]
    return [device.name for device in found]


class Undecoded(Store):
    """Nothing is kept: each example is read and decoded whenever it is wanted.

    Args:
        source: Of the examples.
        task: Decodes.
        split: Name of the source's split; a row is a position in it.
        specs: Of a decoded example.
        short: Read from the source.
    """

    def __init__(
        self,
        source: Source,
        task: Task,
        split: str,
        specs: Mapping[str, tf.TensorSpec],
        short: Mapping[str, np.ndarray],
    ) -> None:
        super().__init__(specs, short)
        self._source, self._task, self._split = source, task, split


class OnTheFly(Undecoded, Indexed):
    """Of a source that has a reader for this split."""

    @functools.cached_property
    def _read(self) -> Callable[[tf.Tensor], Example]:
        # First asked for while a function is traced, whose constants no other could use.
        with tf.init_scope():
            return self._source.reader(self._split)

    def gather(self, rows: tf.Tensor) -> Example:
        return tf.map_fn(self._decoded, rows, fn_output_signature=self.specs)

    def _decoded(self, row: tf.Tensor) -> Example:
        return self._task.decode(self._read(row))

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        self.raise_if_undecodable(rows)
        parts = [self._decoded(tf.constant(row, tf.int64)) for row in rows]
        return {name: np.stack([part[name].numpy() for part in parts]) for name in self.specs}

    def raise_if_undecodable(self, rows: np.ndarray) -> None:
        for row in rows:
            try:
                self._decoded(tf.constant(row, tf.int64))
            except READ_ERRORS as error:
                raise undecodable(self._source, int(self.short["id"][row]), error) from None


class Sequential(Undecoded):
    """Of a source that gives its examples only one after the other; see `sequential_batches`."""

    def raw(self, rows: np.ndarray) -> tf.data.Dataset:
        """The examples of these rows as they are in the source, in its order."""
        return chosen(self._source.examples(self._split), rows)

    def decoded(self, raw: tf.data.Dataset) -> tf.data.Dataset:
        """The same, decoded."""
        return raw.map(self._task.decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        rows = np.asarray(rows)
        self.raise_if_undecodable(rows)
        some = np.unique(rows)
        whole = self.decoded(self.raw(some)).batch(len(some))
        (found,) = without_autotune(whole).as_numpy_iterator()
        return {name: values[np.searchsorted(some, rows)] for name, values in found.items()}

    def raise_if_undecodable(self, rows: np.ndarray) -> None:
        for example in self.raw(np.asarray(rows)):
            try:
                self._task.decode(example)
            except READ_ERRORS as error:
                raise undecodable(self._source, int(example["id"]), error) from None


def undecodable(source: Source, id: int, error: tf.errors.OpError) -> UsageError:
    """One line that names the example."""
    return UsageError(
        f"{source.location(id)} cannot be decoded: {reason(error)}; "
        "--clean.enabled finds such examples and leaves them out"
    )


def decoded_specs(source: Source, task: Task) -> dict[str, tf.TensorSpec]:
    """Shape and dtype of each field of a decoded example."""

    def example() -> Example:
        fields = source.info.fields.items()
        return {n: tf.zeros([1 if d is None else d for d in f.shape], f.dtype) for n, f in fields}

    return tf.data.Dataset.from_tensors(example()).map(task.decode).element_spec
