"""A loop of our own drives the step: every line of the training is in sight."""

from typing import Any

import keras
import tensorflow as tf

from pipeline.contracts import Batches


def train(
    model: keras.Model,
    train: Batches,
    validation: Batches | None,
    callbacks: list[keras.callbacks.Callback],
) -> dict[str, list[float]]:
    """Trains from `train.first_step` to `train.last_step`; returns value per epoch by metric.

    The same step in the same order as under `model_fit`: the weights come out bit for bit alike.

    Args:
        model: Compiled by `build`.
        train: All epochs in one dataset.
        validation: Evaluated after each epoch; None: not at all.
        callbacks: Keras's protocol; `model.stop_training` ends the loop.
    """
    model.step.feed(train, validation)

    @tf.function
    def train_step(ticket: Any) -> dict[str, tf.Tensor]:
        return model.step.train(model, ticket)

    @tf.function
    def evaluate_step(ticket: Any) -> dict[str, tf.Tensor]:
        return model.step.evaluate(model, ticket)

    listeners = keras.callbacks.CallbackList(
        callbacks, add_history=True, model=model, epochs=train.epochs, steps=train.steps_per_epoch
    )
    model.stop_training = False
    listeners.on_train_begin()
    step, tickets = train.first_step, iter(train.dataset)
    for epoch in range(step // train.steps_per_epoch, train.epochs):
        model.reset_metrics()
        listeners.on_epoch_begin(epoch)
        for batch in range(train.end_of(epoch) - step):
            listeners.on_train_batch_begin(batch)
            listeners.on_train_batch_end(batch, train_step(next(tickets)))
            step += 1
            if model.stop_training:
                break
        logs = model.get_metrics_result()
        if validation:
            model.reset_metrics()
            listeners.on_test_begin()
            for batch, ticket in enumerate(validation.dataset):
                listeners.on_test_batch_begin(batch)
                listeners.on_test_batch_end(batch, evaluate_step(ticket))
            result = model.get_metrics_result()
            listeners.on_test_end(result)
            logs.update({f"val_{name}": value for name, value in result.items()})
        listeners.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    listeners.on_train_end(logs)
    return model.history.history
