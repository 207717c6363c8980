"""Training with Keras's `fit`."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras

from pipeline.contracts import Batches
from pipeline.training import distributed


def model_fit(
    model: keras.Model,
    train: Batches,
    validation: Batches | None,
    callbacks: list[keras.callbacks.Callback],
) -> dict[str, list[float]]:
    """Keras's `fit`; arguments and result are those of `gradient_tape`."""
    model.step.set_inputs(train, validation)
    calls = model.train_function = distributed.Calls(model, "train", train)
    evaluating: dict[str, Any] = {}
    if validation:
        model.test_function = distributed.Calls(model, "evaluate", validation)
        evaluating = {
            "validation_data": distributed.dataset(validation, repeat=True),
            "validation_steps": validation.steps_per_epoch,
        }
    history: dict[str, list[float]] = {}
    for part, epochs in _parts(train):
        found = model.fit(
            distributed.dataset(part, repeat=True),
            epochs=epochs,
            initial_epoch=part.first_epoch,
            # At least one call, which takes no steps if only the validation is left.
            steps_per_epoch=max(1, part.end_of(part.first_epoch) - part.first_step),
            callbacks=[_Position(calls, train), *callbacks],
            shuffle=False,
            verbose=0,
            **evaluating,
        )
        for name, values in found.history.items():
            history.setdefault(name, []).extend(values)
        if model.stop_training:
            break
    return history


def _parts(train: Batches) -> Iterator[tuple[Batches, int]]:
    """Yields (batches, end of their epochs). `fit` gives all epochs the same number of
    steps, so an epoch that was partly trained before needs a separate `fit`.
    """
    first = train.first_epoch
    if train.first_step != first * train.steps_per_epoch:
        yield train, first + 1
        train = dataclasses.replace(
            train, first_step=train.end_of(first), first_epoch=first + 1
        )
    if train.first_epoch < train.epochs:
        yield train, train.epochs


class _Position(keras.callbacks.Callback):
    """Sets the position of the calls; ends training at the last step, which may be
    within an epoch.
    """

    def __init__(self, calls: distributed.Calls, batches: Batches) -> None:
        super().__init__()
        self._calls, self._last_step = calls, batches.last_step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._calls.begin(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._calls.position >= self._last_step:
            self.model.stop_training = True
