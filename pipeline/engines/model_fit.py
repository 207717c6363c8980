"""Keras's `fit` drives the step."""

import keras

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
        callbacks: Keras's protocol.
    """
    model.step.feed(train, validation)
    stop = _StopAfter(train.last_step - train.first_step)
    history = model.fit(
        train.dataset,
        epochs=train.epochs,
        initial_epoch=train.first_step // train.steps_per_epoch,
        steps_per_epoch=min(train.steps_per_epoch, train.last_step - train.first_step),
        validation_data=validation.dataset if validation else None,
        callbacks=[stop, *callbacks],
        shuffle=False,
        verbose=0,
    )
    return history.history


class _StopAfter(keras.callbacks.Callback):
    """Ends training with the last ticket, where that is not the end of an epoch."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._left -= 1
        if not self._left:
            self.model.stop_training = True
