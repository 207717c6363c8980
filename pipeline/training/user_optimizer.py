"""Adapts users' optimizers: Keras optimizers and their classes."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from pipeline.training.keras_config import missing_arguments
from pipeline.utils.console import join_words
from pipeline.utils.errors import UsageError, reason

# The update rule of the run clips, averages and accumulates, over all replicas.
_RUN_OPTIONS = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "loss_scale_factor",
)
# Options that would change the steps of the run -> what to write instead.
_REFUSED = {
    "gradient_accumulation_steps": "multiply batch_size by {}, and write"
    ' train={{"accumulate": {}}} if the memory does not suffice',
    "ema_overwrite_frequency": "remove it: the averages are used for validation and in"
    " the end",
}


def adapt(optimizer: Any) -> Callable[..., keras.optimizers.Optimizer]:
    """Returns a registered optimizer for a Keras optimizer, its class, or a function.

    A function of a learning rate is already a registered optimizer.
    """
    if inspect.isfunction(optimizer):
        return optimizer
    return functools.partial(from_object, optimizer)


def from_object(
    optimizer: Any, learning_rate: Any, **options: Any
) -> keras.optimizers.Optimizer:
    """Builds an optimizer like `optimizer`, or of that class with `options`."""
    if inspect.isclass(optimizer):
        try:
            return optimizer(**{"learning_rate": learning_rate, **options})
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"--train.optimizer {optimizer.__name__}: {reason(error)}"
            ) from error
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UsageError(
            "the loss is scaled by the run itself; pass the inner optimizer"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            "an optimizer must be a name or a Keras optimizer; got"
            f" {type(optimizer).__name__}"
        )
    for name, remedy in _REFUSED.items():
        if value := getattr(optimizer, name, None):
            remedy = remedy.format(value, value)
            raise UsageError(f"the optimizer has {name}={value}; {remedy}")
    if getattr(optimizer, "_exclude_from_weight_decay", None):
        raise UsageError(
            "the optimizer excludes variables from its weight decay, which a run"
            " copies; exclude them by name: exclude_from_weight_decay(var_names=[...])"
        )
    if names := missing_arguments(optimizer):
        raise UsageError(
            f"the optimizer {type(optimizer).__name__} cannot be rebuilt: its"
            f" get_config lacks {join_words(names)}; add it"
        )
    try:
        config = {**optimizer.get_config(), **dict.fromkeys(_RUN_OPTIONS)}
        config |= {"use_ema": False, "learning_rate": 0.0}
        copy = type(optimizer).from_config(config)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the optimizer {optimizer.name} cannot be rebuilt from its config:"
            f" {reason(error)}"
        ) from error
    copy.learning_rate = learning_rate  # drops the variable of the former rate
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    if pattern is not None:  # is not in the config
        copy.exclude_from_weight_decay(var_names=[pattern.pattern])
    return copy
