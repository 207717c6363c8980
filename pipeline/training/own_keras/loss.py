"""Adapts users' losses: Keras losses, their classes and functions."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pipeline.config.functions import from_signature
from pipeline.contracts import Metadata
from pipeline.training.own_keras import arguments
from pipeline.utils.errors import UsageError


def adapt(loss: Any) -> Callable[..., Any]:
    """Returns a registered loss for a Keras loss, its class, or a function.

    A function with one required argument is already a registered loss.
    """
    if not (inspect.isfunction(loss) and from_signature(loss).required_arguments == 1):
        return functools.partial(from_object, loss)

    def build_loss(metadata: Metadata, **options: Any) -> Callable[[Any, Any], Any]:
        result = loss(metadata, **options)
        if isinstance(result, keras.losses.Loss):
            return from_object(result, metadata)
        return result

    return build_loss


def from_object(
    loss: Any, metadata: Metadata, **options: Any
) -> Callable[[Any, Any], Any]:
    """Returns the loss as a function of y and outputs of a task.

    In a classification, these are one-hot labels and logits. The user's loss gets
    labels as Keras's losses expect them (`arguments.choices`), and probabilities or
    logits as the user's network returns them (`SteppedModel.output_kind`).

    Args:
        loss: A Keras loss, its class, or a function `(y_true, y_pred)` that returns one
            loss per example.
        metadata: Metadata of the task, and `output_kind`.
        options: Arguments of the class or function.

    Raises:
        UsageError: It is not a loss, does not suit the task, or its `from_logits`
            contradicts the user's network.
    """
    if not callable(loss):
        raise UsageError(
            "a loss must be a name, a Keras loss, or a function (y_true, y_pred); got "
            f"{type(loss).__name__}"
        )
    is_default = inspect.isclass(loss) and "from_logits" not in options
    if inspect.isclass(loss):
        loss = loss(**options)
    elif options:
        loss = functools.partial(loss, **options)
    if isinstance(loss, keras.losses.Loss):
        call, possible = _of_class(loss, is_default, metadata)
        name = loss.name
    else:
        call, possible = _of_function(loss, metadata)
        name = function_name(loss)
    convert = arguments.find_arguments(call, possible, name, "loss")
    return lambda y, outputs: arguments.per_example(call(*convert(y, outputs)))


Choices = tuple[Callable[[Any, Any], Any], list[arguments.Arguments]]


def _of_class(loss: keras.losses.Loss, is_default: bool, metadata: Metadata) -> Choices:
    """Returns a function to one loss per example, and its possible arguments."""
    config = loss.get_config()
    possible = arguments.choices(type(loss), metadata, logits=False)
    if "from_logits" in config:
        if not is_default:
            kind = metadata.get("output_kind", "none")
            _require_agreement(loss.name, config["from_logits"], kind)
        # A `Binary*` loss with more than two classes takes each logit for the logit of
        # a class by itself.
        is_binary = "Binary" in type(loss).__name__
        takes_logits = not (is_binary and possible[0].labels == "one-hot")
        logits = takes_logits or config["from_logits"]
        loss = type(loss).from_config({**config, "from_logits": logits})
        possible = arguments.choices(type(loss), metadata, logits)

    def call(y_true: Any, y_pred: Any) -> Any:
        # `loss.call` does not reduce the losses. Like `__call__`, it gets floats.
        return loss.call(tf.cast(y_true, tf.float32), y_pred)

    return call, possible


def _of_function(loss: Callable[..., Any], metadata: Metadata) -> Choices:
    output_kind = metadata.get("output_kind", "none")
    logits = output_kind not in ("softmax", "sigmoid")
    if isinstance(loss, functools.partial) and "from_logits" in loss.keywords:
        _require_agreement(
            function_name(loss), loss.keywords["from_logits"], output_kind
        )
    elif metadata.get("class_names") and arguments.takes_from_logits(loss):
        loss = functools.partial(loss, from_logits=logits)
    return loss, arguments.choices(None, metadata, logits)


def function_name(function: Callable[..., Any]) -> str:
    """Returns the name of a function, also in `functools.partial`, or of a class."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _require_agreement(name: str, from_logits: bool, output_kind: str) -> None:
    answers = output_kind in ("softmax", "sigmoid")
    if output_kind != "none" and from_logits == answers:
        returned = f"probabilities ({output_kind})" if answers else "logits"
        raise UsageError(
            f"the loss {name} has from_logits={from_logits}, but the model returns"
            f" {returned}; set from_logits={not answers}"
        )
