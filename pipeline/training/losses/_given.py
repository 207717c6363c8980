"""Losses that users hand over: Keras losses, their classes, functions `(y_true, y_pred)`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pipeline.contracts import Metadata
from pipeline.tasks._metrics import binary, is_mixed
from pipeline.utils.errors import UsageError


def adapt(found: Any) -> Callable[..., Any]:
    """A registered loss for a Keras loss, its class, or a function of one or two arguments."""
    if inspect.isfunction(found) and required(found) == 1:
        return found
    return functools.partial(given, found)


def given(loss: Any, metadata: Metadata, **options: Any) -> "GivenLoss":
    """The loss itself.

    Args:
        loss: A Keras loss, its class, or a function `(y_true, y_pred)` that returns one loss per
            example.
        metadata: Of the task.
        options: Arguments of the class or function.
    """
    if not callable(loss):
        raise UsageError(
            "a loss must be a name, a Keras loss, or a function (y_true, y_pred); got "
            f"{type(loss).__name__}"
        )
    if inspect.isclass(loss):
        return GivenLoss(loss(**options), metadata, "from_logits" in options)
    return GivenLoss(functools.partial(loss, **options) if options else loss, metadata, True)


def required(function: Callable) -> int:
    """Number of its positional arguments without a default."""
    known = inspect.signature(function).parameters.values()
    return sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in known)


class GivenLoss:
    """A loss of Keras on the outputs of a task, which for a classification are logits.

    It gets labels as Keras's losses expect them: whole numbers for the sparse ones and for a
    function, else one-hot; and probabilities or logits as the user's network returns them.

    Args:
        loss: A Keras loss, or a function.
        metadata: Of the task.
        is_explicit: Whether `from_logits` of the loss was set by the user.
    """

    def __init__(self, loss: Any, metadata: Metadata, is_explicit: bool) -> None:
        self._loss, self._is_explicit = loss, is_explicit
        self._classes = len(metadata.get("class_names", ()))
        self._name = getattr(loss, "name", None) or getattr(loss, "__name__", "loss")
        self._takes_logits = True

    def suit(self, ends_in: str) -> None:
        """Adapts it to a network that ends in an activation (`SteppedModel.ends_in`).

        Raises:
            UsageError: `from_logits` contradicts that activation.
        """
        config = self._loss.get_config() if isinstance(self._loss, keras.losses.Loss) else {}
        if "from_logits" not in config:
            self._takes_logits = ends_in in ("none", "linear") and not config
            return
        answers = ends_in in ("softmax", "sigmoid")
        if self._is_explicit and ends_in != "none" and config["from_logits"] == answers:
            returned = f"probabilities ({ends_in})" if answers else "logits"
            raise UsageError(
                f"the loss {self._name} has from_logits={config['from_logits']}, but the model "
                f"returns {returned}; set from_logits={not answers}"
            )
        self._loss = type(self._loss).from_config({**config, "from_logits": True})

    def __call__(self, y: Any, outputs: Any) -> tf.Tensor:
        if not self._classes:
            return self._call(y, outputs)
        kind = type(self._loss).__name__
        outputs = tf.cast(outputs, tf.float32)
        if kind.startswith("Binary"):
            y, outputs = binary(y, outputs, self._takes_logits)
            return self._call(y, outputs)
        if isinstance(self._loss, keras.losses.Loss) and not kind.startswith("Sparse"):
            y = y if is_mixed(y) else tf.one_hot(y, self._classes)
        return self._call(y, outputs if self._takes_logits else tf.nn.softmax(outputs))

    def _call(self, y: Any, outputs: Any) -> Any:
        """Without the reduction over the batch."""
        loss = self._loss
        return loss.call(y, outputs) if isinstance(loss, keras.losses.Loss) else loss(y, outputs)
