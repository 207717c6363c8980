"""Evaluates the predictions for the validation split during training."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.training import tensorboard
from pipeline.training.callback_context import CallbackContext
from pipeline.utils import files
from pipeline.utils.console import say
from pipeline.utils.errors import reason
from pipeline.utils.image_sheets import png


@register
def evaluate_predictions(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Adds the metrics of the final test, for the validation split, to the logs of
    every `train.evaluate_every` epochs, with averaged weights if there are any; writes
    the pictures of the predictions, if the task has any.
    """
    every = context.train.evaluate_every
    if every is None or context.evaluate is None:
        return None
    return EvaluatePredictions(every, context.evaluate, context)


class EvaluatePredictions(keras.callbacks.Callback):
    """Adds `val_NAME` for each metric that is one number and not in the logs yet."""

    def __init__(
        self, every: int, evaluate: Callable[[Any], Any], context: CallbackContext
    ) -> None:
        super().__init__()
        self._every = every
        self._evaluate = evaluate
        self._context = context

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        is_last = epoch + 1 == self._context.batches.epochs
        if (epoch + 1) % self._every and not is_last:
            return
        update = self.model.step.update
        update.swap_ema()
        results = self._evaluate(self.model)
        update.swap_ema()
        for name, value in results.metrics.items():
            if isinstance(value, float):
                logs.setdefault(f"val_{name}", value)
        if results.pictures and self._context.is_chief:
            self._write(results.pictures, epoch + 1)

    def _write(self, pictures: dict[str, Any], epoch: int) -> None:
        run = self._context.run
        try:
            run.pictures.mkdir(exist_ok=True)
            for name, picture in pictures.items():
                path = run.pictures / f"{name}-{epoch:04}.png"
                files.write_bytes(path, png(picture))
            if self._context.log.tensorboard:
                tensorboard.write_pictures(run)
        except (OSError, tf.errors.OpError) as error:
            say("note", f"{run.pictures} cannot be written: {reason(error)}")
