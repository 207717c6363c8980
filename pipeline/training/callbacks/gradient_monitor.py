"""Judges the steps after each call and the gradients after each epoch; names what is wrong."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras

from pipeline.config import config
from pipeline.contracts import Batches
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training import culprits
from pipeline.training.optim.step_stats import Bad
from pipeline.utils import home
from pipeline.utils.errors import Diverged

LOOKED_AT = 16  # bad steps of one call whose batches are read again; each takes as long as a step
# Below this share of the largest layer's gradient a layer's is lost: next to it, float32 keeps
# seven digits (2**-23 = 1.2e-7).
VANISHED = 1e-7
# Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", 2013,
# section 3.2: thresholds of clipping from half to ten times the average norm still converge.
# A healthy `digits_tiny` rises to 10 times the mean of its first epoch, in which it learns nothing.
EXPLODED = 30.0


class Guard(keras.callbacks.Callback):
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
        bad = self.model.step.update.tally.ask()
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
        for kind, layer, text in findings(largest, by_layer(self.model, peaks), self._norms, mean):
            if self._run and (kind, layer) not in self._warned:
                _say("warning", f"epoch {epoch + 1}: {text}")
            self._warned.add((kind, layer))
        if math.isfinite(mean):
            self._norms.append(mean)

    def _name(self, bad: Bad, run: RunDirectory) -> None:
        found = [
            culprits.of_step(self.model, self._batches, step, self._locate)
            if place < LOOKED_AT
            else culprits.unread(self._batches, step)
            for place, step in enumerate(bad.steps)
        ]
        lines = [json.dumps(home.folded(dataclasses.asdict(one))) + "\n" for one in found]
        with run.bad_steps.open("a+", encoding="utf-8") as file:
            file.seek(0)
            known = set(file)  # a run that is taken up again comes through the same steps
            file.writelines(line for line in lines if line not in known)
        more = f"; {bad.new - 1} more steps" if bad.new > 1 else ""
        _say("skipped", f"{found[0]}{more}; see {run.bad_steps}")


def by_layer(model: keras.Model, peaks: Sequence[float]) -> dict[str, float]:
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


def findings(
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
