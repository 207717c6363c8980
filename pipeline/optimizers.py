"""The update rule, by name."""

from typing import Annotated

import keras

Schedule = keras.optimizers.schedules.LearningRateSchedule


def sgd(
    learning_rate: Schedule,
    *,
    momentum: Annotated[float, (0, 1)] = 0.0,
    nesterov: bool = False,
) -> keras.optimizers.Optimizer:
    """Stochastic gradient descent (Robbins, Monro 1951; momentum: Polyak 1964)."""
    return keras.optimizers.SGD(learning_rate, momentum=momentum, nesterov=nesterov)


def adam(
    learning_rate: Schedule,
    *,
    beta_1: Annotated[float, (0, 1)] = 0.9,
    beta_2: Annotated[float, (0, 1)] = 0.999,
    epsilon: Annotated[float, (0, 1)] = 1e-7,
) -> keras.optimizers.Optimizer:
    """Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015."""
    return keras.optimizers.Adam(learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
