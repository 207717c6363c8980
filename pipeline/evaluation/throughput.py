"""Measures the feed (the input pipeline) and how fast a step consumes its batches."""

import dataclasses
import time
from typing import Any

import keras

from pipeline.contracts import Batches
from pipeline.training import autotune, distributed

_FEED = 3.0  # seconds for which the feed is measured, at most
_TRIALS = 3


def feed(batches: Batches) -> float:
    """Examples per second of the feed alone, after its first epoch.

    Batches are fetched as in training, with prefetching and a part for each replica.

    Args:
        batches: Training batches of at least two epochs.
    """
    first = batches.steps_per_epoch
    tickets = iter(distributed.tickets(dataclasses.replace(batches, first_step=first)))
    start, done = time.monotonic(), 0
    while done < batches.last_step - first and time.monotonic() < start + _FEED:
        next(tickets)
        done += 1
    return done * batches.batch_size / (time.monotonic() - start)


class Resident:
    """An iterator that always returns the same ticket."""

    def __init__(self, ticket: Any) -> None:
        self._ticket = ticket

    def get_next(self) -> Any:
        return self._ticket


def step(model: keras.Model, batches: Batches) -> float:
    """Examples per second of the compiled step on one batch that stays on the device.

    Call it in the scope of the strategy.

    Args:
        model: The result of `build`.
        batches: Training batches, as an engine gets them.
    """
    model.step.set_inputs(batches, None)
    resident = Resident(next(iter(distributed.tickets(batches))))
    trials = (autotune.seconds_per_step(model, batches, resident) for _ in range(_TRIALS))
    return batches.batch_size / min(trials)


def verdict(step: float, feed: float) -> str:
    """One sentence naming the bottleneck and its remedies, from the results of these functions."""
    if feed >= step:
        remedies = "a GPU, a 16-bit --runtime.precision or a smaller model would speed it up"
        return f"the step: the feed alone is {feed / step:.1f} times as fast; {remedies}"
    remedies = "another --data.cache or --data.augment-on device may speed it up"
    return f"the feed: the step alone is {step / feed:.1f} times as fast; {remedies}"
