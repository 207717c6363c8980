"""A source whose examples lie in memory, shared by the siblings that read such data."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from pipeline.contracts import Info, Source, is_short


class ArraySource(Source):
    """One split `train`; the id of an example is its position.

    Args:
        columns: Field of an example (`image`, `label`, ...) -> array of any dtype whose first axis
            counts the examples, of which there is at least one; all are of one length.
        class_names: Names of the labels 0, 1, ...
        feature_names: Names of the numbers in `features`.
    """

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        *,
        class_names: tuple[str, ...] | None = None,
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        (count,) = {len(column) for column in columns.values()}
        self._columns = {"id": np.arange(count, dtype=np.int64), **columns}
        self.info = Info(
            splits={"train": count},
            fields={k: tf.TensorSpec(v.shape[1:], v.dtype) for k, v in self._columns.items()},
            class_names=class_names,
            feature_names=feature_names,
        )

    def examples(self, split: str) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._columns)

    def columns(self, split: str) -> Mapping[str, np.ndarray]:
        short = (name for name, spec in self.info.fields.items() if is_short(spec))
        return {name: self._columns[name] for name in short}
