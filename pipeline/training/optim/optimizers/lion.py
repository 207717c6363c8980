"""Lion: steps by the sign of a momentum."""

from typing import Annotated

import keras

Schedule = keras.optimizers.schedules.LearningRateSchedule


def lion(
    learning_rate: Schedule,
    *,
    beta_1: Annotated[float, (0.0001, 0.9999)] = 0.9,
    beta_2: Annotated[float, (0, 0.9999)] = 0.99,
) -> keras.optimizers.Optimizer:
    """Steps of the rate's size in each weight: the sign of a momentum; takes 1/10 of Adam's rate.

    Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023: a rate 3 to 10 times
    smaller than AdamW's, such as 0.0001 to 0.0003, with a weight decay as many times larger.

    Args:
        beta_1: Share of the momentum in the direction whose sign is taken.
        beta_2: Decay rate of the momentum.
    """
    return keras.optimizers.Lion(learning_rate, beta_1=beta_1, beta_2=beta_2)
