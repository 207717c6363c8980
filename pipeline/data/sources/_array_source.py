"""A source whose examples are arrays in memory, shared by the sources that read such data."""

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.utils.tf_data import is_short


class ArraySource(Source):
    """One split `train`; the id of an example is its index.

    Args:
        columns: Field of an example (`image`, `label`, ...) -> array of any dtype, (examples, ...),
            all of the same length, at least 1.
        class_names: Names of the labels 0, 1, ...
        feature_names: Names of the numbers in `features`.
        name: Of the data, for messages, such as a file name.
    """

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        *,
        class_names: tuple[str, ...] | None = None,
        feature_names: tuple[str, ...] | None = None,
        name: str = "",
    ) -> None:
        (count,) = {len(column) for column in columns.values()}
        self._columns = {"id": np.arange(count, dtype=np.int64), **columns}
        self._name = name
        self.info = Info(
            splits={"train": count},
            fields={k: tf.TensorSpec(v.shape[1:], v.dtype) for k, v in self._columns.items()},
            class_names=class_names,
            feature_names=feature_names,
        )

    def examples(self, split: str) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._columns)

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        columns = {name: tf.constant(column) for name, column in self._columns.items()}
        return lambda position: {k: tf.gather(column, position) for k, column in columns.items()}

    def columns(self, split: str) -> Mapping[str, np.ndarray]:
        short = (name for name, spec in self.info.fields.items() if is_short(spec))
        return {name: self._columns[name] for name in short}

    def fingerprint(self) -> str:
        """Hash of all arrays and names."""
        digest = hashlib.sha256(repr((self.info.class_names, self.info.feature_names)).encode())
        for name, column in sorted(self._columns.items()):
            digest.update(repr((name, column.dtype.str, column.shape)).encode())
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def content(self) -> str:
        """The fingerprint."""
        return self.fingerprint()

    def location(self, id: int) -> str:
        """Such as `example 17 of mine.npz`."""
        return f"example {id} of {self._name}" if self._name else f"example {id}"
