"""Decodes the examples of a source that has them in memory, many at a time."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from pipeline.contracts import Task
from pipeline.utils.tf_data import READ_ERRORS, is_short, row_bytes

_MAX_ROWS = 1 << 16
_BLOCK_BYTES = 8 << 20  # of decoded examples
_MAX_THREADS = 16

Arrays = Mapping[str, np.ndarray]


class DecodingError(Exception):
    """An example cannot be decoded; `position` is its position in the source."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def decode(
    arrays: Arrays,
    task: Task,
    specs: Mapping[str, tf.TensorSpec],
    positions: np.ndarray,
    columns: Mapping[str, np.ndarray],
) -> Iterator[int]:
    """Decodes examples into `columns`; yields how many are ready, block by block.

    One function of TensorFlow decodes all blocks, on the processor.

    Args:
        arrays: As of `Source.arrays`.
        task: A task that decodes batches.
        specs: Shape and dtype of the decoded fields.
        positions: Of the examples in the arrays, int64 (n,).
        columns: Arrays (n, ...) to fill: some of the decoded fields.

    Raises:
        DecodingError: An example cannot be decoded.
    """
    function = _function(arrays, task, columns)
    size = max(1, min(_MAX_ROWS, _BLOCK_BYTES // max(1, row_bytes(specs))))

    def decode_block(start: int) -> int:
        rows = positions[start : start + size]
        try:
            batch = function(rows)
        except READ_ERRORS:
            raise DecodingError(_first_failure(function, rows)) from None
        for name, column in columns.items():
            column[start : start + len(rows)] = batch[name]
        return start + len(rows)

    threads = min(len(os.sched_getaffinity(0)), _MAX_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(decode_block, range(0, len(positions), size))


def _function(
    arrays: Arrays, task: Task, names: Iterable[str]
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """A function that decodes these fields of the examples at some positions."""

    def decode_fields(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        fields = task.decode(batch)
        return {name: fields[name] for name in names}

    specs = {}
    for name, column in arrays.items():
        dtype = tf.string if column.dtype == object else column.dtype
        specs[name] = tf.TensorSpec((None, *column.shape[1:]), dtype)
    with tf.device("CPU"):
        compiled = tf.function(decode_fields).get_concrete_function(specs)

    def function(positions: np.ndarray) -> dict[str, np.ndarray]:
        with tf.device("CPU"):
            batch = {
                name: tf.constant(_rows(column, positions), specs[name].dtype)
                for name, column in arrays.items()
            }
            return {name: values.numpy() for name, values in compiled(batch).items()}

    return function


def _rows(column: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The rows at ascending positions; a view if these are consecutive."""
    first, last = positions[0], positions[-1] + 1
    return column[first:last] if last - first == len(positions) else column[positions]


def _first_failure(function: Callable[..., object], positions: np.ndarray) -> int:
    """The first of these positions whose example cannot be decoded."""
    while len(positions) > 1:
        half = len(positions) // 2
        try:
            function(positions[:half])
            positions = positions[half:]
        except READ_ERRORS:
            positions = positions[:half]
    return int(positions[0])


def digests(
    columns: Arrays, specs: Mapping[str, tf.TensorSpec], count: int
) -> np.ndarray:
    """A hash of the long fields of each of `count` examples, int64 (count,).

    Equal to the hash of their serialized tensors, as `batching` computes it for one
    example.
    """
    names = sorted(name for name, spec in specs.items() if not is_short(spec))
    if not names:
        with tf.device("CPU"):
            digest = tf.strings.to_hash_bucket_fast(b"", tf.int64.max)
        return np.full(count, digest.numpy(), np.int64)
    size = sum(row_bytes({name: specs[name]}) for name in names)
    rows = max(1, _BLOCK_BYTES // max(1, size))
    headers = {name: _header(specs[name]) for name in names}
    parts = [np.empty(0, np.int64)]
    for start in range(0, count, rows):
        end = min(start + rows, count)
        contents = [b""] * (end - start)
        for name in names:
            header = headers[name]
            for row, values in enumerate(columns[name][start:end]):
                contents[row] += header + values.tobytes()
        with tf.device("CPU"):
            part = tf.strings.to_hash_bucket_fast(contents, tf.int64.max)
        parts.append(part.numpy())
    return np.concatenate(parts)


def _header(spec: tf.TensorSpec) -> bytes:
    """What a serialized tensor has before the bytes of its numbers."""
    values = tf.zeros(spec.shape, spec.dtype)
    return tf.io.serialize_tensor(values).numpy()[: -row_bytes({"": spec})]
