"""A short trial of the compiled step decides how many steps one call takes."""

import time

import keras

from pipeline.contracts import Batches, Decision
from pipeline.training import distributed

# A call cannot be interrupted; after Ctrl-C half a second is still prompt.
LONGEST_CALL = 0.5
MOST_STEPS = 16  # timed in one call


def seconds_per_step(model: keras.Model, train: Batches) -> float:
    """Measured in three calls, after which all variables are restored; traces the step.

    The same on every worker, because all must make the same decisions.

    Args:
        model: From `build`, after `set_inputs`; the engine will use the same trace.
        train: At least one step must be left.
    """
    state = [variable for group in model.state.values() for variable in group]
    before = [variable.numpy() for variable in state]
    steps_per_execution = model.steps_per_execution
    calls, tickets = distributed.Calls(model, "train", train), iter(distributed.tickets(train))
    calls.begin(train.epochs - 1)
    seconds, count = 0.0, 1
    for is_first in (True, False, False):  # traces; takes one step; takes several
        if calls.position == train.last_step:
            break
        model.steps_per_execution = count
        first, start = calls.position, time.monotonic()
        for value in calls(tickets).values():
            value.numpy()  # wait: devices run asynchronously
        seconds = distributed.agreed((time.monotonic() - start) / (calls.position - first))
        count = 1 if is_first else max(1, min(int(LONGEST_CALL / 2 / seconds), MOST_STEPS))
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
    model.steps_per_execution = steps_per_execution
    model.reset_metrics()
    return seconds


def steps_per_call(
    model: keras.Model, asked: str | int, train: Batches, validation: Batches | None
) -> Decision:
    """Sets `model.steps_per_execution`: how many steps one call of the compiled function takes."""
    model.step.set_inputs(train, validation)
    if asked != "auto":
        model.steps_per_execution = asked
        return Decision("call", f"{asked:,} steps", "requested; at most an epoch")
    if train.first_step == train.last_step:  # only a validation is left
        return Decision("call", "1 step", "none is left to train")
    seconds = seconds_per_step(model, train)
    count = max(1, min(int(LONGEST_CALL / seconds), train.steps_per_epoch))
    model.steps_per_execution = count
    reason = f"{count * seconds:.1f} s per call, {1000 * seconds:,.1f} ms per step"
    return Decision("call", f"{count:,} steps", reason)
