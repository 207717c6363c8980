"""Regression: one number for each vector of features, trained with the
squared error.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.contracts import (
    Example,
    Info,
    Metadata,
    Requests,
    Signatures,
    Task,
    TrainingExamples,
)
from pipeline.serving import request_guards
from pipeline.tasks import _metrics, _plots
from pipeline.utils.errors import UsageError


def regression(info: Info | Metadata, *, raw: bool = False) -> Task:
    """One number per example; for sources with the numeric fields `features` (n,) and
    `target` ().

    Args:
        info: The source's description, or the metadata of a run.
        raw: Give the model features as they are, instead of with mean 0 and deviation
            1.

    Raises:
        UsageError: A field is missing or has another type or shape.
    """
    if not isinstance(info, Info):
        return Regression(info)
    metadata = _metadata(info)
    return Regression({**metadata, "raw": True} if raw else metadata)


def _metadata(info: Info) -> dict[str, Any]:
    """Returns names of the features, and mean 0 and deviation 1 for `learn` to set."""
    for name, rank, meaning in (
        ("features", 1, "a vector"),
        ("target", 0, "one number"),
    ):
        field = info.field(name)
        numbers = field.dtype.is_floating or field.dtype.is_integer
        if not numbers or field.shape.rank != rank or not all(field.shape):
            raise UsageError(
                f"regression needs {name} to be {meaning} per example; "
                f"got {field.dtype.name} of shape {field.shape}"
            )
    (count,) = info.field("features").shape
    names = info.feature_names or [str(i) for i in range(count)]
    return {
        "feature_names": list(names),
        "mean": [0.0] * count,
        "deviation": [1.0] * count,
    }


def _moments(examples: TrainingExamples) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the features in float32; streamed if long."""
    if "features" in examples.short_fields:
        column = examples.column("features").astype(np.float32).astype(np.float64)
        return column.mean(axis=0), column.std(axis=0)
    mean = np.zeros(1)
    total = np.zeros(1)  # squares of the distances from the mean
    count = 0
    for batch in examples.batches():
        features = batch["features"].astype(np.float32).astype(np.float64)
        difference = features.mean(axis=0) - mean
        previous, count = count, count + len(features)
        mean = mean + difference * (len(features) / count)
        total = total + features.var(axis=0) * len(features)
        total += difference**2 * (previous * len(features) / count)
    return mean, np.sqrt(total / count)


class Regression(Task):
    """Batches have `features` float32 (batch, n) and `target` float32 (batch,).

    The network gets features with mean 0 and standard deviation 1 over the training
    examples: least squares has the same solution in any units, but gradient descent
    needs steps proportional to the spread of each feature. The target keeps its units.
    """

    not_decoded = frozenset({"mean", "deviation"})

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.feature_names: list[str] = metadata["feature_names"]
        self._mean = np.array(metadata["mean"], np.float32)
        self._deviation = np.array(metadata["deviation"], np.float32)
        self.selection_metric = ("r2", 1)

    def decode(self, example: Example) -> Example:
        """Converts numbers of any type to float32."""
        features = tf.ensure_shape(example["features"], (len(self.feature_names),))
        return {
            **example,
            "features": tf.cast(features, tf.float32),
            "target": tf.cast(tf.ensure_shape(example["target"], ()), tf.float32),
        }

    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        for field in ("features", "target"):
            for row, *feature in np.argwhere(~np.isfinite(columns[field])):
                name = "the target"
                if feature:
                    name = f"feature {self.feature_names[feature[0]]!r}"
                value = columns[field][row, *feature]
                raise UsageError(
                    f"split {split}: {name} of {locate(int(columns['id'][row]))} is"
                    f" {value} in float32; use a finite number, or remove the example"
                )

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Computes mean and standard deviation of each feature."""
        if self.metadata.get("raw"):
            return {}
        with np.errstate(all="ignore"):  # `check` names numbers that are not finite
            mean, deviation = _moments(examples)
        # Dividing a feature that is constant in float32 would only amplify rounding
        # errors.
        varies = deviation > np.maximum(np.abs(mean) * np.finfo(np.float32).eps, 1e-30)
        return {
            "mean": mean.tolist(),
            "deviation": np.where(varies, deviation, 1.0).tolist(),
        }

    def limitations(self) -> list[str]:
        return [
            (
                "The metrics hold for features like those of the training examples;"
                " other features have not been tested."
            ),
            (
                "Features are identified only by their order:"
                f" {', '.join(self.feature_names)}."
            ),
        ]

    def prepare(self, batch: Example) -> Example:
        """Scales features to mean 0 and deviation 1 over the training examples."""
        return {**batch, "features": (batch["features"] - self._mean) / self._deviation}

    def target(
        self, batch: Example, seeds: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns inputs, y and weights.

        y is (batch, 1) like the outputs: (batch,) minus (batch, 1) would be (batch,
        batch).
        """
        return batch["features"], batch["target"][:, None], batch["weight"]

    def inputs(self) -> keras.KerasTensor:
        return keras.Input((len(self.feature_names),), dtype="float32", name="features")

    def head(
        self, features: keras.KerasTensor, inputs: keras.KerasTensor
    ) -> keras.KerasTensor:
        """Returns a number per example, (batch, 1)."""
        return keras.layers.Dense(1, dtype="float32", name="prediction")(features)

    def standalone(self, network: keras.Model, output_kind: str) -> keras.Model:
        inputs = self.inputs()
        variance = self._deviation.astype(np.float64) ** 2
        standardize = keras.layers.Normalization(
            mean=self._mean.tolist(),
            variance=variance.tolist(),
            dtype="float32",
            name="standardize",
        )
        inner = keras.Model(network.inputs, network.outputs[0], name="network")
        return keras.Model(inputs, inner(standardize(inputs)))

    def loss(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        return keras.losses.mean_squared_error  # the last axis has length 1

    def metrics(self) -> list[keras.metrics.Metric]:
        """Returns root mean squared and mean absolute error, in units of the target."""
        return [
            keras.metrics.RootMeanSquaredError(name="rmse"),
            keras.metrics.MeanAbsoluteError(name="mae"),
        ]

    def answer(self, outputs: tf.Tensor, batch: Example) -> Example:
        """Returns `prediction`, float32 (batch,), in units of the target."""
        return {"prediction": tf.cast(outputs[:, 0], tf.float32)}

    def evaluate(self, answers: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """See `_metrics.regression`."""
        return _metrics.regression(answers)

    def pictures(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {"predictions.png": _plots.predictions(metrics)}

    def show(
        self, axes: Any, example: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> None:
        """Draws the standardized features as bars, with the answer as the title."""
        values = (np.asarray(example["features"]) - self._mean) / self._deviation
        _plots.features(
            axes, values, self.feature_names, answer["prediction"], example["target"]
        )

    def serve(self, model: Callable[..., tf.Tensor]) -> Signatures:
        """`serving_default(features)` takes unscaled features, float32 (batch, n).

        It rejects numbers that are not finite, or so large that the answer would not be
        finite.
        """
        count = len(self.feature_names)

        def predict(features: tf.Tensor) -> Example:
            features = request_guards.batch(features, (None, count))
            batch = self.prepare({"features": features})
            inputs = request_guards.finite(batch["features"], "features")
            outputs = model(inputs, training=False)
            outputs = request_guards.finite(outputs, "outputs of the network")
            return self.answer(outputs, batch)

        rows = tf.TensorSpec((None, count), tf.float32, name="features")
        return {"serving_default": (predict, [rows])}

    def requests(self, columns: Mapping[str, np.ndarray]) -> Requests:
        return {"serving_default": {"features": columns["features"]}}
