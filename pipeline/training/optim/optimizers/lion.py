"""Lion: each step is the sign of a momentum."""

from typing import Annotated

import keras
from keras.optimizers.schedules import LearningRateSchedule


def lion(
    learning_rate: LearningRateSchedule,
    *,
    beta_1: Annotated[float, (0.0001, 0.9999)] = 0.9,
    beta_2: Annotated[float, (0, 0.9999)] = 0.99,
) -> keras.optimizers.Optimizer:
    """Each step is the sign of a momentum; needs a rate of 1/3 to 1/10 of AdamW's.

    Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023: the rate is, for
    example, 0.0001 to 0.0003, with weight decay 3 to 10 times larger than AdamW's.

    Args:
        beta_1: Weight of the momentum in the direction whose sign is the step.
        beta_2: Decay rate of the momentum.
    """
    return keras.optimizers.Lion(learning_rate, beta_1=beta_1, beta_2=beta_2)
