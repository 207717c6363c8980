"""Losses that users hand over: Keras losses, their classes, functions `(y_true,
y_pred)`.
"""

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
    """A registered loss for a Keras loss, its class, or a function of one or two
    arguments.
    """
    if not (inspect.isfunction(loss) and from_signature(loss).required_arguments == 1):
        return functools.partial(from_object, loss)

    def registered(metadata: Metadata, **options: Any) -> Callable[[Any, Any], Any]:
        made = loss(metadata, **options)
        return (
            from_object(made, metadata) if isinstance(made, keras.losses.Loss) else made
        )

    return registered


def from_object(
    loss: Any, metadata: Metadata, **options: Any
) -> Callable[[Any, Any], Any]:
    """The loss on y and outputs of a task, which for a classification are one-hot and
    logits.

    It gets labels as Keras's losses expect them (`arguments.choices`), and
    probabilities or logits as the user's network returns them (`SteppedModel.ends_in`).

    Args:
        loss: A Keras loss, its class, or a function `(y_true, y_pred)` that returns one
            loss per example.
        metadata: Metadata of the task, and `ends_in`.
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
    chosen = arguments.fitting(call, possible, name, "loss")
    return lambda y, outputs: arguments.per_example(call(*chosen(y, outputs)))


Choices = tuple[Callable[[Any, Any], Any], list[arguments.Arguments]]


def _of_class(loss: keras.losses.Loss, is_default: bool, metadata: Metadata) -> Choices:
    """What computes one loss per example, and what it may expect."""
    config = loss.get_config()
    possible = arguments.choices(type(loss), metadata, logits=False)
    if "from_logits" in config:
        if not is_default:
            _require_agreement(
                loss.name, config["from_logits"], metadata.get("ends_in", "none")
            )
        # A `Binary*` loss with more than two classes takes its logits for those of
        # single classes.
        is_stable = not (
            "Binary" in type(loss).__name__ and possible[0].labels == "one-hot"
        )
        logits = is_stable or config["from_logits"]
        loss = type(loss).from_config({**config, "from_logits": logits})
        possible = arguments.choices(type(loss), metadata, logits)
    # `call` does not reduce the losses; as `__call__` does, it gets floats.
    return (
        lambda y_true, y_pred: loss.call(tf.cast(y_true, tf.float32), y_pred),
        possible,
    )


def _of_function(loss: Callable[..., Any], metadata: Metadata) -> Choices:
    ends_in = metadata.get("ends_in", "none")
    logits = ends_in not in ("softmax", "sigmoid")
    if isinstance(loss, functools.partial) and "from_logits" in loss.keywords:
        _require_agreement(function_name(loss), loss.keywords["from_logits"], ends_in)
    elif metadata.get("class_names") and arguments.takes_from_logits(loss):
        loss = functools.partial(loss, from_logits=logits)
    return loss, arguments.choices(None, metadata, logits)


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function, of what `functools.partial` wraps, or of the class of an
    object.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _require_agreement(name: str, from_logits: bool, ends_in: str) -> None:
    answers = ends_in in ("softmax", "sigmoid")
    if ends_in != "none" and from_logits == answers:
        returned = f"probabilities ({ends_in})" if answers else "logits"
        raise UsageError(
            f"the loss {name} has from_logits={from_logits}, but the model returns"
            f" {returned}; set from_logits={not answers}"
        )
