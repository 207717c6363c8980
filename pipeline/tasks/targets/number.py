"""Numbers: one or several for each example, fitted with the squared error."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Example,
    Info,
    Metadata,
    OutputSpec,
    Source,
    Target,
    TrainingExamples,
)
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import ensure_shape


@register
def number(
    info: Info | Metadata, *, field: str = "target", scaled: bool = True
) -> Target:
    """One or several numbers.

    Args:
        info: The source's description, or the metadata of a run.
        field: The field of the source.
        scaled: Train with numbers of mean 0 and deviation 1 over the training examples,
            so that prices are learned as fast as fractions. Predictions, and all
            metrics but the loss, are in the numbers' own units. Your own network gets
            numbers as they are.

    Raises:
        UsageError: The field is missing or has another type or shape.
    """
    if not isinstance(info, Info):
        return NumberTarget(info)
    spec = info.field(field)
    is_number = spec.dtype.is_floating or spec.dtype.is_integer
    if not is_number or spec.shape.rank not in (0, 1) or None in spec.shape.as_list():
        raise UsageError(
            f"{field}: the target must be one number, or a vector of numbers, per"
            f" example; got {spec.dtype.name} of shape {spec.shape}"
        )
    metadata: dict[str, Any] = {}
    if scaled:
        width = spec.shape.num_elements()
        metadata["target_mean"] = [0.0] * width
        metadata["target_deviation"] = [1.0] * width
    if spec.shape.rank == 1:
        metadata["target_shape"] = spec.shape.as_list()
    if field != "target":
        metadata["target_field"] = field
    elif info.target_name:
        metadata["target_name"] = info.target_name
    return NumberTarget(metadata)


class NumberTarget(Target):
    """Decoded examples have `target`, float32 () or (n,), in its own units."""

    decodes_batches = True
    selection_metric = ("r2", 1)
    not_decoded = frozenset({"target_mean", "target_deviation"})

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.shape = tuple(metadata.get("target_shape", ()))
        self._width = self.shape[0] if self.shape else 1
        self._field = metadata.get("target_field", "target")
        self.output = OutputSpec((self._width,), "linear")
        self._mean = metadata.get("target_mean")
        self._deviation = metadata.get("target_deviation")
        if metadata.get("raw"):
            self._mean = None

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns mean and deviation of each number, unless they are not scaled."""
        if self._mean is None:
            return {}
        values = examples.column(self._field).astype(np.float64)
        values = values.reshape(-1, self._width)
        with np.errstate(invalid="ignore", over="ignore"):  # `check` refuses these
            mean = values.mean(axis=0)
            deviation = values.std(axis=0)
        varies = deviation > 1e-30
        return {
            "target_mean": mean.tolist(),
            "target_deviation": np.where(varies, deviation, 1.0).tolist(),
        }

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        """Converts numbers of any type to float32."""
        target = ensure_shape(example[self._field], self.shape)
        return {"target": tf.cast(target, tf.float32)}

    def match(self, source: Source) -> "NumberTarget":
        field = self._field if self._field in source.info.fields else "target"
        return NumberTarget({**self.metadata, "target_field": field})

    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        values = columns["target"]
        for row, *index in np.argwhere(~np.isfinite(values)):
            name = f"number {index[0]} of the target" if index else "the target"
            raise UsageError(
                f"split {split}: {name} of {locate(int(columns['id'][row]))} is"
                f" {values[row, *index]} in float32; use a finite number, or remove the"
                " example"
            )

    def y(self, batch: Example) -> tf.Tensor:
        """float32 (batch, n), like the outputs: (batch,) minus (batch, 1) would be
        (batch, batch).
        """
        return tf.reshape(batch["target"], (-1, self._width))

    def head(self, features: keras.KerasTensor, mask: Any = None) -> keras.KerasTensor:
        """Returns numbers, (batch, n); raises UsageError unless features are (batch,
        m).
        """
        if len(features.shape) != 2:
            shape = ", ".join(map(str, ("batch", *features.shape[1:])))
            raise UsageError(
                "--model.name: the features must be a vector per example, (batch, n);"
                f" got ({shape}); add GlobalAveragePooling2D or Flatten"
            )
        dense = keras.layers.Dense(self._width, dtype="float32", name="prediction")
        outputs = dense(features)
        if self._mean is None:
            return outputs
        units = keras.layers.Rescaling(
            self._deviation, self._mean, dtype="float32", name="units"
        )
        return units(outputs)

    def loss(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        """The squared error, averaged over the numbers; in deviations if scaled."""
        if self._mean is None:
            return keras.losses.mean_squared_error
        deviation = tf.constant(self._deviation, tf.float32)

        def loss(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
            error = (tf.cast(outputs, tf.float32) - y) / deviation
            return tf.reduce_mean(error**2, axis=-1)

        return loss

    def metrics(self) -> list[keras.metrics.Metric]:
        """Returns root mean squared and mean absolute error, in units of the target."""
        return [
            keras.metrics.RootMeanSquaredError(name="rmse"),
            keras.metrics.MeanAbsoluteError(name="mae"),
        ]

    def predict(self, outputs: tf.Tensor, batch: Example) -> Example:
        """Returns `prediction`, float32 (batch,) or (batch, n), in units of the
        target.
        """
        prediction = tf.cast(outputs, tf.float32)
        return {"prediction": prediction if self.shape else prediction[:, 0]}

    def outputs_of(self, predictions: Example) -> tf.Tensor:
        return tf.reshape(predictions["prediction"], (-1, self._width))

    def column_endings(self) -> list[str]:
        """The endings of the names of columns: none, or `_0`, `_1`, ..."""
        if not self.shape:
            return [""]
        return [f"_{index}" for index in range(self._width)]
