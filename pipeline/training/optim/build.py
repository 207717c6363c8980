"""Builds the optimizer of a run."""

from collections.abc import Sequence

import keras

from pipeline.config import config, registry
from pipeline.training.optim.learning_rate import AdjustableRate
from pipeline.training.optim.weight_decay import exempt_vectors
from pipeline.utils.errors import require_kind


def build_optimizer(
    options: config.TrainConfig,
    rate: AdjustableRate,
    variables: Sequence[keras.Variable],
) -> keras.optimizers.Optimizer:
    """Builds the optimizer of `train.optimizer`, with `train.weight_decay`.

    Vectors are exempt from `train.weight_decay`; they are not from the weight decay
    that is an argument of the optimizer, as in Keras. `variables` are all weights that
    are trained at any time.
    """
    name = options.optimizer
    optimizer = registry.call("optimizers", name, options.optimizer_options, rate)
    flag = f"--train.optimizer {name}"
    require_kind(optimizer, keras.optimizers.Optimizer, flag, "a Keras optimizer")
    if options.weight_decay is not None:
        optimizer.weight_decay = options.weight_decay
        exempt_vectors(optimizer, variables)
    return optimizer
