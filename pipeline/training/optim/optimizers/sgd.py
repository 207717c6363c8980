"""Stochastic gradient descent with momentum."""

from typing import Annotated

import keras
from keras.optimizers.schedules import LearningRateSchedule

from pipeline.utils.errors import UsageError


def sgd(
    learning_rate: LearningRateSchedule,
    *,
    momentum: Annotated[float, (0, 1)] = 0.0,
    nesterov: bool = False,
) -> keras.optimizers.Optimizer:
    """Stochastic gradient descent (Robbins, Monro 1951; momentum: Polyak 1964).

    `nesterov` is Nesterov momentum (Sutskever et al., ICML 2013). As in Keras, the velocity
    includes the learning rate: a new rate does not change the contribution of earlier steps.

    Args:
        momentum: Fraction of the last step that is added to the next one.
        nesterov: Whether to use Nesterov momentum; requires `momentum`.

    Raises UsageError for `nesterov` without momentum, which Keras would ignore.
    """
    if nesterov and not momentum:
        flag = "--train.optimizer-options nesterov=True"
        raise UsageError(f"{flag} of sgd requires momentum, such as momentum=0.9")
    # Keras does not accept an int here.
    return keras.optimizers.SGD(learning_rate, momentum=float(momentum), nesterov=nesterov)
