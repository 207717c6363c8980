"""Adam and its variants."""

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
    """Adam (Kingma, Ba, ICLR 2015).

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
    """Adam with a default weight decay of 0.004, times the learning rate in each step.

    Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019. In Keras, weight decay
    is decoupled in every optimizer; `adamw` differs from `adam` only in the default.

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

    Momentum rises from about half of `beta_1` to `beta_1`; in Keras this takes a few hundred steps,
    250 times fewer than in the paper.

    Args:
        beta_1: Decay rate of the mean of the gradients.
        beta_2: Decay rate of the mean of the squared gradients.
        epsilon: Added to the denominator, to avoid a division by zero.
    """
    return keras.optimizers.Nadam(learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
