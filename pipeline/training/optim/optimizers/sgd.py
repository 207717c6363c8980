"""Stochastic gradient descent with momentum."""

from typing import Annotated

import keras

from pipeline.utils.errors import UsageError

Schedule = keras.optimizers.schedules.LearningRateSchedule


def sgd(
    learning_rate: Schedule,
    *,
    momentum: Annotated[float, (0, 1)] = 0.0,
    nesterov: bool = False,
) -> keras.optimizers.Optimizer:
    """Stochastic gradient descent (Robbins, Monro 1951; momentum: Polyak 1964).

    With `nesterov` the gradient counts as if taken one step ahead (Sutskever et al., ICML 2013).
    The velocity holds the rate, as in Keras: after a change of the rate the old steps keep theirs.

    Args:
        momentum: Share of the last step that is added to the next one.
        nesterov: Take the gradient as if one step ahead; needs a momentum.

    Raises UsageError for `nesterov` without momentum, which Keras would ignore.
    """
    if nesterov and not momentum:
        flag = "--train.optimizer-options nesterov=True"
        raise UsageError(f"{flag} of sgd needs a momentum, such as momentum=0.9")
    # Keras takes no int here.
    return keras.optimizers.SGD(learning_rate, momentum=float(momentum), nesterov=nesterov)
