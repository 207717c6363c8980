"""A user's losses, called as `keras.Model.fit` calls them (Keras 3.15).

A loss gets y as float32 and, of a user's network, the outputs as they are. A function
also gets y with the rank of the outputs, where they differ by an axis of length 1.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipeline.config.functions import from_signature
from pipeline.contracts import ExpectedArguments, Metadata, Task
from pipeline.tasks.keras_model import USER
from pipeline.utils.console import join_words
from pipeline.utils.errors import UsageError, reason

Loss = Callable[[Any, Any], tf.Tensor]
# Classes of Keras that do not say what their labels are.
_ABSTRACT = {"KerasSaveable", "Loss", "LossFunctionWrapper", "Mean", "Metric", "Sum"}
_ABSTRACT |= {"MeanMetricWrapper", "Reduction"}


@dataclasses.dataclass(frozen=True)
class OutputLosses:
    """The losses of a network: output -> a name, a Keras loss, or a function."""

    losses: Mapping[str, Any]
    weights: Mapping[str, float]

    @property
    def __name__(self) -> str:
        """Such as "mse of price and Huber of kind", for the lines of a run."""
        parts = []
        for name, loss in self.losses.items():
            word = loss if isinstance(loss, str) else name_of(loss)
            parts.append(f"{word} of {name}" if len(self.losses) > 1 else word)
        return join_words(parts)


class UserLoss:
    """A user's loss: a Keras loss, its class or name, or a function (y_true, y_pred).

    Raises UsageError if it is none of these, or returns one number for a batch.
    """

    def __init__(self, loss: Any, options: Mapping[str, Any] | None = None) -> None:
        self.loss = _create(loss, options or {})
        self.name = name_of(self.loss)
        self.from_logits = from_logits_of(self.loss)
        reduction = getattr(self.loss, "reduction", None)
        if reduction in ("sum", "mean_with_sample_weight"):
            raise UsageError(
                f"the loss {self.name} has reduction={reduction!r}; the loss of a step"
                " is the mean over its examples: remove reduction=..."
            )

    def of(self, task: Task, output: str = "") -> Loss:
        """The loss of y and outputs of a step of the task, float32 (batch,)."""
        loss = self.loss
        if not task.user_outputs and self.from_logits is not None:
            # A binary loss would treat each logit as that of an independent class.
            output_spec = task.target.output
            has_one_class = output_spec and output_spec.activation == "softmax"
            is_binary = "binary" in self.name.lower()
            loss = _with_logits(loss, not (is_binary and has_one_class))
        logits = from_logits_of(loss)
        if logits is None:
            logits = not isinstance(loss, keras.losses.Loss)
        takes = ExpectedArguments(labels_of(loss), logits, output)
        name = self.name if output in ("", USER) else f"{self.name} of {output!r}"

        def losses(y: Any, outputs: Any) -> tf.Tensor:
            return _per_example(loss, *task.user_arguments(y, outputs, takes), name)

        return losses


def _create(loss: Any, options: Mapping[str, Any]) -> Any:
    if isinstance(loss, str):
        if loss.lower() in ("crossentropy", "ce"):
            return _crossentropy
        try:
            loss = keras.losses.get(loss)
        except ValueError:
            raise UsageError(f"unknown loss {loss!r}; pass a Keras loss") from None
    if not callable(loss):
        raise UsageError(
            "a loss must be a name, a Keras loss, or a function (y_true, y_pred); got "
            f"{type(loss).__name__}"
        )
    if inspect.isclass(loss):
        return loss(**options)
    return functools.partial(loss, **options) if options else loss


def name_of(function: Any) -> str:
    """The name of a loss or a function, also in `functools.partial`, or of a class."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, keras.losses.Loss):
        return function.name
    return getattr(function, "__name__", type(function).__name__)


def from_logits_of(loss: Any) -> bool | None:
    """Whether a loss or a metric takes logits; None if it is not specified."""
    if hasattr(loss, "get_config"):
        try:
            return loss.get_config().get("from_logits")
        except (TypeError, NotImplementedError):
            return None
    try:
        default = inspect.signature(loss).parameters["from_logits"].default
    except (TypeError, ValueError, KeyError):
        return None
    return default if isinstance(default, bool) else None


def is_vague(loss: Any) -> bool:
    """Whether a loss, or the Keras loss of this name, leaves open if it takes logits.

    Names of other losses are not looked up.
    """
    known = of_keras(loss)
    return known is not None and from_logits_of(known) is None


def of_keras(loss: Any) -> Any:
    """The loss of Keras with this name, or the loss; None for another name."""
    if not isinstance(loss, str):
        return loss
    try:
        return keras.losses.get(loss)
    except ValueError:
        return None


_OF_NUMBERS = (
    *(keras.losses.MeanSquaredError, keras.losses.MeanAbsoluteError),
    *(keras.losses.MeanAbsolutePercentageError, keras.losses.Huber),
    *(keras.losses.MeanSquaredLogarithmicError, keras.losses.LogCosh),
)
_FUNCTIONS_OF_NUMBERS = (
    *(keras.losses.mean_squared_error, keras.losses.mean_absolute_error),
    *(keras.losses.mean_absolute_percentage_error, keras.losses.huber),
    *(keras.losses.mean_squared_logarithmic_error, keras.losses.log_cosh),
)


def compares_numbers(loss: Any) -> bool:
    """Whether a loss is one of Keras for regression, or its name or class."""
    loss = of_keras(loss)
    if isinstance(loss, type):
        return issubclass(loss, _OF_NUMBERS)
    return isinstance(loss, _OF_NUMBERS) or loss in _FUNCTIONS_OF_NUMBERS


def _with_logits(loss: Any, value: bool) -> Any:
    if isinstance(loss, keras.losses.Loss):
        return type(loss).from_config({**loss.get_config(), "from_logits": value})
    return functools.partial(loss, from_logits=value)


def labels_of(value: Any) -> Any:
    """The form of labels that a loss or metric of Keras documents, or the one from
    which it is derived; "" for others.
    """
    while isinstance(value, functools.partial):
        value = value.func
    kinds = [value] if hasattr(value, "__qualname__") else type(value).__mro__
    for kind in kinds:
        if kind.__module__.startswith("keras.") and kind.__name__ not in _ABSTRACT:
            is_sparse = kind.__name__.lower().startswith("sparse")
            return "index" if is_sparse else "one-hot"
    return ""


def _per_example(loss: Any, y: Any, prediction: Any, name: str) -> tf.Tensor:
    """The loss of each example, float32 (batch,).

    It is averaged over the positions of an example that are not masked, because a mean
    over the batch would depend on how examples are distributed.
    """
    call = loss
    y = tf.cast(y, tf.float32)
    if isinstance(loss, keras.losses.Loss):
        call = loss.call  # does not reduce the losses
    elif isinstance(prediction, tf.Tensor | keras.KerasTensor):
        y, prediction = _equal_ranks(y, prediction)
    try:
        values = tf.convert_to_tensor(call(y, prediction))
    except UsageError:
        raise
    except Exception as error:  # of the user's loss
        raise UsageError(
            f"the loss {name} does not fit: y is {_form(y)}, the output"
            f" {_form(prediction)}: {reason(error)}"
        ) from error
    if values.shape.rank == 0:
        raise UsageError(
            f"the loss {name} returns one number for the batch; it must return one"
            " value per example, of shape (batch,), such as a mean over all axes but"
            " the first"
        )
    values = tf.cast(values, tf.float32)
    # A loss may mask positions itself, such as those of `ignore_class`.
    mask = None
    for tensor in (prediction, values):
        part = getattr(tensor, "_keras_mask", None)
        if part is not None and part.shape.rank <= values.shape.rank:
            part = tf.cast(part, tf.bool)
            mask = part if mask is None else mask & part
    if mask is None:
        return mean_of_examples(values)
    kept = tf.cast(mask, tf.float32)
    while kept.shape.rank < values.shape.rank:
        kept = kept[..., None]
    kept = tf.broadcast_to(kept, tf.shape(values))
    axes = list(range(1, values.shape.rank))
    count = tf.reduce_sum(kept, axes)
    return tf.reduce_sum(values * kept, axes) / tf.maximum(count, 1.0)


def mean_of_examples(values: tf.Tensor) -> tf.Tensor:
    """The mean over all axes but the first, as Keras computes it."""
    if values.shape.rank and values.shape.rank > 1:
        values = tf.reduce_mean(tf.reshape(values, (tf.shape(values)[0], -1)), axis=1)
    return values


def _form(values: tf.Tensor) -> str:
    return f"{values.dtype.name} of shape {values.shape}"


def _equal_ranks(y: tf.Tensor, prediction: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    if y.shape.rank == 1 and prediction.shape.as_list()[1:] == [1]:
        return y[:, None], prediction
    if y.shape.rank == prediction.shape.rank + 1 and y.shape[-1] == 1:
        return tf.squeeze(y, -1), prediction
    if prediction.shape.rank == y.shape.rank + 1 and prediction.shape[-1] == 1:
        return y, tf.squeeze(prediction, -1)
    return y, prediction


def choose_by_shapes(
    y: Any, prediction: Any, binary: Any, sparse: Any, one_hot: Any
) -> Any:
    """What Keras chooses for the words `crossentropy` and `accuracy`."""
    if prediction.shape[-1] == 1:
        return binary
    has_classes = len(y.shape) < len(prediction.shape) or y.shape[-1] == 1
    return sparse if has_classes else one_hot


def _crossentropy(y: tf.Tensor, prediction: tf.Tensor) -> tf.Tensor:
    function = choose_by_shapes(
        y,
        prediction,
        keras.losses.binary_crossentropy,
        keras.losses.sparse_categorical_crossentropy,
        keras.losses.categorical_crossentropy,
    )
    return function(y, prediction)


def adapt(loss: Any) -> Callable[..., Any]:
    """Returns a registered loss for a Keras loss, its class, or a function.

    A function with one required argument is already a registered loss.
    """
    if not (inspect.isfunction(loss) and from_signature(loss).required_arguments == 1):
        return functools.partial(from_object, loss)

    def build_loss(metadata: Metadata, **options: Any) -> Any:
        result = loss(metadata, **options)
        return UserLoss(result) if isinstance(result, keras.losses.Loss) else result

    return build_loss


def from_object(loss: Any, metadata: Metadata, **options: Any) -> UserLoss:
    """Returns a Keras loss, its class, or a function as a loss of a run."""
    return UserLoss(loss, options)


def of_outputs(losses: OutputLosses, task: Task) -> Loss:
    """The sum of the weighted losses of the outputs, (y, outputs) -> (batch,)."""
    parts = []
    for name, loss in losses.losses.items():
        parts.append((UserLoss(loss).of(task, name), losses.weights.get(name, 1.0)))

    def total(y: Any, outputs: Any) -> tf.Tensor:
        return tf.add_n([part(y, outputs) * weight for part, weight in parts])

    return total
