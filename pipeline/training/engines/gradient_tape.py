"""A custom training loop with GradientTape, written out line by line."""

import keras

from pipeline.config.registry import register
from pipeline.contracts import Batches
from pipeline.training import distributed


@register
def gradient_tape(
    model: keras.Model,
    train: Batches,
    validation: Batches | None,
    callbacks: list[keras.callbacks.Callback],
) -> dict[str, list[float]]:
    """Trains in a custom loop, to the same weights as `model_fit`, bit for bit.

    Trains from `train.first_step` to `train.last_step`. The GradientTape itself is in
    `train_step.py`.

    Args:
        model: Compiled by `build`.
        train: All epochs in one dataset.
        validation: Evaluated after each epoch unless None.
        callbacks: Keras callbacks. For them, a batch is a call of
            `model.steps_per_execution` steps; after it, the loop ends if
            `model.stop_training` is set.

    Returns:
        Metric -> value per epoch.
    """
    model.step.set_inputs(train, validation)
    call = distributed.StepFunction(model, "train", train)
    evaluate = None
    if validation:
        evaluate = distributed.StepFunction(model, "evaluate", validation)
    listeners = keras.callbacks.CallbackList(
        callbacks,
        add_history=True,
        model=model,
        epochs=train.epochs,
        steps=train.steps_per_epoch,
    )
    model.stop_training = False
    logs: dict[str, float] = {}
    listeners.on_train_begin()
    for epoch in range(train.first_epoch, train.epochs):
        model.reset_metrics()
        call.begin(epoch)
        listeners.on_epoch_begin(epoch)
        start = epoch * train.steps_per_epoch
        while call.position < train.end_of(epoch) and not model.stop_training:
            first = call.position - start
            listeners.on_train_batch_begin(first)
            logs = call()
            listeners.on_train_batch_end(first + model.steps_per_execution - 1, logs)
        logs = model.get_metrics_result()
        if validation and evaluate:
            metrics = _evaluate(model, validation, evaluate, listeners)
            logs.update({f"val_{name}": value for name, value in metrics.items()})
        listeners.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    listeners.on_train_end(logs)
    return model.history.history


def _evaluate(
    model: keras.Model,
    validation: Batches,
    call: distributed.StepFunction,
    listeners: keras.callbacks.CallbackList,
) -> dict[str, float]:
    """Returns the metrics of the validation split."""
    listeners.on_test_begin()
    model.reset_metrics()
    for first in range(0, validation.steps_per_epoch, model.steps_per_execution):
        listeners.on_test_batch_begin(first)
        logs = call()
        listeners.on_test_batch_end(first + model.steps_per_execution - 1, logs)
    result = model.get_metrics_result()
    listeners.on_test_end(result)
    return result
