"""Losses and metrics of the task `keras_model`: of y and outputs by name, as they are.

A loss or a metric gets what Keras would give it in `Model.fit` (Keras 3.15): y as
float32 for a loss, y unchanged for a metric, and an axis of length 1 is added or
removed where y and the output differ by it.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.config.own_outputs import OutputLosses, OutputMetric
from pipeline.contracts import Batches
from pipeline.training.own_keras import arguments
from pipeline.training.own_keras.metric import OwnMetric, require_weights
from pipeline.training.train_step import SteppedModel, forward
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, reason

_TRIED = 8  # examples
Loss = Callable[[Any, Any], tf.Tensor]


def loss(losses: Any, outputs: Sequence[str]) -> Loss:
    """The sum of the weighted losses of the outputs, (y, outputs) -> float32 (batch,).

    Args:
        losses: OutputLosses, or the loss of the only output.
        outputs: Names of the outputs of the network.
    """
    if not isinstance(losses, OutputLosses):
        if len(outputs) > 1:
            raise UsageError(
                f"the model has the outputs {', '.join(outputs)}; give"
                f' loss={{"{outputs[0]}": ...}}'
            )
        losses = OutputLosses({outputs[0]: losses}, {})
    parts = {name: of_output(part, name) for name, part in losses.losses.items()}
    weights = losses.weights

    def total(y: Any, predictions: Any) -> tf.Tensor:
        sums = []
        for name, part in parts.items():
            sums.append(part(y[name], predictions[name]) * weights.get(name, 1.0))
        return tf.add_n(sums)

    return total


def of_output(loss: Any, output: str) -> Loss:
    """The loss of one output, (y, output) -> float32 (batch,).

    The loss is averaged over the positions of an example that are not masked, because a
    mean over the batch would depend on how examples are distributed.
    """

    def per_example(y: tf.Tensor, prediction: tf.Tensor) -> tf.Tensor:
        call, y, prediction = _resolve(loss, y, prediction)
        try:
            values = tf.convert_to_tensor(call(y, prediction))
        except UsageError:
            raise
        except Exception as error:  # of the user's loss
            raise UsageError(
                f"the loss of {output!r} does not fit: y is {_form(y)}, the output"
                f" {_form(prediction)}: {reason(error)}"
            ) from error
        if values.shape.rank == 0:
            raise UsageError(
                f"the loss of {output!r} returns one number for the batch; return one"
                " for each example, of shape (batch,), such as a mean over all axes but"
                " the first"
            )
        # A loss may mask positions itself, such as those of `ignore_class`.
        masks = [
            getattr(tensor, "_keras_mask", None) for tensor in (prediction, values)
        ]
        values = tf.cast(values, tf.float32)
        mask = None
        for part in masks:
            if part is not None and part.shape.rank <= values.shape.rank:
                part = tf.cast(part, tf.bool)
                mask = part if mask is None else mask & part
        if mask is None:
            return arguments.per_example(values)
        kept = tf.cast(mask, tf.float32)
        while kept.shape.rank < values.shape.rank:
            kept = kept[..., None]
        kept = tf.broadcast_to(kept, tf.shape(values))
        axes = list(range(1, values.shape.rank))
        count = tf.reduce_sum(kept, axes)
        return tf.reduce_sum(values * kept, axes) / tf.maximum(count, 1.0)

    return per_example


def _form(values: tf.Tensor) -> str:
    return f"{values.dtype.name} of shape {values.shape}"


def _resolve(loss: Any, y: tf.Tensor, prediction: tf.Tensor) -> tuple[Any, Any, Any]:
    """A function to one or several values per example, and its arguments."""
    if isinstance(loss, str) and loss.lower() in ("crossentropy", "ce"):
        loss = _by_shapes(
            y,
            prediction,
            keras.losses.binary_crossentropy,
            keras.losses.sparse_categorical_crossentropy,
            keras.losses.categorical_crossentropy,
        )
    elif isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:
            raise UsageError(f"unknown loss {loss!r}; give a loss of Keras") from None
    elif inspect.isclass(loss):
        loss = loss()
    y = tf.cast(y, tf.float32)
    if isinstance(loss, keras.losses.Loss):
        if loss.reduction in ("sum", "mean_with_sample_weight"):
            raise UsageError(
                f"the loss {loss.name} has reduction={loss.reduction!r}; the loss of a"
                " step is the mean over its examples: remove reduction=..."
            )
        return loss.call, y, prediction
    return loss, *_equal_ranks(y, prediction)


def _by_shapes(y: Any, prediction: Any, binary: Any, sparse: Any, one_hot: Any) -> Any:
    """What Keras chooses for `crossentropy` and `accuracy`."""
    if prediction.shape[-1] == 1:
        return binary
    has_classes = len(y.shape) < len(prediction.shape) or y.shape[-1] == 1
    return sparse if has_classes else one_hot


def _equal_ranks(y: tf.Tensor, prediction: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    if y.shape.rank == 1 and prediction.shape.as_list()[1:] == [1]:
        return y[:, None], prediction
    if y.shape.rank == prediction.shape.rank + 1 and y.shape[-1] == 1:
        return tf.squeeze(y, -1), prediction
    if prediction.shape.rank == y.shape.rank + 1 and prediction.shape[-1] == 1:
        return y, tf.squeeze(prediction, -1)
    return y, prediction


@dataclasses.dataclass(frozen=True)
class Selection(arguments.Arguments):
    """Selects one output: y and the output are passed on unchanged."""

    output: str = ""

    def __call__(self, y: Any, outputs: Any) -> tuple[Any, Any]:
        return y[self.output], outputs[self.output]


@dataclasses.dataclass(frozen=True)
class SelectionOfLoss(Selection):
    """Selects one output and has its loss."""

    loss: Any = None


class MeanLossOfOutput(OwnMetric):
    """The mean of a loss of one output over the examples."""

    own_arguments: SelectionOfLoss

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        selection = self.own_arguments
        per_example = of_output(selection.loss, selection.output)
        losses = per_example(*selection(y_true, y_pred))
        self.metric.update_state(losses, sample_weight=sample_weight)


class MetricOfOutput(OwnMetric):
    """A metric of the values of one output; masked positions do not count."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        truth, prediction = self.own_arguments(y_true, y_pred)
        mask = getattr(prediction, "_keras_mask", None)
        if mask is not None and sample_weight is not None:
            while len(sample_weight.shape) < len(mask.shape):
                sample_weight = sample_weight[..., None]
            sample_weight *= tf.ones(tf.shape(mask))
        self.metric.update_state(truth, prediction, sample_weight=sample_weight)


def metric(metric: OutputMetric, output: keras.KerasTensor) -> OwnMetric:
    """A metric of an output, which has the shape (batch, ...)."""
    name = metric.output
    shape = tuple(output.shape[1:])
    selection = Selection(0, shape=shape, output=name)

    def mean_of(loss: Any, title: str) -> OwnMetric:
        selected = SelectionOfLoss(0, shape=shape, output=name, loss=loss)
        return MeanLossOfOutput(keras.metrics.Mean(title), selected)

    if metric.name is not None:
        return mean_of(metric.metric, metric.name)
    value = metric.metric
    title = None
    if isinstance(value, str):
        title = value
        value = _metric_of_word(value)
    if inspect.isclass(value):
        value = value()
    if isinstance(value, keras.losses.Loss):
        return mean_of(value, f"{metric.prefix}{value.name}")
    if not isinstance(value, keras.metrics.Metric):
        if not callable(value):
            raise UsageError(
                f"the metric of {name!r} must be a name, a Keras metric or a function"
                f" (y_true, y_pred); got {type(value).__name__}"
            )
        title = title or getattr(value, "__name__", type(value).__name__)
        value = keras.metrics.MeanMetricWrapper(_checked(value), name=title)
    own = MetricOfOutput(value, selection, title)
    own.name = f"{metric.prefix}{own.name}"
    return own


def _checked(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A metric function that must return a value for each example."""

    @functools.wraps(function)
    def values_of(y: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        values = tf.convert_to_tensor(function(y, output))
        if values.shape.rank == 0:
            raise UsageError(
                "it returns one number for the batch; return one for each example"
            )
        return values

    return values_of


def _metric_of_word(word: str) -> Any:
    if word.lower() in ("crossentropy", "ce"):
        return keras.metrics.MeanMetricWrapper(_crossentropy, name=word)
    if word.lower() in ("accuracy", "acc"):
        return keras.metrics.MeanMetricWrapper(_accuracy, name=word)
    try:
        return keras.metrics.get(word)
    except ValueError:
        raise UsageError(f"unknown metric {word!r}; give a metric of Keras") from None


def _accuracy(y: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """The accuracy that Keras chooses for the shapes of y and an output."""
    function = _by_shapes(
        y,
        output,
        keras.metrics.binary_accuracy,
        keras.metrics.sparse_categorical_accuracy,
        keras.metrics.categorical_accuracy,
    )
    return function(y, output)


def _crossentropy(y: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    call, y, output = _resolve("crossentropy", y, output)
    return call(y, output)


def try_out(model: SteppedModel, train: Batches) -> None:
    """Calls the loss and the metrics on a few training examples, before training.

    Raises UsageError if they do not fit y and the outputs, or if a metric ignores
    weights.
    """
    first = train.gather(next(iter(train.dataset(0))))
    batch = {name: values[:_TRIED] for name, values in first.items()}
    y, outputs, _ = forward(model.task, model, batch)
    if model.losses:
        say(
            "note",
            "add_loss and regularizers count in training; validation and test losses"
            " are without them",
        )
    step: Any = model.step
    losses = step.loss(y, outputs)
    count = len(batch["id"])
    if losses.shape[0] != count:
        raise UsageError(
            f"the loss returns {losses.shape[0]} values for {count} examples; return"
            " one for each example, of shape (batch,)"
        )
    for metric in step.added_metrics:
        require_weights(metric, y, outputs)
