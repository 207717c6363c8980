"""Classes: one of several for each example."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Calibrator,
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
from pipeline.tasks.targets import confusion_matrix, panels
from pipeline.tasks.targets.class_names import match_names
from pipeline.tasks.targets.class_weights import crossentropy, weights_by_name
from pipeline.utils import console
from pipeline.utils.calibration import CalibrationError, TemperatureFit
from pipeline.utils.columns import Columns
from pipeline.utils.errors import UsageError
from pipeline.utils.intervals import wilson

MATRIX_CLASSES = 30
"""Up to this number of classes, the metrics have the whole confusion matrix."""
_ROWS = 20  # classes in the table of `inspect`
_WORST = 15  # classes in the table of a test
_MIN_PROBABILITY = 1e-7  # as in the losses of Keras
_FEW = 50  # examples, of which an accuracy says little
_MISTAKES = 30  # pairs of classes in the metrics if there is no matrix


@register
def classes(
    info: Info | Metadata,
    *,
    field: str = "label",
    abstain_below: Annotated[float, "share"] = 0.0,
) -> Target:
    """One of several classes: whole numbers from 0, whose names the source knows.

    Args:
        info: The source's description, or the metadata of a run.
        field: The field of the source.
        abstain_below: Selective classification, also called a reject option: the
            prediction has an empty label where the highest probability, calibrated if
            the predictions are, is below this.

    Raises:
        UsageError: The field is missing or has another type, or there are fewer than
            two classes.
    """
    if not isinstance(info, Info):
        return ClassTarget(info)
    spec = info.field(field)
    if not spec.dtype.is_integer or spec.shape.rank != 0:
        raise UsageError(
            f"{field}: labels must be integers, one for each example; got"
            f" {spec.dtype.name} of shape {spec.shape}"
        )
    names = info.class_names or ()
    if len(names) < 2:
        classes = f"only {names[0]!r}" if names else "none"
        raise UsageError(
            f"classification needs at least 2 classes; got {classes}; add examples of"
            " other classes"
        )
    metadata: dict[str, Any] = {"class_names": list(names)}
    if field != "label":
        metadata["target_field"] = field
    if abstain_below:
        metadata["abstain_below"] = abstain_below
    return ClassTarget(metadata)


class ClassTarget(Target):
    """Decoded examples have `label`, int64 (); after mixup or cutmix, also
    `partner_label` and `share`.
    """

    decodes_batches = True
    selection_metric = ("accuracy", 1)
    not_decoded = frozenset({"class_names", "temperature", "abstain_below"})

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.class_names: list[str] = metadata["class_names"]
        self.temperature = float(metadata.get("temperature", 1.0))
        self.abstain_below = float(metadata.get("abstain_below", 0.0))
        self.output = OutputSpec((len(self.class_names),), "softmax")
        self._field = metadata.get("target_field", "label")
        self._labels: np.ndarray | None = None
        """Maps the labels of other data to those of the task."""

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        label = tf.cast(example[self._field], tf.int64)
        if self._labels is not None:
            # A label that is no class stays one, for `check`.
            last = len(self._labels) - 1
            is_class = (label >= 0) & (label <= last)
            new = tf.gather(self._labels, tf.clip_by_value(label, 0, last))
            label = tf.where(is_class, new, -1)
        return {"label": label}

    def match(self, source: Source) -> "ClassTarget":
        """Matches the classes of the source by name."""
        field = self._field if self._field in source.info.fields else "label"
        matched = ClassTarget({**self.metadata, "target_field": field})
        matched._labels = match_names(source.info.class_names, self.class_names)
        return matched

    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        labels = columns["label"]
        last = len(self.class_names) - 1
        if len(labels) and labels.min() == 1 and labels.max() == last + 1:
            raise UsageError(
                f"split {split}: the labels are from 1 to {last + 1}; subtract 1,"
                " because classes count from 0"
            )
        for row in np.flatnonzero((labels < 0) | (labels > last)):
            name = locate(int(columns["id"][row]))
            raise UsageError(
                f"split {split}: the label of {name} must be from 0 to {last}; got"
                f" {labels[row]}; --clean.enabled excludes such examples"
            )

    def review(self, columns: Mapping[str, np.ndarray]) -> list[Decision]:
        """Notes classes without training examples, and classes with similar names.

        Raises UsageError if fewer than two classes have training examples.
        """
        names = self.class_names
        counts = np.array([*self.class_counts(columns).values()])
        if np.count_nonzero(counts) < 2:
            raise UsageError(
                "train has examples of only one class,"
                f" {names[int(counts.argmax())]!r}, but a classifier needs at least"
                " two; add examples of other classes"
            )
        decisions = []
        missing = [
            repr(name) for name, count in zip(names, counts, strict=True) if not count
        ]
        if missing:
            listing = ", ".join(missing[:3])
            if len(missing) > 3:
                listing += ", ..."
            note = f"train has no example of {listing}"
            decisions.append(Decision("note", note, "these cannot be learned"))
        return decisions + self._similar_names()

    def class_counts(self, columns: Mapping[str, np.ndarray]) -> dict[str, int]:
        counts = np.bincount(columns["label"], minlength=len(self.class_names))
        return dict(zip(self.class_names, counts.tolist(), strict=True))

    def _similar_names(self) -> list[Decision]:
        """Notes names that differ only in case, punctuation, a plural or zeros."""
        names_by_stem: dict[str, list[str]] = {}
        for name in self.class_names:
            plain = re.sub(r"[\W_]+", "", name.casefold())
            plain = re.sub(r"^0+(?=\d+$)", "", plain)  # 01 and 1
            stem = re.sub(r"(?<=...)(ies|es|[yes])$", "", plain)
            names_by_stem.setdefault(stem, []).append(repr(name))
        groups = [names for names in names_by_stem.values() if len(names) > 1]
        if not groups:
            return []
        pairs = ", ".join(" and ".join(names) for names in groups[:3])
        reason = "if they are the same class, merge them"
        return [Decision("note", f"similar classes: {pairs}", reason)]

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        """Yields a line about the sizes of the classes, and a table of the first."""
        names = self.class_names
        counts = {
            split: np.bincount(part["label"], minlength=len(names))
            for split, part in columns.items()
        }
        train = counts["train"]
        test_split = "test" if "test" in counts else "train"
        test = counts[test_split]
        largest = int(train.argmax())
        share = test[largest] / max(test.sum(), 1)
        yield (
            "classes",
            f"{len(names):,}, with {train.min():,} to {train.max():,} examples in"
            f" train; always predicting {names[largest]!r} is right for {share:.1%} of"
            f" {test_split}",
        )
        rows = []
        for label, name in enumerate(names[:_ROWS]):
            rows.append([name, *(f"{sizes[label]:,}" for sizes in counts.values())])
        header = ["class", *counts]
        table = console.table(rows, header, right=range(1, len(header)))
        for line in table.splitlines():
            yield "", line
        if len(names) > _ROWS:
            yield "", f"... {len(names) - _ROWS:,} more"

    def y(self, batch: Example) -> tf.Tensor:
        """The share of each class, float32 (batch, classes): one-hot, unless mixed."""
        y = self._one_hot(batch["label"])
        if "partner_label" in batch:
            share = batch["share"][:, None]
            y = y * share + self._one_hot(batch["partner_label"]) * (1 - share)
        return y

    def _one_hot(self, label: tf.Tensor) -> tf.Tensor:
        return tf.one_hot(label, len(self.class_names))

    def head(self, features: keras.KerasTensor, mask: Any = None) -> keras.KerasTensor:
        """Returns logits; raises UsageError unless features are (batch, n)."""
        if len(features.shape) != 2:
            shape = ", ".join(map(str, ("batch", *features.shape[1:])))
            raise UsageError(
                "--model.name: the features must be a vector per example, (batch, n);"
                f" got ({shape}); add GlobalAveragePooling2D or Flatten"
            )
        units = len(self.class_names)
        return keras.layers.Dense(units, dtype="float32", name="logits")(features)

    def loss(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        return keras.losses.CategoricalCrossentropy(from_logits=True, reduction=None)

    def training_loss(
        self,
        label_smoothing: float,
        class_weight: Mapping[str, float],
        loss: Callable[[Any, Any], tf.Tensor] | None = None,
    ) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        """Returns the cross-entropy with smoothed labels and class weights.

        The loss of a mixed example is the mean of the losses of its two labels,
        weighted by their shares. Smoothing: Szegedy et al., "Rethinking the Inception
        architecture", CVPR 2016, section 7. A custom loss replaces the cross-entropy,
        and is multiplied by the weights, too. Classes that `class_weight` does not name
        have weight 1.

        Raises UsageError if it names an unknown class.
        """
        weight_of = weights_by_name(class_weight, self.class_names)
        if not label_smoothing and not weight_of:
            return loss or self.loss()
        weights = tf.constant([float(weight_of.get(n, 1.0)) for n in self.class_names])
        if loss is None:
            return lambda y, outputs: crossentropy(y, outputs, weights, label_smoothing)
        return lambda y, outputs: loss(y, outputs) * tf.reduce_sum(y * weights, axis=-1)

    def metrics(self) -> list[keras.metrics.Metric]:
        return [keras.metrics.CategoricalAccuracy(name="accuracy")]

    def predict(self, outputs: tf.Tensor, batch: Example) -> Example:
        """Returns calibrated `probabilities`, `class` and `label`.

        They are float32 (batch, classes), int32 (batch,) and string (batch,). The class
        is the most probable one; the label is its name, or empty where its probability
        is below `abstain_below`.
        """
        probabilities = tf.nn.softmax(tf.cast(outputs, tf.float32) / self.temperature)
        index = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        names = tf.constant(self.class_names)
        label = tf.gather(names, index)
        if self.abstain_below:
            highest = tf.reduce_max(probabilities, axis=-1)
            label = tf.where(highest >= self.abstain_below, label, "")
        return {"probabilities": probabilities, "class": index, "label": label}

    def serve(self, outputs: tf.Tensor, batch: Example) -> Example:
        """`predict` with the names and probabilities of the top classes."""
        prediction = self.predict(outputs, batch)
        probabilities = prediction["probabilities"]
        labels, scores = request_guards.best(probabilities, self.class_names)
        return {**prediction, "top_labels": labels, "top_scores": scores}

    def outputs_of(self, predictions: Example) -> tf.Tensor:
        """Logits up to a constant, on which neither loss nor calibration depends.

        A probability of 0 counts as the smallest normal float32; TensorFlow takes
        smaller numbers for 0.
        """
        smallest = np.finfo(np.float32).tiny
        logits = tf.math.log(tf.maximum(predictions["probabilities"], smallest))
        return logits * self.temperature

    def calibrator(self, model: Any = None) -> Calibrator:
        """Fits the temperature by which the logits are divided."""
        return _Temperature()

    def evaluator(self, model: Any = None) -> Evaluator:
        temperature = self.temperature if "temperature" in self.metadata else None
        return ClassEvaluator(self.class_names, temperature, self.abstain_below)

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`truth`, `prediction`, their probabilities, `correct`, and the `loss` before
        calibration; `answered` if predictions may be withheld.
        """
        truth = batch["label"].numpy().astype(np.int32)
        prediction = predictions["class"].numpy()
        probabilities = predictions["probabilities"].numpy()
        columns = {
            "truth": truth,
            "prediction": prediction,
            "probability": probabilities.max(axis=1),
            "probability_of_truth": probabilities[np.arange(len(truth)), truth],
            "correct": truth == prediction,
            "loss": predictions["loss"].numpy(),
        }
        if self.abstain_below:
            columns["answered"] = predictions["label"].numpy() != b""
        if self.temperature != 1:
            # softmax(logits) from softmax(logits / temperature)
            scores = (probabilities / probabilities.max(axis=1, keepdims=True)) ** (
                self.temperature
            )
            columns["uncalibrated"] = 1 / scores.sum(axis=1)
        return columns

    def readable(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Replaces the numbers of classes by their names.

        The probability before calibration, `uncalibrated`, is for the report only.
        """
        names = np.array(self.class_names)
        named = {name: names[columns[name]] for name in ("truth", "prediction")}
        kept = {key: value for key, value in columns.items() if key != "uncalibrated"}
        return {**kept, **named}

    def tables(self, columns: Mapping[str, np.ndarray]) -> dict[str, Columns]:
        """The confusion matrix of many classes, without its zeros."""
        if len(self.class_names) <= MATRIX_CLASSES:
            return {}
        pairs = np.stack([columns["truth"], columns["prediction"]], axis=1)
        pairs, counts = np.unique(pairs, axis=0, return_counts=True)
        names = self.class_names
        table = Columns(
            truth=[names[truth] for truth in pairs[:, 0]],
            prediction=[names[prediction] for prediction in pairs[:, 1]],
            examples=counts.tolist(),
        )
        return {"confusion_matrix.csv": table}

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """Accuracy, the loss before calibration, and the cross-entropy of the
        probabilities as they are returned.
        """
        truth = rows["probability_of_truth"].astype(np.float64)
        loss = -np.log(np.maximum(truth, _MIN_PROBABILITY))
        return {**super().scores(rows), "calibrated_loss": Score.mean(loss, -1)}

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        return _no_better_than(metrics)

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """A table of the classes, the worst first, and notes about the accuracy."""
        lines = [*_class_table(metrics), *_notes(metrics, split)]
        if "coverage" in metrics:
            line = f"{'answered':10} {metrics['coverage']:.1%} of the examples, those"
            line += f" with a probability of at least {self.abstain_below:g}"
            if "selective_accuracy" in metrics:
                line += f"; {metrics['selective_accuracy']:.1%} of them are right"
            lines.append(line)
        return lines

    def pictures(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        figure = confusion_matrix.draw(metrics, self.class_names)
        return {"confusion_matrix.png": figure}

    def headline(self, metrics: Mapping[str, Any]) -> str:
        """The accuracy with its confidence interval."""
        count = metrics["examples"]
        accuracy = metrics["accuracy"]
        low, high = wilson(np.array(accuracy * count), np.array(count))
        right = round(accuracy * count)
        return (
            f"accuracy {accuracy:.1%} ({right:,} of {count:,}; 95% CI"
            f" {100 * low:.1f}-{high:.1%})"
        )

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        """The classes and what they are confused with, and whether the probabilities
        can be trusted.
        """
        yield panels.class_table(metrics.get("per_class", {}), "recall")
        if mistakes := _confusions(self.class_names, metrics):
            yield panels.confused_pairs(mistakes)
        yield Panel(
            "Confusion matrix", confusion_matrix.draw(metrics, self.class_names)
        )
        yield panels.reliability_diagram(columns)
        yield panels.coverage_curve(columns)

    def truth(self, example: Mapping[str, Any]) -> str:
        return self.class_names[int(example["label"])]

    def explained_output(self, outputs: Any) -> tf.Tensor:
        """The logit of the prediction."""
        return tf.reduce_max(outputs, axis=-1)

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Adds the prediction as the title: green if right, red if wrong."""
        predicted = int(prediction["class"])
        true = int(example["label"])
        probability = float(np.max(prediction["probabilities"]))
        title = f"predicted {self.class_names[predicted][:22]} ({probability:.2f})"
        color = "green"
        if predicted != true:
            title += f"\ntrue: {self.class_names[true][:22]}"
            color = "red"
        if probability < self.abstain_below:
            title = f"no prediction: {title}"
        axes.set_title(title, color=color, fontsize=9, parse_math=False)

    def prediction_notes(self) -> list[str]:
        if not self.abstain_below:
            return []
        return [
            (
                f"`label` is empty if no class has a probability of"
                f" {self.abstain_below:g} or more: the model abstains. `class` is the"
                " most probable class even then, and `probabilities` are unchanged."
            )
        ]

    def limitations(self) -> list[str]:
        unknown = (
            "Every example is assigned to one of"
            f" {len(self.class_names)} classes, even if it belongs to none of them."
        )
        if self.abstain_below:
            unknown = (
                "An example that belongs to none of the"
                f" {len(self.class_names)} classes may have a probability of"
                f" {self.abstain_below:g} or more, too."
            )
        return [
            unknown,
            "The calibration holds for examples like those of the validation split.",
        ]

    def standalone(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """Calibrated probabilities."""
        logits = outputs
        if self.temperature != 1:
            calibrate = keras.layers.Rescaling(
                1 / self.temperature, dtype="float32", name="temperature"
            )
            logits = calibrate(logits)
        return keras.layers.Softmax(dtype="float32", name="probabilities")(logits)

    def standalone_loss(self) -> tuple[Any, Any]:
        return "sparse_categorical_crossentropy", "accuracy"


class _Temperature(Calibrator):
    def __init__(self) -> None:
        self._fit = TemperatureFit()

    def update(self, outputs: Any, batch: Example) -> None:
        self._fit.update(outputs.numpy(), batch["label"].numpy())

    def result(self) -> Metadata:
        return {"temperature": self._fit.result()}


class ClassEvaluator(Evaluator):
    """Loss, accuracy, top-k accuracy, confusions, and precision, recall and F1 of each
    class. `balanced_accuracy` is the mean recall of the classes that have examples.

    With `abstain_below`, `coverage` is the fraction of the examples whose predictions
    are not withheld, and `selective_accuracy` the accuracy on these, if there are any;
    all other metrics are of all examples.

    `loss` and `calibration_error` are for the network as trained; with a temperature,
    `calibrated` has both for the calibrated probabilities. `confusion_matrix[i][j]`
    counts examples of class i predicted as class j; with more than 30 classes,
    `confusions` has the most frequent mistakes instead, [true, predicted, examples].
    """

    def __init__(
        self,
        class_names: list[str],
        temperature: float | None,
        abstain_below: float = 0.0,
    ) -> None:
        self._names = class_names
        self._abstain_below = abstain_below
        self._answered = 0
        self._answered_right = 0
        self._top = min(5, len(class_names) - 1)
        self._loss = 0.0
        self._top_right = 0
        self._pairs: list[np.ndarray] = []
        """The number true * classes + predicted of each example."""
        self._error = CalibrationError()
        self._calibrated = temperature and CalibrationError(temperature)

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        truth = batch["label"].numpy()
        predicted = predictions["class"].numpy().astype(np.int64)
        logits = outputs.numpy()
        self._loss += float(predictions["loss"].numpy().astype(np.float64).sum())
        self._error.update(logits, truth)
        if self._calibrated:
            self._calibrated.update(logits, truth)
        self._pairs.append(truth * len(self._names) + predicted)
        probabilities = predictions["probabilities"].numpy()
        of_truth = probabilities[np.arange(len(truth)), truth]
        # Only classes that are less probable rank lower; a tie, or NaN, counts against
        # the model.
        lower = (probabilities < of_truth[:, None]).sum(axis=1)
        rank = probabilities.shape[1] - 1 - lower
        self._top_right += int((rank < self._top).sum())
        if self._abstain_below:
            is_answered = predictions["label"].numpy() != b""
            self._answered += int(is_answered.sum())
            self._answered_right += int((is_answered & (truth == predicted)).sum())

    def result(self) -> dict[str, Any]:
        count = len(self._names)
        pairs, examples = np.unique(np.concatenate(self._pairs), return_counts=True)
        true, predicted = np.divmod(pairs, count)
        total = int(examples.sum())
        is_right = true == predicted
        metrics: dict[str, Any] = {
            "examples": total,
            "loss": self._loss / total,
            "accuracy": int(examples[is_right].sum()) / total,
        }
        size = [np.bincount(part, examples, count) for part in (true, predicted)]
        right = np.bincount(true[is_right], examples[is_right], count)
        has_examples = size[0] > 0
        recall = right[has_examples] / size[0][has_examples]
        metrics["balanced_accuracy"] = float(recall.mean())
        if self._abstain_below:
            metrics["coverage"] = self._answered / total
        if self._answered:
            metrics["selective_accuracy"] = self._answered_right / self._answered
        if self._top > 1:
            metrics[f"top_{self._top}_accuracy"] = self._top_right / total
        metrics["calibration_error"] = self._error.result()["calibration_error"]
        if self._calibrated:
            metrics["calibrated"] = self._calibrated.result()
        metrics["chance"] = _chance(*(part.astype(np.float64) for part in size))
        metrics["per_class"] = self._per_class(right, size[0], size[1])
        if count <= MATRIX_CLASSES:
            matrix = np.zeros((count, count), np.int64)
            matrix[true, predicted] = examples
            metrics["confusion_matrix"] = matrix.tolist()
        else:
            wrong = np.flatnonzero(~is_right)
            order = wrong[np.argsort(-examples[wrong], kind="stable")][:_MISTAKES]
            metrics["confusions"] = [
                [self._names[true[i]], self._names[predicted[i]], int(examples[i])]
                for i in order
            ]
        return metrics

    def _per_class(
        self, right: np.ndarray, examples: np.ndarray, predicted: np.ndarray
    ) -> dict[str, dict[str, Any]]:
        """Precision, recall and F1 of each class; 0 where nothing can be divided."""
        precision = right / np.maximum(predicted, 1)
        recall = right / np.maximum(examples, 1)
        f1 = 2 * right / np.maximum(examples + predicted, 1)
        scores = {}
        for label, name in enumerate(self._names):
            scores[name] = {
                "precision": float(precision[label]),
                "recall": float(recall[label]),
                "f1": float(f1[label]),
                "examples": int(examples[label]),
            }
        return scores


def _no_better_than(metrics: Mapping[str, Any]) -> str:
    """The largest class, unless the accuracy exceeds that of permuted predictions; of
    50 or more examples, by two standard deviations.

    Unlike a comparison with the share of the largest class, this counts a rare class
    that is found.
    """
    scores = metrics.get("per_class", {})
    scores = {name: score for name, score in scores.items() if score["examples"]}
    if len(scores) < 2 or "chance" not in metrics:
        return ""
    count = metrics["examples"]
    margin = 2 * metrics["chance"]["deviation"] if count >= _FEW else 0
    if metrics["accuracy"] > metrics["chance"]["accuracy"] + margin:
        return ""
    largest = max(scores, key=lambda name: scores[name]["examples"])
    share = scores[largest]["examples"] / count
    return f"always predicting {largest!r} (accuracy {share:.3f})"


def _chance(true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Mean and standard deviation of the accuracy over all permutations of the
    predictions, from the numbers of true and predicted examples of each class.
    """
    total = true.sum()
    products = true * predicted
    agreements = products.sum()
    variance = agreements**2 - total * (products * (true + predicted)).sum()
    variance = (variance + total**2 * agreements) / max(total**2 * (total - 1), 1)
    return {
        "accuracy": float(agreements / total**2),
        "deviation": math.sqrt(max(float(variance), 0.0)) / float(total),
    }


def _class_table(metrics: Mapping[str, Any], limit: int = _WORST) -> list[str]:
    """Formats a row for each class with examples, the lowest F1 first.

    The last column is the class that is predicted most often instead, and how often.
    """
    scores = metrics.get("per_class", {})
    confused = _most_confused(list(scores), metrics)
    rows = []
    for name, score in scores.items():
        if score["examples"]:
            numbers = [f"{score[key]:.3f}" for key in ("f1", "precision", "recall")]
            count = f"{score['examples']:,}"
            rows.append([name[:30], count, *numbers, confused.get(name, "")])
    if not rows:
        return []
    rows.sort(key=lambda row: row[2])
    header = ["class", "examples", "f1", "precision", "recall"]
    header.append("most often confused with")
    lines = console.table(rows[:limit], header, right=range(1, 5)).splitlines()
    if len(rows) > limit:
        lines.append(f"... and {len(rows) - limit:,} more, which are better")
    return lines


def _most_confused(names: list[str], metrics: Mapping[str, Any]) -> dict[str, str]:
    """Maps a class to the class most often predicted instead, and how often."""
    confused = {}
    for true, predicted, count in reversed(_confusions(names, metrics)):
        confused[true] = f"{predicted[:30]} ({count:,})"
    return confused


def _confusions(
    names: list[str], metrics: Mapping[str, Any]
) -> list[tuple[str, str, int]]:
    """Mistakes as (true, predicted, examples), the most frequent first."""
    if "confusion_matrix" not in metrics:
        return [tuple(mistake) for mistake in metrics.get("confusions", ())]
    mistakes = []
    for true, row in zip(names, metrics["confusion_matrix"], strict=True):
        for predicted, count in zip(names, row, strict=True):
            if count and predicted != true:
                mistakes.append((true, predicted, count))
    return sorted(mistakes, key=lambda mistake: -mistake[2])


def _notes(metrics: Mapping[str, Any], split: str) -> Iterator[str]:
    """Yields notes about an accuracy that says little: of few examples, or no better
    than always predicting the largest class.
    """
    scores = metrics.get("per_class", {})
    if not scores:
        return
    sizes = {score["examples"]: name for name, score in scores.items()}
    largest = max(sizes)
    accuracy = metrics["accuracy"]
    count = metrics["examples"]
    share = largest / count
    if accuracy <= share < 1 and not _no_better_than(metrics):
        yield (
            f"{'note':10} the accuracy is no better than always predicting"
            f" {sizes[largest]!r} ({share:.3f})"
        )
    if count < _FEW:
        low, high = wilson(np.array(accuracy * count), np.array(count))
        examples = "examples" if split == "data" else f"{split} examples"
        yield (
            f"{'note':10} only {count} {examples}: the 95% confidence interval of the"
            f" accuracy is {low:.3f} to {high:.3f}"
        )
