"""Reads the fields of many examples into arrays, and names the errors of reading."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.utils.errors import UsageError, reason

READ_ERRORS = (tf.errors.OpError, UnicodeDecodeError)
"""Raised by reading and decoding; the second if TensorFlow quotes bytes that are not
text.
"""

without_autograph = tf.autograph.experimental.do_not_convert
"""For functions without conditions on tensors: to convert one takes 20 to 100 ms."""

_ALIGNMENT = 64  # bytes; TensorFlow copies an array that begins elsewhere


def is_short(spec: tf.TensorSpec) -> bool:
    """Whether a field is a number or a vector of at most 4 KB, to keep in memory."""
    numeric = spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool
    if not numeric or spec.shape.rank is None or spec.shape.rank > 1:
        return False
    length = spec.shape.num_elements()
    return length is not None and length * spec.dtype.size <= 4096


def row_bytes(specs: Mapping[str, tf.TensorSpec]) -> int:
    """Bytes of one example."""
    return sum(spec.dtype.size * spec.shape.num_elements() for spec in specs.values())


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array to fill, for `as_tensor`."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """A tensor in the memory of an array from `empty`, which must not change any more.

    `tf.convert_to_tensor` copies an array twice: 800 MB need 1.5 GB more.
    """
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def concatenate(batches: tf.data.Dataset, split: str) -> dict[str, np.ndarray]:
    """Concatenates the fields of all batches, (examples, ...).

    Raises UsageError naming the split if it cannot be read.
    """
    specs = batches.element_spec.items()
    empty = {
        name: np.empty((0, *spec.shape[1:]), spec.dtype.as_numpy_dtype)
        for name, spec in specs
    }
    parts = [empty]
    try:
        parts.extend(with_options(batches).as_numpy_iterator())
    except READ_ERRORS as error:
        raise UsageError(
            f"the split {split!r} cannot be read: {reason(error)}"
        ) from None
    return {name: np.concatenate([part[name] for part in parts]) for name, _ in specs}


def ensure_shape(values: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """Checks the shape of an example, or of the examples of a batch, whose rank is one
    higher; the same tensor if the shape is known already.
    """
    known = values.shape
    if known.rank is None or known.rank <= len(shape):
        return values if known == shape else tf.ensure_shape(values, shape)
    if known[1:] == shape:
        return values
    return tf.ensure_shape(values, (None, *shape))


def with_options(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same dataset, whose iterators fill their buffers at once and are not tuned.

    The first batches are decoded while the function that takes them is traced.
    `AUTOTUNE` means all cores, at most 16: tuning delays the deletion of iterators
    (`benchmarks/README.md`).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_warm_start = True
    return dataset.with_options(options)
