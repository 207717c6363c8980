"""Chooses the steps per call and the precision in short trials of the step."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras

from pipeline.config.config import Config
from pipeline.contracts import Batches, Decision
from pipeline.runtime import dtype_policy, environment, run_directory
from pipeline.runtime.watchdog import Watchdog
from pipeline.training import distributed
from pipeline.utils import progress_bar
from pipeline.utils.console import pluralize

# A call cannot be interrupted; half a second is still a prompt reaction to Ctrl-C.
MAX_CALL = 0.5
MAX_TIMED_STEPS = 16  # in one call
# In a shorter run, a trial costs more than it can gain: tracing the step again takes
# about 2 s.
MIN_RUN = 60.0
# On a busy machine, timings of a step vary by a tenth: the faster precision is faster
# in each of these pairs of trials. A smaller speedup is not worth lower precision.
TRIALS = 3
MIN_SPEEDUP = 1.05


def seconds_per_step(model: keras.Model, train: Batches, source: Any = None) -> float:
    """Measures the step in at most three calls, and then restores all variables.

    The result is the same on all workers, because they must make the same decisions.
    The engine uses the trace of this measurement.

    Args:
        model: From `build`, after `set_inputs`.
        train: Training batches, with at least one remaining step.
        source: As `distributed.open_iterator`; None: as in training.
    """
    state = [variable for group in model.state.values() for variable in group]
    before = [variable.numpy() for variable in state]
    steps_per_execution = model.steps_per_execution
    calls = distributed.StepFunction(model, "train", train, source)
    calls.begin(train.epochs - 1)
    seconds = 0.0
    count = 1
    for is_first in (True, False, False):  # traces; takes one step; takes several
        if calls.position == train.last_step:
            break
        model.steps_per_execution = count
        first = calls.position
        start = time.monotonic()
        for value in calls().values():
            value.numpy()  # wait: devices run asynchronously
        elapsed = time.monotonic() - start
        seconds = distributed.mean_over_workers(elapsed / (calls.position - first))
        if is_first:
            continue
        count = max(1, min(int(MAX_CALL / 2 / seconds), MAX_TIMED_STEPS))
        if count == 1:  # another call would measure the same
            break
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
    model.steps_per_execution = steps_per_execution
    model.reset_metrics()
    return seconds


def choose_steps_per_execution(
    model: keras.Model,
    requested: str | int,
    train: Batches,
    validation: Batches | None,
    per_batch: Sequence[str] = (),
) -> Decision:
    """Sets `model.steps_per_execution`, the number of steps per compiled call.

    Args:
        model: From `build`.
        requested: A number of steps, or `auto`.
        train: The remaining training batches.
        validation: Evaluated after each epoch.
        per_batch: Reasons to call callbacks after each batch; with any, `auto` is 1.
    """
    model.step.set_inputs(train, validation)
    if requested == "auto" and per_batch:
        model.steps_per_execution = 1
        return Decision("call", "1 step", per_batch[0])
    if requested != "auto":
        model.steps_per_execution = requested
        count = min(int(requested), train.steps_per_epoch)
        reason = f"requested {requested:,}; at most one epoch"
        return Decision("call", pluralize(count, "step"), reason)
    if train.first_step == train.last_step:  # only a validation is left
        return Decision("call", "1 step", "none is left to train")
    seconds = seconds_per_step(model, train)
    count = max(1, min(int(MAX_CALL / seconds), train.steps_per_epoch))
    model.steps_per_execution = count
    reason = f"{count * seconds:.1f} s per call, {1000 * seconds:,.1f} ms per step"
    if count == train.steps_per_epoch:
        reason = f"an epoch, {reason}"
    return Decision("call", pluralize(count, "step"), reason)


def with_known_precision(
    machine: environment.Machine, config: Config
) -> environment.Machine | None:
    """The machine with the precision that is requested, planned, or saved with the run;
    None if a trial has to choose it.
    """
    if any(decision.name == "precision" for decision in machine.decisions):
        return machine
    precision: str | None = config.runtime.precision
    reason = config.reasons.get("runtime.precision", "requested")
    if precision == "auto":
        precision = run_directory.saved_decision(config.run_directory, "precision")
        reason = "as at the start of this run"
    if precision is None:
        return None
    machine = dataclasses.replace(machine, precision=precision)
    return machine.add_decision("precision", precision, reason)


def choose_precision(
    machine: environment.Machine,
    build: Callable[[environment.Machine], keras.Model],
    train: Batches,
    validation: Batches | None,
    watchdog: Watchdog,
) -> tuple[environment.Machine, keras.Model]:
    """Chooses the faster precision for `--runtime.precision auto`.

    The watchdog must be active; it treats each trial as one call.

    Returns:
        The machine with the precision, and its model.
    """
    model = build(machine)
    policy, reason = dtype_policy.fast_policy()
    if machine.cluster:
        policy = None
        reason = "several workers; another precision must be set explicitly"
    if policy is None or train.first_step >= train.last_step:
        return machine.add_decision("precision", "float32", reason), model

    def seconds(model: keras.Model) -> float:
        with machine.strategy.scope(), watchdog.watching():
            model.step.set_inputs(train, validation)
            return seconds_per_step(model, train)

    progress_bar.stage("timing", f"a training step in {machine.precision}")
    slow = [seconds(model)]
    duration = slow[0] * (train.last_step - train.first_step)
    if duration < MIN_RUN:
        reason = f"a run of about {duration:.0f} s is too short for a trial"
        return machine.add_decision("precision", "float32", reason), model
    fast_machine = dataclasses.replace(machine, precision=policy)
    fast_model = build(fast_machine)
    progress_bar.stage("timing", f"a training step in {policy}")
    fast = [seconds(fast_model)]
    while len(fast) < TRIALS:
        slow.append(seconds(model))
        fast.append(seconds(fast_model))
    times = f"{1000 * min(fast):,.1f} ms per step, float32 {1000 * min(slow):,.1f} ms"
    is_faster = all(b < a for a, b in zip(slow, fast, strict=True))
    if not is_faster or min(slow) / min(fast) < MIN_SPEEDUP:
        reason = f"{policy} is not clearly faster: {times}"
        return machine.add_decision("precision", "float32", reason), model
    return fast_machine.add_decision("precision", policy, times), fast_model
