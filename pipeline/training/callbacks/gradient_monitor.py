"""Judges the steps after each call and the gradients after each epoch; names what is wrong."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from pipeline.config import config
from pipeline.contracts import Batches
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training.callback_context import CallbackContext
from pipeline.training.optim.step_stats import Bad
from pipeline.utils import files
from pipeline.utils.errors import Diverged

LOOKED_AT = 16  # bad steps of one call whose batches are read again; each takes as long as a step
# Below this share of the largest layer's gradient a layer's is lost: next to it, float32 keeps
# seven digits (2**-23 = 1.2e-7).
VANISHED = 1e-7
# Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", 2013,
# section 3.2: thresholds of clipping from half to ten times the average norm still converge.
# A healthy `digits_tiny` rises to 10 times the mean of its first epoch, in which it learns nothing.
EXPLODED = 30.0


def gradient_monitor(context: CallbackContext) -> keras.callbacks.Callback:
    """Counts and names steps without a finite gradient; warns of vanishing and exploding ones."""
    run = context.run if context.is_chief else None
    norms = context.checkpoint.history.get("gradient_norm", ())
    return GradientMonitor(context.train, run, context.batches, context.locate, norms)


class GradientMonitor(keras.callbacks.Callback):
    """Stops a run that only skips steps, and says which examples or layers are to blame.

    Stands before those callbacks that write, so that nothing of a bad call is written.

    Args:
        options: `max_bad_steps`.
        run: Whose `bad_steps.jsonl` names the culprits; None in a worker that is not the chief.
        batches: Of training, the same as the engine's.
        locate: Id -> what a person calls the example.
        norms: Mean gradient norm of each epoch so far.
    """

    def __init__(
        self,
        options: config.Train,
        run: RunDirectory | None,
        batches: Batches,
        locate: Callable[[int], str],
        norms: Sequence[float] = (),
    ) -> None:
        super().__init__()
        self._most = options.max_bad_steps
        self._run = run
        self._batches = batches
        self._locate = locate
        self._norms = [norm for norm in norms if math.isfinite(norm)]
        self._warned: set[tuple[str, str]] = set()
        self._bad_in_epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._bad_in_epoch = 0
        if self.model.step.position == epoch * self._batches.steps_per_epoch:
            self.model.step.update.tally.begin()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        bad = self.model.step.update.tally.pop_bad_steps()
        if bad is None:
            return
        self._bad_in_epoch += bad.new
        if self._run:
            self._name(bad, self._run)
        if bad.row >= self._most:
            raise Diverged(
                f"training diverged: {bad.row} steps in a row had no finite loss and gradient, up "
                f"to step {bad.steps[-1] + 1:,}; lower --train.learning-rate. "
                "Nothing of it was saved"
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        mean, largest, peaks = self.model.step.update.tally.norms()
        bad = self._bad_in_epoch
        steps = self._batches.end_of(epoch) - epoch * self._batches.steps_per_epoch
        if 2 * bad > steps or (bad and math.isnan(mean)):
            raise Diverged(
                f"training diverged: the loss or the gradient was not finite in {bad} of {steps} "
                f"steps of epoch {epoch + 1}; lower --train.learning-rate. Nothing of this epoch "
                "was saved"
            )
        logs["gradient_norm"], logs["gradient_norm_max"] = mean, largest
        for kind, layer, text in _findings(
            largest, _by_layer(self.model, peaks), self._norms, mean
        ):
            if self._run and (kind, layer) not in self._warned:
                _say("warning", f"epoch {epoch + 1}: {text}")
            self._warned.add((kind, layer))
        if math.isfinite(mean):
            self._norms.append(mean)

    def _name(self, bad: Bad, run: RunDirectory) -> None:
        found = [
            _of_step(self.model, self._batches, step, self._locate)
            if place < LOOKED_AT
            else _unread(self._batches, step)
            for place, step in enumerate(bad.steps)
        ]
        lines = [json.dumps(files.collapse_home(dataclasses.asdict(one))) + "\n" for one in found]
        with run.bad_steps.open("a+", encoding="utf-8") as file:
            file.seek(0)
            known = set(file)  # a run that is taken up again comes through the same steps
            file.writelines(line for line in lines if line not in known)
        more = f"; {bad.new - 1} more steps" if bad.new > 1 else ""
        _say("skipped", f"{found[0]}{more}; see {run.bad_steps}")


def _by_layer(model: keras.Model, peaks: Sequence[float]) -> dict[str, float]:
    """The largest norm among the weights of each layer that is trained, in the model's order.

    Args:
        model: Of `build`.
        peaks: Of all weights that are ever trained, as `Tally.norms` gives them.
    """
    layers: dict[str, float] = {}
    trained = {id(variable) for variable in model.trainable_variables}
    for variable, peak in zip(model.step.update.weights, peaks, strict=True):
        if id(variable) in trained:
            # The bias before a normalisation has no gradient but rounding; its kernel has.
            name = variable.path.rpartition("/")[0] or variable.path
            layers[name] = max(layers.get(name, 0.0), peak)
    return layers


def _findings(
    largest: float, layers: dict[str, float], before: Sequence[float], mean: float
) -> list[tuple[str, str, str]]:
    """What is wrong with an epoch's gradients: (kind, layer, sentence) of at most one of each kind.

    A layer vanishes if its largest norm is 0 or below `VANISHED` of the largest layer's. The
    gradient explodes if a norm is above `EXPLODED` times the highest mean of an earlier epoch, in
    the first epoch its own; the layer is that with the largest norm.

    Args:
        largest: Norm of the whole gradient in this epoch.
        layers: The same of each layer.
        before: Mean norms of the epochs before it.
        mean: That of this epoch.
    """
    found = []
    most = max(layers.values(), default=0.0)
    gone = [name for name, peak in layers.items() if peak <= VANISHED * most < math.inf]
    if gone and most > 0:
        share = layers[gone[0]] / most
        others = f" and of {len(gone) - 1} more layers" if len(gone) > 1 else ""
        text = f"the gradient of layer {gone[0]!r}{others} vanishes: {share:.1g} of the largest"
        found.append(("vanishes", gone[0], text))
    usual = max(before, default=mean)
    if largest > EXPLODED * usual:
        name = max(layers, key=layers.__getitem__)
        text = (
            f"the gradient explodes, most in layer {name!r}: its norm reached {largest:.3g}, "
            f"{largest / usual:.0f} times the usual; --train.clip-norm {usual:.2g} would bound it"
        )
        found.append(("explodes", name, text))
    return found


def _say(name: str, text: str) -> None:
    print(f"{name:<10} {text}", flush=True)


@dataclasses.dataclass(frozen=True)
class Culprits:
    """What is known of a bad step; the fields are those of a line in `bad_steps.jsonl`."""

    step: int
    """As in the names of checkpoints: 1 is the first, after which one step is done."""
    epoch: int
    """From 1 on."""
    reason: str
    """What is wrong with the examples: a clause."""
    ids: tuple[int, ...]
    files: tuple[str, ...]
    """What a person calls the examples: `Source.location` of each id."""

    def __str__(self) -> str:
        others = f" and {len(self.ids) - 1} more" if len(self.ids) > 1 else ""
        of = f" ({self.files[0]}{others})" if self.ids else ""
        return f"step {self.step:,} of epoch {self.epoch}, {self.reason}{of}"


def _of_step(
    model: keras.Model, batches: Batches, step: int, locate: Callable[[int], str]
) -> Culprits:
    """Examples with a field that is not finite; else with such a loss; else the whole batch.

    The loss is that under the present weights, which are those of the step: it did not change them,
    and only later steps of the same call may have.

    Args:
        model: Of `build`, after `set_inputs`.
        batches: Of training.
        step: Its number as `Batches.tickets` counts, from 0 on.
        locate: Id -> what a person calls the example.
    """
    (ticket,) = batches.tickets(step).take(1)
    batch, losses = model.step.losses(model, ticket)
    ids = batch["id"].numpy()
    reason, rows = _judged(batch, losses.numpy())
    known = tuple(ids[rows].tolist())
    epoch = step // batches.steps_per_epoch
    return Culprits(step + 1, epoch + 1, reason, known, tuple(map(locate, known)))


def _unread(batches: Batches, step: int) -> Culprits:
    """A step that was only counted, because too many were bad at once."""
    epoch = step // batches.steps_per_epoch
    return Culprits(step + 1, epoch + 1, "not looked at: too many at once", (), ())


def _judged(batch: dict[str, Any], losses: np.ndarray) -> tuple[str, np.ndarray]:
    for name, values in batch.items():
        if values.dtype.is_floating:
            numbers = values.numpy().reshape(len(losses), -1).astype(np.float64)
            wrong = ~np.isfinite(numbers).all(axis=1)
            if wrong.any():
                return f"the field {name!r} is not finite", wrong
    wrong = ~np.isfinite(losses)
    if wrong.all():
        return "no example has a finite loss, so it is the weights", wrong
    if wrong.any():
        return "the loss is not finite", wrong
    return "no example alone explains it", ~wrong
