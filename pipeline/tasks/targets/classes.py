"""Classes: one of several for each example."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Decision,
    Example,
    Info,
    Metadata,
    OutputSpec,
    Source,
    Target,
)
from pipeline.serving import request_guards
from pipeline.tasks.targets.class_names import match_names
from pipeline.tasks.targets.class_weights import crossentropy, weights_by_name
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import without_autograph


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

    def __init__(
        self, metadata: Metadata, new_numbers: np.ndarray | None = None
    ) -> None:
        super().__init__(metadata)
        self.class_names: list[str] = metadata["class_names"]
        self.temperature = float(metadata.get("temperature", 1.0))
        self.abstain_below = float(metadata.get("abstain_below", 0.0))
        self.output = OutputSpec((len(self.class_names),), "softmax")
        self._field = metadata.get("target_field", "label")
        self._new_numbers = new_numbers
        """Maps the labels of other data to those of the task."""

    @without_autograph
    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        label = tf.cast(example[self._field], tf.int64)
        if self._new_numbers is not None:
            # A label that is no class stays one, for `check`.
            last = len(self._new_numbers) - 1
            is_class = (label >= 0) & (label <= last)
            new = tf.gather(self._new_numbers, tf.clip_by_value(label, 0, last))
            label = tf.where(is_class, new, -1)
        return {"label": label}

    def match(self, source: Source) -> "ClassTarget":
        """Matches the classes of the source by name."""
        field = self._field if self._field in source.info.fields else "label"
        new_numbers = match_names(source.info.class_names, self.class_names)
        return ClassTarget({**self.metadata, "target_field": field}, new_numbers)

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
