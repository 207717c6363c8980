"""Adam and its relatives."""

from typing import Annotated

import keras
from keras.optimizers.schedules import LearningRateSchedule


def adam(
    learning_rate: LearningRateSchedule,
    *,
    beta_1: Annotated[float, (0, 0.9999)] = 0.9,
    beta_2: Annotated[float, (0, 0.999999)] = 0.999,
    epsilon: Annotated[float, (1e-16, 1)] = 1e-7,
) -> keras.optimizers.Optimizer:
    """Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015.

    Args:
        beta_1: Decay rate of the mean of the gradients.
        beta_2: Decay rate of the mean of the squared gradients.
        epsilon: Added to the denominator, to avoid a division by zero.
    """
    return keras.optimizers.Adam(learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)


def adamw(
    learning_rate: LearningRateSchedule,
    *,
    beta_1: Annotated[float, (0, 0.9999)] = 0.9,
    beta_2: Annotated[float, (0, 0.999999)] = 0.999,
    epsilon: Annotated[float, (1e-16, 1)] = 1e-7,
) -> keras.optimizers.Optimizer:
    """Adam with weight decay by default: 0.004 times the rate in each step.

    Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019. In Keras weight decay is
    decoupled in every optimizer; this one differs from `adam` in the default only.

    Args:
        beta_1: Decay rate of the mean of the gradients.
        beta_2: Decay rate of the mean of the squared gradients.
        epsilon: Added to the denominator, to avoid a division by zero.
    """
    return keras.optimizers.AdamW(learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)


def nadam(
    learning_rate: LearningRateSchedule,
    *,
    beta_1: Annotated[float, (0, 0.9999)] = 0.9,
    beta_2: Annotated[float, (0, 0.999999)] = 0.999,
    epsilon: Annotated[float, (1e-16, 1)] = 1e-7,
) -> keras.optimizers.Optimizer:
    """Adam with Nesterov momentum (Dozat, ICLR 2016 workshop).

    Momentum rises from about half of `beta_1`; in Keras it gets there after a few hundred steps,
    250 times earlier than in the paper.

    Args:
        beta_1: Decay rate of the mean of the gradients.
        beta_2: Decay rate of the mean of the squared gradients.
        epsilon: Added to the denominator, to avoid a division by zero.
    """
    return keras.optimizers.Nadam(learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
