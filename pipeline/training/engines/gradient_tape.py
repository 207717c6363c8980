"""A loop of our own drives the step: every line of the training is in sight."""

import keras

from pipeline.contracts import Batches
from pipeline.training import distributed


def gradient_tape(
    model: keras.Model,
    train: Batches,
    validation: Batches | None,
    callbacks: list[keras.callbacks.Callback],
) -> dict[str, list[float]]:
    """Trains from `train.first_step` to `train.last_step`; returns value per epoch by metric.

    The same step in the same order as under `model_fit`: the weights come out bit for bit alike.
    The GradientTape itself is in `train_step.py`.

    Args:
        model: Compiled by `build`.
        train: All epochs in one dataset.
        validation: Evaluated after each epoch; None: not at all.
        callbacks: Keras's protocol; a batch is a call of `model.steps_per_execution` steps, and
            `model.stop_training` ends the loop after it.
    """
    model.step.set_inputs(train, validation)
    train_call = distributed.Calls(model, "train", train)
    validation_call = validation and distributed.Calls(model, "evaluate", validation)
    validation_tickets = validation and distributed.tickets(validation)
    listeners = keras.callbacks.CallbackList(
        callbacks, add_history=True, model=model, epochs=train.epochs, steps=train.steps_per_epoch
    )
    model.stop_training = False
    listeners.on_train_begin()
    tickets = iter(distributed.tickets(train))
    for epoch in range(train.first_epoch, train.epochs):
        model.reset_metrics()
        train_call.begin(epoch)
        listeners.on_epoch_begin(epoch)
        start = epoch * train.steps_per_epoch
        while train_call.position < train.end_of(epoch) and not model.stop_training:
            first = train_call.position - start
            listeners.on_train_batch_begin(first)
            logs = train_call(tickets)
            listeners.on_train_batch_end(first + model.steps_per_execution - 1, logs)
        logs = model.get_metrics_result()
        if validation:
            result = _evaluate(
                model, validation, validation_call, iter(validation_tickets), listeners
            )
            logs.update({f"val_{name}": value for name, value in result.items()})
        listeners.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    listeners.on_train_end(logs)
    return model.history.history


def _evaluate(model, validation, call, tickets, listeners) -> dict[str, float]:
    listeners.on_test_begin()
    model.reset_metrics()
    call.begin(0)
    for first in range(0, validation.steps_per_epoch, model.steps_per_execution):
        listeners.on_test_batch_begin(first)
        listeners.on_test_batch_end(first + model.steps_per_execution - 1, call(tickets))
    result = model.get_metrics_result()
    listeners.on_test_end(result)
    return result
