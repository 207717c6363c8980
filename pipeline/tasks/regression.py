"""One number for a vector of features, by squared error."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Facts, Info, Task
from pipeline.tasks import _signatures
from pipeline.utils.errors import UsageError

# Pairs of true and predicted values that `evaluate` keeps for the picture.
_PAIRS = 500


def facts(info: Info) -> dict[str, Any]:
    """What the data say: names of the features. Mean 0 and deviation 1 until `learn` knows better.

    Raises UsageError unless the source has `features` (n,) and `target` (), both of numbers.
    """
    for name, rank, meant in (("features", 1, "a vector"), ("target", 0, "one number")):
        field = info.field(name)
        numbers = field.dtype.is_floating or field.dtype.is_integer
        if not numbers or field.shape.rank != rank or not field.shape.is_fully_defined():
            raise UsageError(
                f"regression needs {name} to be {meant} for each example; "
                f"the source gives {field.dtype.name} of shape {field.shape}"
            )
    (count,) = info.field("features").shape
    names = info.feature_names or [str(i) for i in range(count)]
    if len(names) != count or not count:
        raise UsageError(f"the source has {count} features and {len(names)} names for them")
    return {"feature_names": list(names), "mean": [0.0] * count, "deviation": [1.0] * count}


def task(facts: Facts) -> Task:
    """The task of these facts."""
    return Regression(facts)


class Regression(Task):
    """Batches hold `features` float32 (batch, n) and `target` float32 (batch,).

    The network gets each feature with the mean 0 and the deviation 1 that it has in training.
    Least squares has the same answer in any units, but gradient descent needs steps in proportion
    to the spread of the units. The target keeps its own.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.feature_names: list[str] = facts["feature_names"]
        self._mean = np.array(facts["mean"], np.float32)
        self._deviation = np.array(facts["deviation"], np.float32)
        self.compared_by = ("r2", 1)

    def decode(self, example: Example) -> Example:
        """Numbers of any type to float32."""
        features = tf.ensure_shape(example["features"], (len(self.feature_names),))
        return {
            **example,
            "features": tf.cast(features, tf.float32),
            "target": tf.cast(tf.ensure_shape(example["target"], ()), tf.float32),
        }

    def check(
        self, columns: Mapping[str, np.ndarray], split: str, locate: Callable[[int], str]
    ) -> None:
        remedy = "give a finite number, or leave the example out by --clean.manifest"
        wrong = np.argwhere(~np.isfinite(columns["features"]))
        if len(wrong):
            at, feature = wrong[0]
            raise UsageError(
                f"split {split}: feature {self.feature_names[feature]!r} of "
                f"{locate(int(columns['id'][at]))} is {columns['features'][at, feature]} in "
                f"float32; {remedy}"
            )
        wrong = np.flatnonzero(~np.isfinite(columns["target"]))
        if len(wrong):
            raise UsageError(
                f"split {split}: the target of {locate(int(columns['id'][wrong[0]]))} is "
                f"{columns['target'][wrong[0]]} in float32; {remedy}"
            )

    def learn(self, column: Callable[[str], np.ndarray]) -> Facts:
        """Mean and standard deviation of each feature over the training examples."""
        features = column("features").astype(np.float64)
        mean, deviation = features.mean(axis=0), features.std(axis=0)
        # A feature that float32 cannot tell from a constant would become noise.
        varies = deviation > np.maximum(np.abs(mean) * np.finfo(np.float32).eps, 1e-30)
        return {"mean": mean.tolist(), "deviation": np.where(varies, deviation, 1.0).tolist()}

    def limits(self) -> list[str]:
        return [
            "The metrics hold for features like those of the training examples; of others nothing "
            "has been measured.",
            f"Features are told apart by their order alone: {', '.join(self.feature_names)}.",
        ]

    def prepare(self, batch: Example) -> Example:
        """Features to mean 0 and deviation 1, as far as the training examples tell."""
        return {**batch, "features": (batch["features"] - self._mean) / self._deviation}

    def target(self, batch: Example, seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Both y and the outputs are (batch, 1): (batch,) minus (batch, 1) would be a square."""
        return batch["features"], batch["target"][:, None], batch["weight"]

    def inputs(self) -> keras.KerasTensor:
        return keras.Input((len(self.feature_names),), dtype="float32", name="features")

    def head(self, features: keras.KerasTensor, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """One number, (batch, 1)."""
        return keras.layers.Dense(1, dtype="float32", name="prediction")(features)

    def loss(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        return keras.losses.mean_squared_error  # the mean over the last axis, which is one number

    def metrics(self) -> list[keras.metrics.Metric]:
        """Root of the mean squared error, and mean absolute error, in units of the target."""
        return [
            keras.metrics.RootMeanSquaredError(name="rmse"),
            keras.metrics.MeanAbsoluteError(name="mae"),
        ]

    def answer(self, outputs: tf.Tensor, batch: Example) -> Example:
        """`prediction` float32 (batch,), in units of the target."""
        return {"prediction": tf.cast(outputs[:, 0], tf.float32)}

    def evaluate(self, answers: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Loss; mean squared, root mean squared and mean absolute error; r2; pairs for a picture.

        `r2` is the share of the target's variance that is explained, 1 - mse / variance: at most
        1, negative for a model worse than the mean of these targets; None where they are all alike.
        """
        truth = answers["truth"][:, 0].astype(np.float64)
        predicted = answers["prediction"].astype(np.float64)
        squared = float(((predicted - truth) ** 2).mean())
        some = np.unique(np.linspace(0, len(truth) - 1, _PAIRS).astype(int))
        return {
            "examples": len(truth),
            "loss": float(answers["loss"].mean()),
            "mse": squared,
            "rmse": squared**0.5,
            "mae": float(np.abs(predicted - truth).mean()),
            "r2": float(1 - squared / truth.var()) if np.ptp(truth) else None,
            "pairs": {"true": truth[some].tolist(), "predicted": predicted[some].tolist()},
        }

    def pictures(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What was predicted over what is true; on the line, the two are equal."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 5), layout="constrained")
        axes = figure.subplots()
        pairs = metrics["pairs"]
        axes.scatter(pairs["true"], pairs["predicted"], s=12, alpha=0.6)
        axes.axline((pairs["true"][0],) * 2, slope=1, color="black", linewidth=0.8)
        axes.set(
            xlabel="true",
            ylabel="predicted",
            title=f"root mean squared error {metrics['rmse']:.4g}",
        )
        return {"predictions.png": figure}

    def show(self, axes: Any, example: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """The features as bars, in deviations from their means; its title is the answer."""
        values = (np.asarray(example["features"]) - self._mean) / self._deviation
        axes.barh(range(len(values)), values)
        axes.set_yticks(range(len(values)), self.feature_names, parse_math=False)
        axes.invert_yaxis()
        predicted, true = float(answer["prediction"]), float(example["target"])
        axes.set_title(f"{predicted:.4g}, true {true:.4g}", fontsize=9)

    def serve(
        self, model: Callable[..., tf.Tensor]
    ) -> dict[str, tuple[Callable[..., Example], list[tf.TensorSpec]]]:
        """`serving_default(features)`, raw as in the source: float32 (batch, n).

        `regress(inputs)` is what the Regress request of TensorFlow Serving asks for: serialized
        `tf.Example`s with the n numbers in `features`. A number that is not finite, or so large
        that the answer would not be, is refused.
        """
        count = len(self.feature_names)
        listed = {"features": tf.io.FixedLenFeature((count,), tf.float32)}

        def predict(features: tf.Tensor) -> Example:
            batch = self.prepare({"features": _signatures.batch(features, (None, count))})
            inputs = _signatures.finite(batch["features"], "features")
            outputs = _signatures.finite(model(inputs, training=False), "outputs of the network")
            return self.answer(outputs, batch)

        def regress(inputs: tf.Tensor) -> Example:
            features = _signatures.examples(inputs, listed)["features"]
            return {"outputs": predict(features)["prediction"]}

        return {
            "serving_default": (
                predict,
                [tf.TensorSpec((None, count), tf.float32, name="features")],
            ),
            "regress": (regress, [tf.TensorSpec((None,), tf.string, name="inputs")]),
        }

    def requests(
        self, columns: Mapping[str, np.ndarray]
    ) -> dict[str, dict[str, np.ndarray | list[bytes]]]:
        features = columns["features"]
        return {
            "serving_default": {"features": features},
            "regress": {"inputs": [_signatures.example({"features": row}) for row in features]},
        }
