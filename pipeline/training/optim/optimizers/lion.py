"""Lion: the sign of a momentum as the step."""

from typing import Annotated

import keras
from keras.optimizers.schedules import LearningRateSchedule


def lion(
    learning_rate: LearningRateSchedule,
    *,
    beta_1: Annotated[float, (0.0001, 0.9999)] = 0.9,
    beta_2: Annotated[float, (0, 0.9999)] = 0.99,
) -> keras.optimizers.Optimizer:
    """Steps by the sign of a momentum, all of the same size; needs 1/10 of Adam's rate.

    Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023: a rate 3 to 10 times
    smaller than AdamW's, such as 0.0001 to 0.0003, with weight decay larger by the same factor.

    Args:
        beta_1: Weight of the momentum in the direction whose sign is used.
        beta_2: Decay rate of the momentum.
    """
    return keras.optimizers.Lion(learning_rate, beta_1=beta_1, beta_2=beta_2)
