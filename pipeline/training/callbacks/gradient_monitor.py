"""Monitors bad steps after each call, and gradients after each epoch."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from pipeline.config.registry import register
from pipeline.training.callback_context import CallbackContext
from pipeline.utils.console import pluralize, say
from pipeline.utils.errors import Diverged

# A layer's gradient below this fraction of the largest layer's is lost: float32 keeps
# only seven digits (2**-23 = 1.2e-7).
VANISHED = 1e-7
# Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks",
# 2013, section 3.2: clipping at half to ten times the average norm still converges.
EXPLODED = 30.0
# Of a model that fits its examples, norms below this are normal, and so are large
# ratios of them.
MIN_NORM = 0.01


@register
def gradient_monitor(context: CallbackContext) -> keras.callbacks.Callback:
    """Reports bad steps, and warns of vanishing and exploding gradients."""
    return GradientMonitor(context)


class GradientMonitor(keras.callbacks.Callback):
    """Ends a run that only skips steps, and names the examples or layers responsible.

    It comes before the callbacks that write files, so that nothing from a bad call is
    written. The chief lists the bad steps in `bad_steps.jsonl`.
    """

    def __init__(self, context: CallbackContext) -> None:
        super().__init__()
        self._context = context
        self._warned: set[tuple[str, str]] = set()
        self._bad_in_epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._bad_in_epoch = 0
        if self.model.step.position == epoch * self._context.batches.steps_per_epoch:
            self.model.step.update.step_stats.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        bad = self.model.step.update.step_stats.pop_bad_steps()
        if bad is None:
            return
        steps, count, row = bad
        self._bad_in_epoch += count
        if self._context.is_chief:
            self._record(steps, count)
        if row >= self._context.train.max_bad_steps:
            raise Diverged(
                f"training diverged: {row} steps in a row, up to step"
                f" {steps[-1] + 1:,}, had no finite loss and gradient; lower"
                " --train.learning-rate. None of them was saved"
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        mean, largest, peaks = self.model.step.update.step_stats.norms()
        bad = self._bad_in_epoch
        batches = self._context.batches
        steps = batches.end_of(epoch) - epoch * batches.steps_per_epoch
        if 2 * bad > steps or (bad and math.isnan(mean)):
            raise Diverged(
                f"training diverged: the loss or the gradient was not finite in {bad}"
                f" of {steps} steps of epoch {epoch + 1}; lower --train.learning-rate."
                " Nothing from this epoch was saved"
            )
        logs["gradient_norm"] = mean
        logs["gradient_norm_max"] = largest
        layers = _layer_peaks(self.model, peaks)
        history = self._context.checkpoint.history
        for kind, layer, text in _gradient_problems(
            largest, layers, logs["loss"], history
        ):
            if self._context.is_chief and (kind, layer) not in self._warned:
                say("warning", f"epoch {epoch + 1}: {text}")
            self._warned.add((kind, layer))

    def _record(self, steps: Sequence[int], count: int) -> None:
        """Lists the steps in `bad_steps.jsonl`, and prints the first one."""
        path = self._context.run.bad_steps
        entries = [self._entry(step) for step in steps]
        lines = [json.dumps(entry) + "\n" for entry in entries]
        with path.open("a+", encoding="utf-8") as file:
            file.seek(0)
            # A resumed run repeats the steps after its checkpoint.
            old_lines = set(file)
            file.writelines(line for line in lines if line not in old_lines)
        first = entries[0]
        names = first["files"][0]
        if len(first["ids"]) > 1:
            names += f" and {len(first['ids']) - 1} more"
        text = f"step {first['step']:,} of epoch {first['epoch']}, {first['reason']}"
        text += f" ({names})"
        if count > 1:
            text += f"; {count - 1} more steps"
        say("skipped", f"{text}; see {path}")

    def _entry(self, step: int) -> dict[str, Any]:
        """Returns the line of `bad_steps.jsonl` for a bad step.

        The losses are computed with the current weights. A bad step does not change
        the weights, so these are the weights of that step, unless later steps of the
        same call have changed them.
        """
        batches = self._context.batches
        (batch,) = batches.dataset(step).take(1)
        batch, losses = self.model.step.losses(self.model, batch)
        reason, rows = _find_cause(batch, losses.numpy())
        ids = batch["id"].numpy()[rows].tolist()
        return {
            "step": step + 1,
            "epoch": step // batches.steps_per_epoch + 1,
            "reason": reason,
            "ids": ids,
            "files": [self._context.locate(id) for id in ids],
        }


def _find_cause(batch: Mapping[str, Any], losses: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns why a step was bad, and a mask of the responsible examples.

    These are the examples with a field that is not finite, or else with a loss that is
    not finite, or else all.
    """
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


def _layer_peaks(model: keras.Model, peaks: Sequence[float]) -> dict[str, float]:
    """Returns the largest gradient norm among the weights of each trained layer."""
    layers: dict[str, float] = {}
    trained = {id(variable) for variable in model.trainable_variables}
    for variable, peak in zip(model.step.update.weights, peaks, strict=True):
        if id(variable) in trained:
            # A bias before a normalization has no gradient except rounding errors.
            name = variable.path.rpartition("/")[0] or variable.path
            layers[name] = max(layers.get(name, 0.0), peak)
    return layers


def _gradient_problems(
    largest: float,
    layers: Mapping[str, float],
    loss: float,
    history: Mapping[str, Sequence[float]],
) -> Iterator[tuple[str, str, str]]:
    """Yields (kind, layer, sentence), at most one problem of each kind.

    There is none while the training loss falls, and none in the first epoch, where
    nothing is usual yet.

    Args:
        largest: Largest norm of the whole gradient in an epoch.
        layers: The same for each layer, the first layer of the model first.
        loss: Training loss of this epoch.
        history: Logs of earlier epochs.
    """
    losses = list(filter(math.isfinite, history.get("loss", ())))
    norms = list(filter(math.isfinite, history.get("gradient_norm", ())))
    if not losses or not norms or not layers or loss < min(losses):
        return
    peak = max(layers.values())
    vanished = []
    if MIN_NORM < peak < math.inf:
        vanished = [name for name, norm in layers.items() if norm <= VANISHED * peak]
    # A gradient that vanishes on its way back does not reach the first layer. A branch
    # may have none, such as the boxes of a size that no example has.
    first = next(iter(layers))
    if first in vanished:
        text = f"the gradient of layer {first!r}"
        if len(vanished) > 1:
            text += f" and of {pluralize(len(vanished) - 1, 'more layer')}"
        text += f" vanishes: {layers[first] / peak:.1g} of the largest"
        yield "vanishes", first, text
    usual = max(norms)
    if usual > MIN_NORM and largest > EXPLODED * usual and loss > losses[-1]:
        name = max(layers, key=layers.__getitem__)
        text = (
            f"the gradient explodes, most in layer {name!r}: its norm reached"
            f" {largest:.3g}, {largest / usual:.0f} times the usual;"
            f" --train.global-clipnorm {usual:.2g} would bound it"
        )
        yield "explodes", name, text
