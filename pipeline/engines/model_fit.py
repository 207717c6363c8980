"""Keras's `fit` drives the step."""

import keras

from pipeline import replicas
from pipeline.contracts import Batches


def train(
    model: keras.Model,
    train: Batches,
    validation: Batches | None,
    callbacks: list[keras.callbacks.Callback],
) -> dict[str, list[float]]:
    """Trains from `train.first_step` to `train.last_step`; returns value per epoch by metric.

    Args:
        model: Compiled by `build`.
        train: All epochs in one dataset, so that `fit` keeps one iterator.
        validation: Evaluated after each epoch; None: not at all.
        callbacks: Keras's protocol; a batch is a call of `model.steps_per_execution` steps.
    """
    model.step.feed(train, validation)
    calls = model.train_function = replicas.Calls(model, "train", train)
    evaluating = {}
    if validation:
        model.test_function = replicas.Calls(model, "evaluate", validation)
        evaluating = {
            "validation_data": replicas.tickets(validation, repeat=True),
            "validation_steps": validation.steps_per_epoch,
        }
    history = model.fit(
        replicas.tickets(train, repeat=True),
        epochs=train.epochs,
        initial_epoch=train.first_step // train.steps_per_epoch,
        steps_per_epoch=min(train.steps_per_epoch, train.last_step - train.first_step),
        callbacks=[_StopAtEnd(calls, train), *callbacks],
        shuffle=False,
        verbose=0,
        **evaluating,
    )
    return history.history


class _StopAtEnd(keras.callbacks.Callback):
    """Ends training with the last ticket, where that is not the end of an epoch."""

    def __init__(self, calls: replicas.Calls, batches: Batches) -> None:
        super().__init__()
        self._calls, self._last_step = calls, batches.last_step

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self._calls.position >= self._last_step:
            self.model.stop_training = True
