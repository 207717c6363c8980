"""Stores of decoded examples: in memory, on the device, or decoded on the fly."""

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Source, Task
from pipeline.data import block_decoding
from pipeline.data.image_decoding import WARNINGS
from pipeline.runtime import native_logs
from pipeline.utils import progress_bar
from pipeline.utils.errors import UsageError, reason
from pipeline.utils.tf_data import READ_ERRORS, is_short, with_options

DIGEST = "_digest"
"""Column with a hash of all fields of an example that are not short."""
ROW = "row"
"""Field of a batch with row numbers, for which the device gathers all other fields."""

_BLOCK = 256  # examples that are decoded at once
_REMEDY = "remove it, or exclude such examples from training with --clean.enabled"


class Store(abc.ABC):
    """Decoded examples, accessed by row.

    `specs` has the shape and dtype of each field. `short` has the columns (rows, ...)
    of the fields that are numbers or short vectors, such as `id` and `label`. If the
    examples are cached, `digest` has a hash of the long fields of each, such as its
    pixels, int64 (rows,).
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

    @abc.abstractmethod
    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The examples in these rows, as NumPy arrays.

        Raises UsageError naming the first example that cannot be read or decoded.
        """

    @abc.abstractmethod
    def gather(self, rows: tf.Tensor) -> Example:
        """The batch of these rows, int64 (n,), inside `tf.data`."""

    @property
    def device_cache(self) -> "DeviceCache | None":
        """Gathers the fields inside the step, if `gather` yields only row numbers."""
        return None


class MemoryStore(Store):
    """Columns in the memory of the host: name -> (rows, ...)."""

    def __init__(
        self, columns: Mapping[str, Any], digest: np.ndarray | None = None
    ) -> None:
        with tf.device("CPU"):
            self.columns = {
                name: tf.convert_to_tensor(column) for name, column in columns.items()
            }
        specs = {
            name: tf.TensorSpec(column.shape[1:], column.dtype)
            for name, column in self.columns.items()
        }
        # Not `numpy`, which copies.
        short = {
            name: np.asarray(memoryview(self.columns[name]))
            for name, spec in specs.items()
            if is_short(spec)
        }
        super().__init__(specs, short, digest)

    def gather(self, rows: tf.Tensor) -> Example:
        return {name: tf.gather(column, rows) for name, column in self.columns.items()}

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {name: column.numpy() for name, column in self.gather(rows).items()}


class DeviceStore(MemoryStore):
    """Columns copied to each compute device, where the step gathers the rows."""

    def __init__(
        self, columns: Mapping[str, Any], digest: np.ndarray | None = None
    ) -> None:
        super().__init__(columns, digest)
        self._device_cache = DeviceCache(self.columns)

    @property
    def device_cache(self) -> "DeviceCache":
        return self._device_cache

    def gather(self, rows: tf.Tensor) -> Example:
        return {ROW: rows}

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {
            name: tf.gather(column, rows).numpy()
            for name, column in self.columns.items()
        }


class DeviceCache:
    """Copies columns to a compute device when a step first uses them there."""

    def __init__(self, columns: Mapping[str, tf.Tensor]) -> None:
        self._columns = columns
        self.by_device: dict[str, dict[str, tf.Tensor]] = {}

    def gather(self, batch: Example) -> Example:
        """Replaces the row numbers of a batch by the fields of these rows."""
        fields = {
            name: tf.gather(column, batch[ROW])
            for name, column in self._local_columns().items()
        }
        return {**fields, "epoch": batch["epoch"], "weight": batch["weight"]}

    def _local_columns(self) -> dict[str, tf.Tensor]:
        device = _current_device()
        if device not in self.by_device:
            with tf.init_scope(), tf.device(device):
                self.by_device[device] = {
                    name: tf.identity(column) for name, column in self._columns.items()
                }
        return self.by_device[device]


def _current_device() -> str:
    """The device of this replica; outside a replica, the first GPU or else the CPU."""
    if not tf.distribute.has_strategy():
        gpus = tf.config.list_logical_devices("GPU")
        return (gpus or tf.config.list_logical_devices("CPU"))[0].name
    context = tf.distribute.get_replica_context()
    devices = tf.distribute.get_strategy().extended.worker_devices
    # Not `context.devices`, which fails on all but the first of several workers.
    replica = tf.get_static_value(context.replica_id_in_sync_group) if context else 0
    # Full names include the job and the task.
    device = tf.DeviceSpec.from_string(devices[replica % len(devices)])
    return f"/device:{device.device_type}:{device.device_index}"


class OnTheFly(Store):
    """Reads and decodes an example whenever it is needed, without a cache."""

    def __init__(
        self,
        source: Source,
        task: Task,
        split: str,
        specs: Mapping[str, tf.TensorSpec],
        short: Mapping[str, np.ndarray],
        remedy: str = _REMEDY,
    ) -> None:
        super().__init__(specs, short)
        self._source = source
        self._task = task
        self._read = source.reader(split)
        self._remedy = remedy

    def gather(self, rows: tf.Tensor) -> Example:
        return tf.map_fn(self.decode, rows, fn_output_signature=self.specs)

    def decode(self, row: tf.Tensor) -> Example:
        """Reads and decodes the example in a row, an int64 of shape ()."""
        return self._task.decode(self._read(row))

    def _take(self, row: int) -> Example:
        try:
            return self.decode(tf.constant(row, tf.int64))
        except READ_ERRORS as error:
            id = int(self.short["id"][row])
            raise decoding_error(self._source, id, error, self._remedy) from None

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        # `decoder_warnings` names the examples.
        with native_logs.filter_stderr(WARNINGS):
            examples = [self._take(row) for row in rows]
        return {
            name: np.stack([example[name].numpy() for example in examples])
            for name in self.specs
        }


def decoding_error(
    source: Source, id: int, error: tf.errors.OpError, remedy: str = _REMEDY
) -> UsageError:
    """A one-line error that names the example and a remedy."""
    return UsageError(
        f"{source.location(id)} cannot be decoded: {reason(error)}; {remedy}"
    )


def decoded_specs(source: Source, task: Task) -> dict[str, tf.TensorSpec]:
    """Shape and dtype of each field of a decoded example.

    Raises UsageError if a field is not numeric, or if its shape is not fixed.
    """
    specs, _ = trace(source, task)
    return specs


def trace(
    source: Source, task: Task
) -> tuple[dict[str, tf.TensorSpec], dict[str, str]]:
    """The specs of decoded fields; and of those that are fields of the source, their
    names there.

    No example is read. Raises UsageError as `decoded_specs`.
    """
    unchanged: dict[str, str] = {}

    def decode(example: Example) -> Example:
        fields = task.decode(dict(example))
        for name, values in fields.items():
            for raw_name, raw_values in example.items():
                if values is raw_values:
                    unchanged[name] = raw_name
        return fields

    examples = tf.data.Dataset.from_generator(
        lambda: iter(()), output_signature=dict(source.info.fields)
    )
    specs = examples.map(decode).element_spec
    for name, spec in specs.items():
        dtype = spec.dtype
        if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
            raise UsageError(
                f"the decoded field {name!r} is {dtype.name}, but Task.decode must"
                " return numbers; leave it out, or turn it into numbers"
            )
        if not spec.shape.is_fully_defined():
            raise UsageError(
                f"the decoded field {name!r} has the shape {spec.shape}, but it must be"
                " the same for all examples; resize or pad it in Task.decode"
            )
    return specs, unchanged


def decode_arrays(
    source: Source,
    task: Task,
    split: str,
    positions: np.ndarray,
    specs: Mapping[str, tf.TensorSpec],
    columns: Mapping[str, np.ndarray],
) -> None:
    """Decodes examples of a source that has its `arrays`, many at a time.

    `columns` are some of the fields in `specs`, arrays (n, ...) that are filled for the
    examples at `positions`, int64 (n,). Raises UsageError naming the first example that
    cannot be decoded.
    """
    arrays = source.arrays(split)
    if arrays is None or not columns:
        return
    try:
        for done in block_decoding.decode(arrays, task, specs, positions, columns):
            progress_bar.count("decoding", done, len(positions))
    except block_decoding.DecodingError as error:
        store = OnTheFly(source, task, split, specs, source.columns(split))
        store.take(np.array([error.position]))  # raises an error that names it
        raise UsageError(f"the split {split!r} cannot be decoded") from None


def short_columns(
    source: Source,
    task: Task,
    split: str,
    columns: Mapping[str, np.ndarray],
    positions: np.ndarray,
) -> dict[str, np.ndarray]:
    """The short fields of decoded examples, (examples of the source's split, ...).

    `columns` are those of the source. Fields that `decode` makes or changes are
    computed for the examples at `positions`, int64 (n,), and 0 for the others; of
    `decode`, only what they depend on runs. Raises UsageError naming the first example
    that cannot be read or decoded.
    """
    specs, unchanged = trace(source, task)
    names = [name for name, spec in specs.items() if is_short(spec)]
    short = {
        name: columns[unchanged[name]]
        for name in names
        if unchanged.get(name) in columns
    }
    missing = [name for name in names if name not in short]
    if not missing:
        return short
    for name in missing:
        shape = (len(columns["id"]), *specs[name].shape)
        short[name] = np.zeros(shape, specs[name].dtype.as_numpy_dtype)
    progress_bar.stage("decoding", f"{', '.join(missing)} of {split}")
    if task.decodes_batches and source.arrays(split) is not None:
        parts = {name: short[name][positions] for name in missing}
        decode_arrays(source, task, split, positions, specs, parts)
        for name in missing:
            short[name][positions] = parts[name]
        return short
    read = source.reader(split)

    def compute(position: tf.Tensor) -> Example:
        fields = task.decode(read(position))
        return {name: fields[name] for name in missing}

    examples = tf.data.Dataset.from_tensor_slices(positions).map(
        compute, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    start = 0
    try:
        for batch in with_options(examples.batch(_BLOCK)).as_numpy_iterator():
            end = min(start + _BLOCK, len(positions))
            for name in missing:
                short[name][positions[start:end]] = batch[name]
            start = end
            progress_bar.count("decoding", start, len(positions))
    except READ_ERRORS as error:
        store = OnTheFly(source, task, split, specs, columns)
        store.take(positions[start : start + _BLOCK])  # names the example
        raise UsageError(
            f"the split {split!r} cannot be decoded: {reason(error)}"
        ) from None
    return short
