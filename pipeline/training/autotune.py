"""Short trials of the compiled step that decide how to run it."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras

from pipeline.contracts import Batches, Decision
from pipeline.runtime import dtype_policy, environment
from pipeline.runtime.watchdog import Watchdog
from pipeline.training import distributed
from pipeline.utils import progress_bar
from pipeline.utils.console import pluralize

# A call cannot be interrupted; half a second is still a prompt reaction to Ctrl-C.
LONGEST_CALL = 0.5
MOST_STEPS = 16  # timed in one call
# In a shorter run, a trial costs more than it can gain: tracing the step again takes
# about 2 s.
SHORTEST_RUN = 60.0
# The gain must be clear: timings of a step vary by a tenth on a busy machine.
LEAST_GAIN = 1.2


def seconds_per_step(model: keras.Model, train: Batches, iterator: Any = None) -> float:
    """Measures the step in at most three calls, then restores all variables; traces the
    step.

    The result is the same on every worker, because all of them must make the same
    decisions. The model is from `build`, after `set_inputs`; the engine will use the
    same trace. At least one step of `train` must be left. `iterator` is one over
    theirs; None: that of training.
    """
    state = [variable for group in model.state.values() for variable in group]
    before = [variable.numpy() for variable in state]
    steps_per_execution = model.steps_per_execution
    calls = distributed.Calls(model, "train", train)
    iterator = iterator or iter(distributed.dataset(train))
    calls.begin(train.epochs - 1)
    seconds, count = 0.0, 1
    for is_first in (True, False, False):  # traces; takes one step; takes several
        if calls.position == train.last_step:
            break
        model.steps_per_execution = count
        first, start = calls.position, time.monotonic()
        for value in calls(iterator).values():
            value.numpy()  # wait: devices run asynchronously
        seconds = distributed.agreed(
            (time.monotonic() - start) / (calls.position - first)
        )
        count = (
            1 if is_first else max(1, min(int(LONGEST_CALL / 2 / seconds), MOST_STEPS))
        )
        if not is_first and count == 1:  # another call would measure the same
            break
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
    model.steps_per_execution = steps_per_execution
    model.reset_metrics()
    return seconds


def steps_per_call(
    model: keras.Model,
    asked: str | int,
    train: Batches,
    validation: Batches | None,
    per_batch: Sequence[str] = (),
) -> Decision:
    """Sets `model.steps_per_execution`: how many steps one call of the compiled
    function takes.

    One if there are reasons to call callbacks after each batch, unless another number
    is `asked`.
    """
    model.step.set_inputs(train, validation)
    if asked == "auto" and per_batch:
        model.steps_per_execution = 1
        return Decision("call", "1 step", per_batch[0])
    if asked != "auto":
        model.steps_per_execution = asked
        count = min(int(asked), train.steps_per_epoch)
        return Decision(
            "call", pluralize(count, "step"), f"requested {asked:,}; at most one epoch"
        )
    if train.first_step == train.last_step:  # only a validation is left
        return Decision("call", "1 step", "none is left to train")
    seconds = seconds_per_step(model, train)
    count = max(1, min(int(LONGEST_CALL / seconds), train.steps_per_epoch))
    model.steps_per_execution = count
    whole = "an epoch, " * (count == train.steps_per_epoch)
    reason = (
        f"{whole}{count * seconds:.1f} s per call, {1000 * seconds:,.1f} ms per step"
    )
    return Decision("call", pluralize(count, "step"), reason)


def precision(
    machine: environment.Runtime,
    build: Callable[[environment.Runtime], keras.Model],
    train: Batches,
    validation: Batches | None,
    watchdog: Watchdog,
) -> tuple[environment.Runtime, keras.Model]:
    """The machine with the faster precision, and its model.

    The machine was started with `--runtime.precision auto`. The number of steps in
    `train` decides whether a trial is worth its time. The watchdog is active; it treats
    each trial as one call.
    """
    model = build(machine)
    other, reason = dtype_policy.fast_policy()
    if machine.cluster:
        other, reason = (
            None,
            "several workers; another precision must be set explicitly",
        )
    if other is None or train.first_step >= train.last_step:
        return machine.decided("precision", "float32", reason), model

    def seconds(model: keras.Model, policy: str) -> float:
        progress_bar.stage("timing", f"a training step in {policy}")
        with machine.strategy.scope(), watchdog.watching():
            model.step.set_inputs(train, validation)
            return seconds_per_step(model, train)

    slow = seconds(model, machine.precision)
    run = slow * (train.last_step - train.first_step)
    if run < SHORTEST_RUN:
        reason = f"a run of about {run:.0f} s is too short for a trial"
        return machine.decided("precision", "float32", reason), model
    changed = dataclasses.replace(machine, precision=other)
    candidate = build(changed)
    fast = seconds(candidate, other)
    measured = f"{1000 * fast:,.1f} ms per step, float32 {1000 * slow:,.1f} ms"
    if slow / fast < LEAST_GAIN:
        return machine.decided("precision", "float32", f"{other}: {measured}"), model
    return changed.decided("precision", other, measured), candidate
