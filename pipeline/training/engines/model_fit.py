"""Training with Keras's `fit`."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Batches
from pipeline.training import distributed
from pipeline.utils.tf_data import with_options


@register
def model_fit(
    model: keras.Model,
    train: Batches,
    validation: Batches | None,
    callbacks: list[keras.callbacks.Callback],
) -> dict[str, list[float]]:
    """Trains with Keras's `fit`; see `gradient_tape` for arguments and result."""
    model.step.set_inputs(train, validation)
    train_function = distributed.StepFunction(model, "train", train)
    model.train_function = train_function
    validation_arguments: dict[str, Any] = {}
    if validation:
        model.test_function = distributed.StepFunction(model, "evaluate", validation)
        validation_arguments = {
            "validation_data": _no_data(),
            "validation_steps": validation.steps_per_epoch,
        }
    history: dict[str, list[float]] = {}
    for part, epochs in _parts(train):
        result = model.fit(
            _no_data(),
            epochs=epochs,
            initial_epoch=part.first_epoch,
            # At least one call, which takes no steps if only the validation is left.
            steps_per_epoch=max(1, part.end_of(part.first_epoch) - part.first_step),
            callbacks=[_Position(train_function, train), *callbacks],
            shuffle=False,
            verbose=0,
            **validation_arguments,
        )
        for name, values in result.history.items():
            history.setdefault(name, []).extend(values)
        if model.stop_training:
            break
    model.train_function = model.test_function = None  # closes their iterators
    return history


def _no_data() -> Any:
    """A dummy dataset: Keras counts its elements; `StepFunction` reads the batches."""
    nothing = with_options(tf.data.Dataset.from_tensors(0.0).repeat())
    strategy = tf.distribute.get_strategy()
    return strategy.distribute_datasets_from_function(lambda _: nothing)


def _parts(train: Batches) -> Iterator[tuple[Batches, int]]:
    """Yields (batches, end of their epochs) for each call of `fit`.

    `fit` gives all epochs the same number of steps, so an epoch that was partly trained
    before needs a call of its own.
    """
    first = train.first_epoch
    if train.first_step != first * train.steps_per_epoch:
        yield train, first + 1
        next_step = train.end_of(first)
        train = dataclasses.replace(train, first_step=next_step, first_epoch=first + 1)
    if train.first_epoch < train.epochs:
        yield train, train.epochs


class _Position(keras.callbacks.Callback):
    """Begins each epoch; ends training at the last step, even within an epoch."""

    def __init__(
        self, train_function: distributed.StepFunction, batches: Batches
    ) -> None:
        super().__init__()
        self._train_function = train_function
        self._last_step = batches.last_step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._train_function.begin(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._train_function.position >= self._last_step:
            self.model.stop_training = True
