"""Labels: any number of several for each example."""

from collections.abc import Callable, Mapping
from typing import Any

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
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import ensure_shape


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

    def __init__(
        self, metadata: Metadata, new_numbers: np.ndarray | None = None
    ) -> None:
        super().__init__(metadata)
        self.class_names: list[str] = metadata["class_names"]
        self.output = OutputSpec((len(self.class_names),), "sigmoid")
        self._field = metadata.get("target_field", "labels")
        self._new_numbers = new_numbers
        """Maps the classes of other data to those of the task."""

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        labels = example[self._field]
        if self._new_numbers is not None:
            count = len(self.class_names)
            one_hot = tf.one_hot(self._new_numbers, count, dtype=tf.int32)
            labels = tf.linalg.matvec(one_hot, tf.cast(labels, tf.int32), True)
        labels = ensure_shape(labels, (len(self.class_names),))
        return {"labels": tf.cast(labels, tf.uint8)}

    def match(self, source: Source) -> "LabelTarget":
        field = self._field if self._field in source.info.fields else "labels"
        new_numbers = match_names(source.info.class_names, self.class_names)
        return LabelTarget({**self.metadata, "target_field": field}, new_numbers)

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

    def names_of(self, bits: np.ndarray) -> str:
        return "|".join(self.class_names[index] for index in np.flatnonzero(bits))

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
