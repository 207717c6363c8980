"""Short trials of the compiled step that decide how it is best run."""

import time

import keras
import tensorflow as tf

from pipeline import replicas
from pipeline.contracts import Batches, Decision

# A call cannot be interrupted; half a second is still prompt to a person who presses Ctrl-C.
LONGEST_CALL = 0.5


def seconds_per_step(model: keras.Model, train: Batches) -> float:
    """Measured on a few steps, after which every variable has its old value; traces the step.

    Args:
        model: Of `build`, fed; the engine will use the same trace.
        train: At least one step must be left.
    """
    held = [variable for group in model.state.values() for variable in group]
    before = [variable.numpy() for variable in held]
    steps_per_execution, model.steps_per_execution = model.steps_per_execution, 1
    calls, tickets = replicas.Calls(model, "train", train), iter(replicas.tickets(train))
    calls(tickets)  # traces, and fills caches
    best = float("inf")
    end = time.monotonic() + LONGEST_CALL
    while calls.position < train.last_step and time.monotonic() < end:
        start = time.monotonic()
        first = calls.position
        _wait(calls(tickets))
        best = min(best, (time.monotonic() - start) / (calls.position - first))
        model.steps_per_execution = min(2 * model.steps_per_execution, 16)
    for variable, value in zip(held, before, strict=True):
        variable.assign(value)
    model.steps_per_execution = steps_per_execution
    model.reset_metrics()
    return best


def steps_per_call(
    model: keras.Model, asked: str | int, train: Batches, validation: Batches | None
) -> Decision:
    """Sets `model.steps_per_execution`: how many steps one call of the compiled function takes."""
    model.step.feed(train, validation)
    if asked != "auto":
        model.steps_per_execution = asked
        return Decision("call", f"{asked} steps", "asked for")
    seconds = seconds_per_step(model, train)
    count = max(1, min(int(LONGEST_CALL / seconds), train.steps_per_epoch))
    model.steps_per_execution = count
    reason = f"{count * seconds:.1g} s, at {1000 * seconds:.2g} ms a step"
    return Decision("call", f"{count} steps", reason)


def _wait(logs: dict[str, tf.Tensor]) -> None:
    """Until the step is done: devices work on while Python goes on."""
    for value in logs.values():
        value.numpy()
