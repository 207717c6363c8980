"""Numbers: one or several for each example, fitted with the squared error."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Evaluator,
    Example,
    Info,
    Metadata,
    OutputSpec,
    Panel,
    Score,
    Source,
    Target,
    TrainingExamples,
)
from pipeline.utils import console
from pipeline.utils.columns import Columns
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import ensure_shape

_FEW = 20  # examples, of which an error says little
_PAIRS = 500  # of true and predicted values in a plot
_PANELS = 6  # numbers in a plot


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
        self._shape = tuple(metadata.get("target_shape", ()))
        self._width = self._shape[0] if self._shape else 1
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
        target = ensure_shape(example[self._field], self._shape)
        return {"target": tf.cast(target, tf.float32)}

    def match(self, source: Source) -> "NumberTarget":
        field = self._field if self._field in source.info.fields else "target"
        matched = NumberTarget({**self.metadata, "target_field": field})
        return matched

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
        return {"prediction": prediction if self._shape else prediction[:, 0]}

    def outputs_of(self, predictions: Example) -> tf.Tensor:
        return tf.reshape(predictions["prediction"], (-1, self._width))

    def evaluator(self, model: Any = None) -> Evaluator:
        return NumberEvaluator()

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`truth` and `prediction`, with a number if there are several, and `loss`."""
        count = len(predictions["loss"])
        truth = batch["target"].numpy().reshape(count, -1)
        prediction = predictions["prediction"].numpy().reshape(count, -1)
        columns = {}
        for index, ending in enumerate(self._endings()):
            columns[f"prediction{ending}"] = prediction[:, index]
            columns[f"truth{ending}"] = truth[:, index]
        return {**columns, "loss": predictions["loss"].numpy()}

    def _endings(self) -> list[str]:
        """The endings of the names of columns: none, or `_0`, `_1`, ..."""
        if not self._shape:
            return [""]
        return [f"_{index}" for index in range(self._width)]

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """The mean absolute error of the numbers, and the loss."""
        errors = []
        for ending in self._endings():
            prediction = rows[f"prediction{ending}"].astype(np.float64)
            errors.append(
                np.abs(prediction - rows[f"truth{ending}"].astype(np.float64))
            )
        error = Score.mean(np.mean(errors, axis=0), -1)
        return {"mean_absolute_error": error, **super().scores(rows)}

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """A table of several numbers."""
        lines = []
        if "per_number" in metrics:
            rows = []
            for name, scores in metrics["per_number"].items():
                rows.append([name, *(f"{value:.4g}" for value in scores.values())])
            header = ["number", *next(iter(metrics["per_number"].values()))]
            table = console.table(rows, header, right=range(1, len(header)))
            lines += table.splitlines()
            for name, scores in metrics["per_number"].items():
                if scores["r2"] < 0:
                    lines.append(
                        f"{'note':10} number {name} is predicted worse than by its mean"
                    )
        return lines

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """The mean, unless the mean squared error of one of the numbers is smaller by
        two standard errors; fewer than 20 examples are not judged.
        """
        if metrics["r2"] is None or metrics["examples"] < _FEW:
            return ""
        reductions = metrics["mse_reduction"]["mean"]
        errors = metrics["mse_reduction"]["standard_error"]
        for reduction, error in zip(reductions, errors, strict=True):
            if reduction > 2 * error:
                return ""
        return "always predicting the mean"

    def pictures(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """Predicted against true values, with the line of equality."""
        from matplotlib.figure import Figure

        endings = self._endings()[:_PANELS]
        size = (5 * len(endings), 5)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(endings), squeeze=False)[0]
        for axes, ending in zip(panels, endings, strict=True):
            truth = columns[f"truth{ending}"]
            predicted = columns[f"prediction{ending}"]
            rows = np.unique(np.linspace(0, len(truth) - 1, _PAIRS).astype(int))
            axes.scatter(truth[rows], predicted[rows], s=12, alpha=0.6)
            start = float(truth[0])
            axes.axline((start, start), slope=1, color="black", linewidth=0.8)
            error = float(np.sqrt(np.mean((truth - predicted) ** 2.0)))
            title = f"root mean squared error {error:.4g}"
            if len(rows) < len(truth):
                title += f"\n({len(rows):,} of {len(truth):,} examples are shown)"
            if ending:
                title = f"number {ending[1:]}: {title}"
            axes.set(xlabel="true", ylabel="predicted", title=title)
        return {"predictions.png": figure}

    def headline(self, metrics: Mapping[str, Any]) -> str:
        """The share of the variance that is explained, and the usual error."""
        name = self.metadata.get("target_name")
        of = f" of {name}" if name else ""
        error = f"mean absolute error {metrics['mae']:,.3f}"
        if metrics["r2"] is None:
            return f"{error}{of}"
        r2 = f"R² {metrics['r2']:.3f}{of}"
        return f"{r2} (0 = always predicting the mean); {error}"

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        if "per_number" in metrics:
            scores = metrics["per_number"]
            table = {"number": list(scores)}
            for key in next(iter(scores.values())):
                table[key] = [score[key] for score in scores.values()]
            yield Panel("Numbers", Columns(table))
        yield from super().panels(metrics, columns)

    def truth(self, example: Mapping[str, Any]) -> str:
        numbers = np.ravel(example["target"])[:3]
        return " ".join(f"{float(value):.4g}" for value in numbers)

    def explained_output(self, outputs: Any) -> tf.Tensor:
        """The first number."""
        return outputs[:, 0]

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Adds the prediction and the true value as the title."""
        words = []
        for values in (prediction["prediction"], example["target"]):
            numbers = np.ravel(values)[:3]
            words.append(" ".join(f"{float(value):.4g}" for value in numbers))
        separator = "\n" if self._shape else ", "
        axes.set_title(f"{words[0]}{separator}true {words[1]}", fontsize=9)


class NumberEvaluator(Evaluator):
    """Loss, mean squared, root mean squared and mean absolute error, and r2.

    `r2` is the fraction of the target's variance that is explained, 1 - mse / variance:
    at most 1, negative for a model worse than the mean of these targets, None if they
    are all equal; of several numbers, the mean over those that differ, and
    `per_number` has the errors of each.
    """

    def __init__(self) -> None:
        self._loss = 0.0
        self._true: list[np.ndarray] = []
        self._predicted: list[np.ndarray] = []

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        self._loss += float(predictions["loss"].numpy().astype(np.float64).sum())
        count = len(predictions["prediction"])
        self._true.append(batch["target"].numpy().reshape(count, -1))
        self._predicted.append(predictions["prediction"].numpy().reshape(count, -1))

    def result(self) -> dict[str, Any]:
        truth = np.concatenate(self._true).astype(np.float64)
        predicted = np.concatenate(self._predicted).astype(np.float64)
        squared = ((predicted - truth) ** 2).mean(axis=0)
        absolute = np.abs(predicted - truth).mean(axis=0)
        varies = np.ptp(truth, axis=0) > 0
        variance = np.where(varies, truth.var(axis=0), 1.0)
        explained = 1 - squared / variance
        reductions = (truth - truth.mean(axis=0)) ** 2 - (predicted - truth) ** 2
        error = reductions.std(axis=0) / len(reductions) ** 0.5
        metrics = {
            "examples": len(truth),
            "loss": self._loss / len(truth),
            "mse": float(squared.mean()),
            "rmse": float(squared.mean()) ** 0.5,
            "mae": float(absolute.mean()),
            "r2": float(explained[varies].mean()) if varies.any() else None,
        }
        # Of each number, compared with always predicting the mean.
        metrics["mse_reduction"] = {
            "mean": reductions.mean(axis=0).tolist(),
            "standard_error": error.tolist(),
        }
        if len(squared) > 1:
            per_number = {}
            for index in range(len(squared)):
                per_number[str(index)] = {
                    "rmse": float(squared[index]) ** 0.5,
                    "mae": float(absolute[index]),
                    "r2": float(explained[index]) if varies[index] else 0.0,
                }
            metrics["per_number"] = per_number
        return metrics
