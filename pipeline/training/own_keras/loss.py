"""Losses that users hand over: Keras losses, their classes, functions `(y_true, y_pred)`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pipeline.config.functions import declared
from pipeline.contracts import Metadata
from pipeline.tasks._metrics import binary, is_mixed
from pipeline.utils.errors import UsageError


def adapt(found: Any) -> Callable[..., Any]:
    """A registered loss for a Keras loss, its class, or a function of one or two arguments."""
    if inspect.isfunction(found) and declared(found).required == 1:
        return found
    return functools.partial(from_object, found)


def from_object(loss: Any, metadata: Metadata, **options: Any) -> Callable[[Any, Any], Any]:
    """The loss on the outputs of a task, which for a classification are logits.

    It gets labels as Keras's losses expect them: whole numbers for the sparse ones and for a
    function, else one-hot; and probabilities or logits as the user's network returns them (see
    `SteppedModel.ends_in`). `loss` is a Keras loss, its class, or a function `(y_true, y_pred)`
    that returns one loss per example; `options` are arguments of the class or function. Raises
    UsageError if it is not a loss, or its `from_logits` contradicts the user's network.
    """
    if not callable(loss):
        raise UsageError(
            "a loss must be a name, a Keras loss, or a function (y_true, y_pred); got "
            f"{type(loss).__name__}"
        )
    is_default = inspect.isclass(loss) and "from_logits" not in options
    if inspect.isclass(loss) or options:
        loss = loss(**options) if inspect.isclass(loss) else functools.partial(loss, **options)
    ends_in, classes = metadata.get("ends_in", "none"), len(metadata.get("class_names", ()))
    is_keras, kind = isinstance(loss, keras.losses.Loss), type(loss).__name__
    config = loss.get_config() if is_keras else {}
    takes_logits = "from_logits" in config or (not is_keras and ends_in in ("none", "linear"))
    if "from_logits" in config:
        if not is_default:
            _require_agreement(loss.name, config["from_logits"], ends_in)
        loss = type(loss).from_config({**config, "from_logits": True})
    call = loss.call if is_keras else loss  # without the reduction over the batch

    def adapted(y: Any, outputs: Any) -> Any:
        if not classes:
            return call(y, outputs)
        outputs = tf.cast(outputs, tf.float32)
        if kind.startswith("Binary"):
            return call(*binary(y, outputs, takes_logits))
        if is_keras and not kind.startswith("Sparse") and not is_mixed(y):
            y = tf.one_hot(y, classes)
        return call(y, outputs if takes_logits else tf.nn.softmax(outputs))

    return adapted


def _require_agreement(name: str, from_logits: bool, ends_in: str) -> None:
    answers = ends_in in ("softmax", "sigmoid")
    if ends_in != "none" and from_logits == answers:
        returned = f"probabilities ({ends_in})" if answers else "logits"
        raise UsageError(
            f"the loss {name} has from_logits={from_logits}, but the model returns {returned}; set "
            f"from_logits={not answers}"
        )
