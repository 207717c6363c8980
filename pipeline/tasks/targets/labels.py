"""Labels: any number of several for each example."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Decision,
    Evaluator,
    Example,
    Info,
    Metadata,
    OutputSpec,
    Panel,
    Score,
    Source,
    Target,
)
from pipeline.serving import request_guards
from pipeline.tasks.targets import panels
from pipeline.tasks.targets.class_names import match_names
from pipeline.utils import console
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import ensure_shape

_BINS = 1000  # of probabilities, for the average precision
_ROWS = 20  # labels in a table


@register
def labels(info: Info | Metadata, *, field: str = "labels") -> Target:
    """Any of several labels: a vector of zeros and ones, whose names the source knows.

    Args:
        info: The source's description, or the metadata of a run.
        field: The field of the source.

    Raises:
        UsageError: The field is missing or has another type.
    """
    if not isinstance(info, Info):
        return LabelTarget(info)
    spec = info.field(field)
    is_number = spec.dtype.is_integer or spec.dtype.is_bool
    if not is_number or spec.shape.rank != 1 or not spec.shape.num_elements():
        raise UsageError(
            f"{field}: several labels per example must be a vector of zeros and ones;"
            f" got {spec.dtype.name} of shape {spec.shape}"
        )
    count = spec.shape.num_elements()
    names = info.class_names or tuple(str(index) for index in range(count))
    if len(names) != count:
        raise UsageError(
            f"{field} has {count} labels, but there are {len(names)} names"
        )
    metadata: dict[str, Any] = {"class_names": list(names)}
    if field != "labels":
        metadata["target_field"] = field
    return LabelTarget(metadata)


class LabelTarget(Target):
    """Decoded examples have `labels`, uint8 (n,), 1 for each label of the example."""

    decodes_batches = True
    selection_metric = ("f1", 1)

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.class_names: list[str] = metadata["class_names"]
        self.output = OutputSpec((len(self.class_names),), "sigmoid")
        self._field = metadata.get("target_field", "labels")
        self._classes: np.ndarray | None = None
        """Maps the classes of other data to those of the task."""

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        labels = example[self._field]
        if self._classes is not None:
            count = len(self.class_names)
            one_hot = tf.one_hot(self._classes, count, dtype=tf.int32)
            labels = tf.linalg.matvec(one_hot, tf.cast(labels, tf.int32), True)
        labels = ensure_shape(labels, (len(self.class_names),))
        return {"labels": tf.cast(labels, tf.uint8)}

    def match(self, source: Source) -> "LabelTarget":
        field = self._field if self._field in source.info.fields else "labels"
        matched = LabelTarget({**self.metadata, "target_field": field})
        matched._classes = match_names(source.info.class_names, self.class_names)
        return matched

    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        labels = columns["labels"]
        for row, index in np.argwhere(labels > 1):
            raise UsageError(
                f"split {split}: the label {self.class_names[index]!r} of"
                f" {locate(int(columns['id'][row]))} must be 0 or 1; got"
                f" {labels[row, index]}"
            )

    def review(self, columns: Mapping[str, np.ndarray]) -> list[Decision]:
        """Notes labels that no training example or every training example has."""
        labels = columns["labels"]
        counts = labels.sum(axis=0, dtype=np.int64)
        constant = np.flatnonzero((counts == 0) | (counts == len(labels)))
        if not len(constant):
            return []
        names = ", ".join(repr(self.class_names[index]) for index in constant[:3])
        if len(constant) > 3:
            names += ", ..."
        note = f"all training examples agree on {names}"
        return [Decision("note", note, "these cannot be learned")]

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        """Yields how many labels an example has, and how many examples a label."""
        train = columns["train"]["labels"]
        sizes = train.sum(axis=1, dtype=np.int64)
        yield (
            "labels",
            f"{len(self.class_names):,}; an example has {sizes.min():,} to"
            f" {sizes.max():,}, on average {sizes.mean():.2f}",
        )
        rows = []
        for index, name in enumerate(self.class_names[:_ROWS]):
            counts = [part["labels"][:, index].sum() for part in columns.values()]
            rows.append([name, *(f"{count:,}" for count in counts)])
        header = ["label", *columns]
        for line in console.table(rows, header, range(1, len(header))).splitlines():
            yield "", line

    def y(self, batch: Example) -> tf.Tensor:
        """float32 (batch, n)."""
        return tf.cast(batch["labels"], tf.float32)

    def head(self, features: keras.KerasTensor, mask: Any = None) -> keras.KerasTensor:
        """Returns a logit per label; UsageError unless features are (batch, n)."""
        if len(features.shape) != 2:
            shape = ", ".join(map(str, ("batch", *features.shape[1:])))
            raise UsageError(
                "--model.name: the features must be a vector per example, (batch, n);"
                f" got ({shape}); add GlobalAveragePooling2D or Flatten"
            )
        units = len(self.class_names)
        return keras.layers.Dense(units, dtype="float32", name="logits")(features)

    def loss(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        """The binary cross-entropy, averaged over the labels."""

        def loss(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
            outputs = tf.cast(outputs, tf.float32)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(y, outputs)
            return tf.reduce_mean(losses, axis=-1)

        return loss

    def metrics(self) -> list[keras.metrics.Metric]:
        """Returns the fraction of right yes-or-no predictions."""
        return [keras.metrics.BinaryAccuracy(name="binary_accuracy", threshold=0.0)]

    def predict(self, outputs: tf.Tensor, batch: Example) -> Example:
        """Returns `probabilities`, float32 (batch, n), and `labels`, string (batch,):
        the names with probability 0.5 or more, separated by `|`.
        """
        probabilities = tf.sigmoid(tf.cast(outputs, tf.float32))
        names = tf.constant(self.class_names)
        parts = tf.where(probabilities >= 0.5, names + "|", "")
        joined = tf.strings.reduce_join(parts, axis=-1)
        # Without the last separator.
        length = tf.maximum(tf.strings.length(joined) - 1, 0)
        labels = tf.strings.substr(joined, tf.zeros_like(length), length)
        return {"probabilities": probabilities, "labels": labels}

    def serve(self, outputs: tf.Tensor, batch: Example) -> Example:
        """`predict` with the names and probabilities of the top labels."""
        prediction = self.predict(outputs, batch)
        probabilities = prediction["probabilities"]
        names, scores = request_guards.best(probabilities, self.class_names)
        return {**prediction, "top_labels": names, "top_scores": scores}

    def outputs_of(self, predictions: Example) -> tf.Tensor:
        smallest = np.finfo(np.float32).tiny
        probabilities = tf.clip_by_value(
            predictions["probabilities"], smallest, 1 - 1e-7
        )
        return tf.math.log(probabilities) - tf.math.log1p(-probabilities)

    def evaluator(self, model: Any = None) -> Evaluator:
        return LabelEvaluator(self.class_names)

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`truth` and `prediction` as bits, how many are `wrong`, and `loss`."""
        truth = batch["labels"].numpy().astype(bool)
        prediction = predictions["probabilities"].numpy() >= 0.5
        return {
            "truth": np.packbits(truth, axis=1),
            "prediction": np.packbits(prediction, axis=1),
            "wrong": (truth != prediction).sum(axis=1).astype(np.int32),
            "loss": predictions["loss"].numpy(),
        }

    def readable(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Replaces bits by the names of the labels, separated by `|`."""
        named = dict(columns)
        for name in ("truth", "prediction"):
            bits = np.unpackbits(columns[name], axis=1, count=len(self.class_names))
            texts = [self._names(row) for row in bits]
            named[name] = np.array(texts, object)
        return named

    def _names(self, bits: np.ndarray) -> str:
        return "|".join(self.class_names[index] for index in np.flatnonzero(bits))

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """F1 over all labels of all examples, and the loss."""
        found, labels = [], []
        for truth, prediction in zip(rows["truth"], rows["prediction"], strict=True):
            true, predicted = set(truth.split("|")), set(prediction.split("|"))
            found.append(2.0 * len((true & predicted) - {""}))
            labels.append(float(len(true - {""}) + len(predicted - {""})))
        return {
            "f1": Score(np.array(found), np.array(labels), 1),
            **super().scores(rows),
        }

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """A table of the labels, the worst first."""
        rows = []
        for name, score in metrics["per_class"].items():
            numbers = [f"{score[key]:.3f}" for key in ("f1", "precision", "recall")]
            rows.append([name[:30], f"{score['examples']:,}", *numbers])
        rows.sort(key=lambda row: row[2])
        header = ["label", "examples", "f1", "precision", "recall"]
        lines = console.table(rows[:_ROWS], header, range(1, 5)).splitlines()
        if len(rows) > _ROWS:
            lines.append(f"... and {len(rows) - _ROWS:,} more, which are better")
        return lines

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """Chance, if the area under the ROC curve is within two standard errors of
        0.5.
        """
        area = metrics["roc"]["mean_area"]
        if area is None or area > 0.5 + 2 * metrics["roc"]["standard_error"]:
            return ""
        return f"chance (mean area under the ROC curves {area:.3f}, chance 0.5)"

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        yield panels.class_table(metrics["per_class"], "recall")

    def truth(self, example: Mapping[str, Any]) -> str:
        return self._names(example["labels"])

    def explained_output(self, outputs: Any) -> tf.Tensor:
        """The logit of the most probable label."""
        return tf.reduce_max(outputs, axis=-1)

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Adds the predicted and the true labels as the title."""
        predicted = self._names(prediction["probabilities"] >= 0.5)
        true = self._names(example["labels"])
        title = f"{predicted[:30]}"
        color = "green"
        if predicted != true:
            title += f"\ntrue: {true[:30]}"
            color = "red"
        axes.set_title(title, color=color, fontsize=9, parse_math=False)

    def limitations(self) -> list[str]:
        return [
            (
                "Each label is answered by itself; a label counts as given if its"
                " probability is at least 0.5. The probabilities are not calibrated."
            )
        ]

    def standalone(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """The probability of each label."""
        activation = keras.layers.Activation("sigmoid", dtype="float32")
        activation.name = "probabilities"
        return activation(outputs)

    def standalone_loss(self) -> tuple[Any, Any]:
        return "binary_crossentropy", "binary_accuracy"


class LabelEvaluator(Evaluator):
    """Loss, F1 over all predictions (micro), the fraction of examples with all labels
    right, the mean average precision over the labels that have examples, and
    precision, recall, F1 and average precision of each label.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._examples = 0
        self._loss = 0.0
        self._exact = 0
        self._right = np.zeros(len(names), np.int64)
        self._true = np.zeros(len(names), np.int64)
        self._predicted = np.zeros(len(names), np.int64)
        self._histogram = np.zeros((len(names), 2, _BINS), np.int64)
        """Examples of each label without and with it, by probability."""

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        truth = batch["labels"].numpy().astype(bool)
        probabilities = predictions["probabilities"].numpy()
        predicted = probabilities >= 0.5
        self._examples += len(truth)
        self._loss += float(predictions["loss"].numpy().astype(np.float64).sum())
        self._exact += int((truth == predicted).all(axis=1).sum())
        self._right += (truth & predicted).sum(axis=0)
        self._true += truth.sum(axis=0)
        self._predicted += predicted.sum(axis=0)
        bins = np.clip((probabilities * _BINS).astype(np.int64), 0, _BINS - 1)
        label = np.arange(len(self._names))[None, :]
        np.add.at(self._histogram, (label, truth.astype(np.int64), bins), 1)

    def result(self) -> dict[str, Any]:
        precision = self._right / np.maximum(self._predicted, 1)
        recall = self._right / np.maximum(self._true, 1)
        f1 = 2 * self._right / np.maximum(self._true + self._predicted, 1)
        average_precision = self._average_precision()
        per_class = {}
        for index, name in enumerate(self._names):
            per_class[name] = {
                "precision": float(precision[index]),
                "recall": float(recall[index]),
                "f1": float(f1[index]),
                "average_precision": float(average_precision[index]),
                "examples": int(self._true[index]),
            }
        total = max(int(self._true.sum() + self._predicted.sum()), 1)
        has_examples = self._true > 0
        wrong = int((self._true + self._predicted - 2 * self._right).sum())
        mean_precision = (
            average_precision[has_examples].mean() if has_examples.any() else 0.0
        )
        return {
            "examples": self._examples,
            "loss": self._loss / self._examples,
            "f1": 2 * int(self._right.sum()) / total,
            "exact_match": self._exact / self._examples,
            "binary_accuracy": 1 - wrong / (self._examples * len(self._names)),
            "mean_average_precision": float(mean_precision),
            "roc": self._roc(),
            "per_class": per_class,
        }

    def _roc(self) -> dict[str, float | None]:
        """The mean area under the ROC curves of the labels that some examples have and
        others lack, and its standard error if the predictions were random (Mann and
        Whitney, 1947).
        """
        without, with_label = np.moveaxis(self._histogram, 1, 0).astype(np.float64)
        counts = with_label.sum(axis=1), without.sum(axis=1)
        pairs = counts[0] * counts[1]
        if not pairs.any():
            return {"mean_area": None, "standard_error": None}
        below = np.cumsum(without, axis=1) - without / 2
        areas = (with_label * below).sum(axis=1)[pairs > 0] / pairs[pairs > 0]
        variances = (counts[0] + counts[1] + 1)[pairs > 0] / (12 * pairs[pairs > 0])
        error = float(np.sqrt(variances.sum()) / len(areas))
        return {"mean_area": float(areas.mean()), "standard_error": error}

    def _average_precision(self) -> np.ndarray:
        """The area under precision over recall of each label, (labels,)."""
        # From the highest probability down.
        without, with_label = np.moveaxis(self._histogram[:, :, ::-1], 1, 0)
        right = np.cumsum(with_label, axis=1)
        answered = right + np.cumsum(without, axis=1)
        precision = right / np.maximum(answered, 1)
        step = with_label / np.maximum(right[:, -1:], 1)
        return (precision * step).sum(axis=1)
