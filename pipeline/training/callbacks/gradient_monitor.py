"""Monitors bad steps after each call, and names what caused them; logs the norm of gradients."""

import json
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from pipeline.training.callback_context import CallbackContext
from pipeline.training.optim.step_stats import Bad
from pipeline.utils import files
from pipeline.utils.console import say
from pipeline.utils.errors import Diverged


class GradientMonitor(keras.callbacks.Callback):
    """Ends a run that only skips steps, and names the examples responsible.

    It comes before the callbacks that write files, so that nothing from a bad call is written. The
    chief lists the bad steps in `bad_steps.jsonl`.
    """

    def __init__(self, context: CallbackContext) -> None:
        super().__init__()
        self._context = context
        self._bad_in_epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._bad_in_epoch = 0
        if self.model.step.position == epoch * self._context.batches.steps_per_epoch:
            self.model.step.update.tally.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        bad = self.model.step.update.tally.pop_bad_steps()
        if bad is None:
            return
        self._bad_in_epoch += bad.new
        if self._context.is_chief:
            self._record(bad)
        if bad.row >= self._context.train.max_bad_steps:
            raise Diverged(
                f"training diverged: {bad.row} steps in a row, up to step {bad.steps[-1] + 1:,}, "
                "had no finite loss and gradient; lower --train.learning-rate. None of them was "
                "saved"
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        mean, largest = self.model.step.update.tally.norms()
        bad, batches = self._bad_in_epoch, self._context.batches
        steps = batches.end_of(epoch) - epoch * batches.steps_per_epoch
        if 2 * bad > steps or (bad and math.isnan(mean)):
            raise Diverged(
                f"training diverged: the loss or the gradient was not finite in {bad} of {steps} "
                f"steps of epoch {epoch + 1}; lower --train.learning-rate. Nothing from this epoch "
                "was saved"
            )
        logs["gradient_norm"], logs["gradient_norm_max"] = mean, largest

    def _record(self, bad: Bad) -> None:
        path = self._context.run.bad_steps
        found = [self._culprits(step) for step in bad.steps]
        lines = [json.dumps(files.collapse_home(one)) + "\n" for one in found]
        with path.open("a+", encoding="utf-8") as file:
            file.seek(0)
            known = set(file)  # a resumed run repeats the steps after its checkpoint
            file.writelines(line for line in lines if line not in known)
        first, others = found[0], len(found[0]["ids"]) - 1
        text = f"step {first['step']:,} of epoch {first['epoch']}, {first['reason']}"
        text += f" ({first['files'][0]}{f' and {others} more' if others else ''})"
        more = f"; {bad.new - 1} more steps" if bad.new > 1 else ""
        say("skipped", f"{text}{more}; see {path}")

    def _culprits(self, step: int) -> dict[str, Any]:
        """What is known about a bad step, as a line of `bad_steps.jsonl`.

        The losses are computed with the current weights. A bad step does not change the weights, so
        they are those of that step unless later steps of the same call have changed them.
        """
        batches = self._context.batches
        (ticket,) = batches.tickets(step).take(1)
        batch, losses = self.model.step.losses(self.model, ticket)
        reason, rows = _blamed(batch, losses.numpy())
        ids = batch["id"].numpy()[rows].tolist()
        return {
            "step": step + 1,
            "epoch": step // batches.steps_per_epoch + 1,
            "reason": reason,
            "ids": ids,
            "files": [self._context.locate(id) for id in ids],
        }


def _blamed(batch: Mapping[str, Any], losses: np.ndarray) -> tuple[str, np.ndarray]:
    """Why a step was bad, and a mask of the examples responsible: those with a field that is not
    finite, or else those with a loss that is not finite, or else all."""
    for name, values in batch.items():
        if values.dtype.is_floating:
            numbers = values.numpy().reshape(len(losses), -1).astype(np.float64)
            wrong = ~np.isfinite(numbers).all(axis=1)
            if wrong.any():
                return f"the field {name!r} is not finite", wrong
    wrong = ~np.isfinite(losses)
    if wrong.all():
        return "no example has a finite loss, so the weights are the cause", wrong
    if wrong.any():
        return "the loss is not finite", wrong
    return "no single example explains it", ~wrong
