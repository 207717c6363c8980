"""Measures the feed (the input pipeline) and how fast a step consumes its batches."""

import dataclasses
import statistics
import time
from typing import Any

from pipeline.contracts import Batches
from pipeline.training import distributed
from pipeline.training.stepped_model import SteppedModel

_FEED = 3.0  # seconds for which the feed is measured, at most
_ROUND = 0.7  # seconds of steps in a round
_ROUNDS = 3
_CALL = 0.2  # seconds
# The feed is the bottleneck if it costs more than this fraction of the step's speed ...
_FREE = 0.05
# ... and if it is less than this many times as fast as the step.
_MUCH = 20


@dataclasses.dataclass(frozen=True)
class Speed:
    """Examples per second."""

    step: float
    """The compiled step on one batch that stays on the device."""
    training: float
    """The same step on the batches of the feed."""

    @property
    def lost(self) -> float:
        """The fraction of the step's speed that the feed costs."""
        return max(0.0, 1 - self.training / self.step)


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


class _Resident:
    """An iterator that always returns the same ticket."""

    def __init__(self, ticket: Any) -> None:
        self._ticket = ticket

    def get_next(self) -> Any:
        return self._ticket


def speed(model: SteppedModel, batches: Batches) -> Speed:
    """Measures training with and without the feed, in turn; medians. Changes the weights.

    Call it in the scope of the strategy.

    Args:
        model: The result of `build`.
        batches: Training batches, as an engine gets them.
    """
    if model.step is None:
        raise ValueError("the model has no step; create it with `build`")
    model.step.set_inputs(batches, None)
    tickets = iter(distributed.tickets(batches, repeat=True))
    iterators = {"step": _Resident(next(tickets)), "training": tickets}
    calls = {name: distributed.Calls(model, "train", batches) for name in iterators}
    counts = {}
    for name, call in calls.items():
        call.begin(batches.epochs - 1)
        model.steps_per_execution = 1
        for _ in range(2):  # the first call traces
            start = time.monotonic()
            _wait(call(iterators[name]))
        counts[name] = max(1, int(_CALL / (time.monotonic() - start)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            model.steps_per_execution = counts[name]
            start, done = time.monotonic(), 0
            while time.monotonic() < start + _ROUND:
                if call.position >= batches.last_step:  # the tickets also start over
                    call.position = batches.first_step
                before = call.position
                _wait(call(iterators[name]))
                done += call.position - before
            found[name].append(done * batches.batch_size / (time.monotonic() - start))
    return Speed(**{name: statistics.median(values) for name, values in found.items()})


def _wait(logs: dict[str, Any]) -> None:
    """Waits for the devices, which run asynchronously."""
    for value in logs.values():
        value.numpy()


def verdict(measured: Speed, feed: float) -> str:
    """One sentence naming the bottleneck and its remedies; `feed` is the result of `feed`."""
    times = feed / measured.step
    # A feed that is much faster costs only noise, or the CPU time that it uses itself.
    if measured.lost <= _FREE or times >= _MUCH:
        remedies = "a GPU, a 16-bit --runtime.precision or a smaller model would speed it up"
        return f"the step: the feed alone is {times:.1f} times as fast; {remedies}"
    remedies = "another --data.cache or --data.augment-on device may speed it up"
    return f"the feed: it costs {measured.lost:.0%} of the step's speed; {remedies}"
