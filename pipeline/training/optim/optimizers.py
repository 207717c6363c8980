"""The update rule, by name."""

from typing import Annotated

import keras

from pipeline.training.optim.muon import Muon
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

    Raises UsageError for `nesterov` without momentum, which Keras would ignore.
    """
    if nesterov and not momentum:
        flag = "--train.optimizer-options nesterov=True"
        raise UsageError(f"{flag} of sgd needs a momentum, such as momentum=0.9")
    # Keras takes no int here.
    return keras.optimizers.SGD(learning_rate, momentum=float(momentum), nesterov=nesterov)


def adam(
    learning_rate: Schedule,
    *,
    beta_1: Annotated[float, (0, 0.9999)] = 0.9,
    beta_2: Annotated[float, (0, 0.999999)] = 0.999,
    epsilon: Annotated[float, (1e-16, 1)] = 1e-7,
) -> keras.optimizers.Optimizer:
    """Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015."""
    return keras.optimizers.Adam(learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)


def adamw(
    learning_rate: Schedule,
    *,
    beta_1: Annotated[float, (0, 0.9999)] = 0.9,
    beta_2: Annotated[float, (0, 0.999999)] = 0.999,
    epsilon: Annotated[float, (1e-16, 1)] = 1e-7,
) -> keras.optimizers.Optimizer:
    """Adam that decays weights by default, by 0.004 times the rate in each step.

    Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019. In Keras the decay of
    every optimizer is decoupled in this way; the default is all that sets this one apart.
    """
    return keras.optimizers.AdamW(learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)


def nadam(
    learning_rate: Schedule,
    *,
    beta_1: Annotated[float, (0, 0.9999)] = 0.9,
    beta_2: Annotated[float, (0, 0.999999)] = 0.999,
    epsilon: Annotated[float, (1e-16, 1)] = 1e-7,
) -> keras.optimizers.Optimizer:
    """Adam with Nesterov's look ahead (Dozat, ICLR 2016 workshop).

    Momentum rises from about half of `beta_1`; in Keras it is there after some hundred steps, 250
    times earlier than in the paper.
    """
    return keras.optimizers.Nadam(learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)


def lion(
    learning_rate: Schedule,
    *,
    beta_1: Annotated[float, (0.0001, 0.9999)] = 0.9,
    beta_2: Annotated[float, (0, 0.9999)] = 0.99,
) -> keras.optimizers.Optimizer:
    """Steps of the rate's size in each weight: the sign of a momentum; takes 1/10 of Adam's rate.

    Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023: a rate 3 to 10 times
    smaller than AdamW's, such as 0.0001 to 0.0003, with a weight decay as many times larger.
    """
    return keras.optimizers.Lion(learning_rate, beta_1=beta_1, beta_2=beta_2)


def muon(
    learning_rate: Schedule,
    *,
    momentum: Annotated[float, (0, 0.9999)] = 0.95,
    nesterov: bool = True,
) -> keras.optimizers.Optimizer:
    """Orthogonal steps for hidden matrices and convolutions, Adam for the rest; Adam's rate.

    Jordan et al. 2024; the step's size is that of Liu et al. 2025, so rates and weight decay that
    suit AdamW suit it too.
    """
    return Muon(learning_rate, momentum=momentum, nesterov=nesterov)
