"""Converts y and outputs of a step to `y_true` and `y_pred` of a loss or metric.

In a step, y of a classifier is the share of each class, float32 (batch, classes), and
the outputs are logits. Only this module converts them: to integers for Keras's
`Sparse*` classes and for functions, to one column if the user's network has a single
output, and to probabilities unless the loss or metric takes logits.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Metadata
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, reason


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Turns (y, outputs) of a step into (y_true, y_pred)."""

    classes: int
    """0 for numbers to predict: y and outputs are passed on unchanged."""
    labels: str = "one-hot"
    """`one-hot`, float32 (batch, classes); `index`, int64 (batch,), or `float index`,
    float32; `binary`: the second of two classes, float32 (batch, 1), in `y_pred`, too;
    `several`: any of the classes, float32 (batch, classes); `map`: the class of each
    pixel, int32 (batch, height, width); `binary map`: float32 (batch, height, width,
    1), in `y_pred`, too.
    """
    logits: bool = False
    """Whether `y_pred` is logits instead of probabilities."""
    shape: tuple[int, ...] = (1,)
    """The shape of the outputs for an example if there are no classes, or a map."""

    def __call__(self, y: Any, outputs: Any) -> tuple[Any, Any]:
        if not self.classes:
            return y, outputs
        outputs = tf.cast(outputs, tf.float32)
        if self.labels in ("binary", "binary map"):
            logit = outputs[..., 1:] - outputs[..., :1]
            y_true = y[:, 1:]
            if self.labels == "binary map":
                y_true = tf.cast(y, tf.float32)[..., None]
            return y_true, logit if self.logits else tf.sigmoid(logit)
        if self.labels == "several":
            return y, outputs if self.logits else tf.sigmoid(outputs)
        y_pred = outputs if self.logits else tf.nn.softmax(outputs)
        if self.labels in ("one-hot", "map"):
            return y, y_pred
        index = tf.argmax(y, axis=-1)
        return index if self.labels == "index" else tf.cast(index, tf.float32), y_pred

    def examples(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Random y and outputs of a step, float32 (count, classes) or of `shape`."""
        generator = np.random.default_rng(0)
        if not self.classes:
            shape = (count, *self.shape)
            outputs = generator.normal(size=shape).astype(np.float32)
            return generator.normal(size=shape).astype(np.float32), outputs
        classes = self.classes
        if self.labels in ("map", "binary map"):
            outputs = generator.normal(size=(count, *self.shape)).astype(np.float32)
            labels = generator.integers(0, classes, (count, *self.shape[:-1]))
            return labels.astype(np.int32), outputs
        outputs = generator.normal(size=(count, classes)).astype(np.float32)
        if self.labels == "several":
            labels = generator.integers(0, 2, (count, classes))
            return labels.astype(np.float32), outputs
        # Half of the answers are right. Two of these are class 0, which `argmax`
        # returns for a single number.
        labels = np.arange(count) % classes
        answers = np.where(np.arange(count) % 2, np.roll(labels, 1), labels)
        one_hot = np.eye(classes, dtype=np.float32)
        return one_hot[labels], outputs + 4 * one_hot[answers]


def choices(kind: Any, metadata: Metadata, logits: bool) -> list[Arguments]:
    """Returns the arguments that a loss or metric may expect, the likeliest first.

    Args:
        kind: A subclass of `keras.losses.Loss` or `keras.metrics.Metric`; None for a
            function.
        metadata: Metadata of the task: `class_names`; `activation` and `output_shape`
            of `OutputSpec`; and `output_kind` of the user's network.
        logits: Whether it expects logits.
    """
    classes = len(metadata.get("class_names", ()))
    activation = metadata.get("activation", "softmax" if classes else "linear")
    shape = tuple(metadata.get("output_shape", (1,)))
    if activation == "linear":
        return [Arguments(0, shape=shape)]
    if activation == "sigmoid":
        return [Arguments(shape[-1], "several", logits, shape)]
    has_one_output = metadata.get("output_kind") in ("sigmoid", "logit")
    if len(shape) > 1:
        labels = "binary map" if has_one_output else "map"
        return [Arguments(shape[-1], labels, logits, shape)]
    words = [base.__name__ for base in kind.__mro__] if kind else []

    def is_a(*beginnings: str) -> bool:
        return any(word.startswith(beginnings) for word in words)

    if is_a("Sparse"):
        names = ["index"]
    elif is_a("Categorical", "TopK"):
        names = ["one-hot"]
    elif has_one_output or (is_a("Binary") and classes == 2):
        names = ["binary"]
    elif kind is None:
        names = ["index", "float index", "one-hot"]
    elif kind.__module__.startswith("keras."):
        names = ["one-hot"]
    else:
        names = ["one-hot", "index", "float index"]
    return [Arguments(classes, name, logits) for name in names]


def find_arguments(
    call: Callable[[Any, Any], Any], possible: Sequence[Arguments], name: str, kind: str
) -> Arguments:
    """Returns the first arguments with which a function returns a value per example.

    Prefers arguments with which a value depends on its example only. A function that
    compares integers with the largest number of a row, for example, also runs with
    labels in another form, but its values then depend on all examples. A note says why
    a loss does not get the first form of labels in `possible`.

    Args:
        call: A function of `y_true` and `y_pred`.
        possible: From `choices`.
        name: Name of the function in messages.
        kind: `loss` or `metric`.

    Raises:
        UsageError: No arguments fit, or it returns a single value for all examples.
    """
    problems: list[str] = []
    misfits: list[str] = []
    dependent: list[Arguments] = []
    for arguments in possible:
        # Not the number of classes, so that wrong axes do not fit by chance.
        count = 7 if arguments.classes != 7 else 8
        y, outputs = arguments.examples(count)
        try:
            values = per_example(call(*arguments(y, outputs)))
            rows = []
            for row in range(count):
                part = slice(row, row + 1)
                rows.append(per_example(call(*arguments(y[part], outputs[part]))))
        except Exception as error:  # of the user's function
            problems.append(reason(error))
            continue
        if values.shape.rank == 0:
            misfits.append("it returns one value for the whole batch")
        elif values.shape != (count,):
            problem = f"it returns values of shape {values.shape} for {count} examples"
            misfits.append(problem)
        elif _are_close(values, np.concatenate(rows)):
            if kind == "loss" and (problems or misfits):
                problem = [*problems, *misfits][0]
                _note_other_labels(name, arguments, possible[0], problem)
            return arguments
        else:
            dependent.append(arguments)
    if dependent:
        return dependent[0]
    raise UsageError(
        f"the {kind} {name} must return one value per example, of shape (batch,), for"
        f" labels as whole numbers (batch,) or one-hot (batch, classes):"
        f" {[*misfits, *problems][0]}"
    )


def _note_other_labels(
    name: str, found: Arguments, first: Arguments, problem: str
) -> None:
    """Says why a loss gets one-hot labels and not whole numbers, or the reverse."""
    forms = []
    for arguments in (found, first):
        is_one_hot = arguments.labels == "one-hot"
        forms.append("one-hot labels" if is_one_hot else "labels as whole numbers")
    if forms[0] != forms[1]:
        say("note", f"the loss {name} gets {forms[0]}; with {forms[1]}: {problem}")


def _are_close(first: Any, second: Any) -> bool:
    return np.allclose(first, second, rtol=1e-4, atol=1e-5, equal_nan=True)


def per_example(values: Any) -> tf.Tensor:
    """Returns the mean over all axes but the first, as Keras does."""
    values = tf.convert_to_tensor(values)
    if values.shape.rank and values.shape.rank > 1:
        values = tf.reduce_mean(tf.reshape(values, (tf.shape(values)[0], -1)), axis=1)
    return values


def takes_from_logits(function: Callable[..., Any]) -> bool:
    """Whether a function has an argument `from_logits`, as Keras's losses do."""
    try:
        return "from_logits" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a C extension
        return False
