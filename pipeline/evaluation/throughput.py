"""How fast batches come, how fast a step takes them, and which of the two holds a training up."""

import dataclasses
import statistics
import time
from typing import Any

import keras
import tensorflow as tf

from pipeline.contracts import Batches
from pipeline.training import distributed

_PASS = 3.0  # seconds, at most, that a pass over the batches is measured
_ROUND = 0.7  # seconds of steps in a round
_ROUNDS = 3
_CALL = 0.2  # seconds
# What the feed may take of the step's speed before it is called the bottleneck.
_FREE = 0.05
# A feed so many times as fast as the step is never called so.
_MUCH = 20


@dataclasses.dataclass(frozen=True)
class Speed:
    """Examples per second."""

    step: float
    """The compiled step on one batch that lies on the device."""
    training: float
    """The same step on the batches as they come."""

    @property
    def lost(self) -> float:
        """Share of the step's speed that the feed takes."""
        return max(0.0, 1 - self.training / self.step)


def passes(batches: Batches) -> tuple[float, float]:
    """Examples per second of the feed alone: in the first epoch, and after it.

    Taken as a training takes them, parts of replicas and prefetching included, by a compiled loop
    that does nothing with them. Each is measured for at most three seconds, the first not beyond
    its epoch.

    Args:
        batches: Of training, of at least two epochs.
    """
    size = batches.steps_per_epoch
    first = _pass(batches, size)
    return first, _pass(dataclasses.replace(batches, first_step=size), batches.last_step - size)


def _pass(batches: Batches, most: int) -> float:
    take = tf.function(_take, autograph=False)
    # Traced on an iterator of its own, so that nothing is fetched before the clock runs.
    take(iter(distributed.tickets(batches)), tf.constant(0))
    iterator = iter(distributed.tickets(batches))
    start, done, count = time.monotonic(), 0, 1
    while done < most and time.monotonic() < start + _PASS:
        count = min(count, most - done)
        take(iterator, tf.constant(count))
        done += count
        each = (time.monotonic() - start) / done
        count = max(1, int(_CALL / each))
    return done * batches.batch_size / (time.monotonic() - start)


def _take(iterator: Any, count: tf.Tensor) -> None:
    def body(done: tf.Tensor) -> tf.Tensor:
        iterator.get_next()
        return done + 1

    tf.while_loop(lambda done: done < count, body, (0,), parallel_iterations=1)


class _Resident:
    """An iterator that gives one ticket, which lies on the device, again and again."""

    def __init__(self, ticket: Any) -> None:
        self._ticket = ticket

    def get_next(self) -> Any:
        return self._ticket


def speed(model: keras.Model, batches: Batches) -> Speed:
    """Of training, with and without its feed, in turns; medians. Changes the model's weights.

    Call it in the scope of the strategy.

    Args:
        model: Of `build`.
        batches: As an engine would get them.
    """
    model.step.set_inputs(batches, None)
    tickets = iter(distributed.tickets(batches, repeat=True))
    iterators = {"step": _Resident(next(tickets)), "training": tickets}
    calls = {name: distributed.Calls(model, "train", batches) for name in iterators}
    for call in calls.values():
        call.begin(batches.epochs - 1)
    counts = {}
    for name, iterator in iterators.items():
        model.steps_per_execution = 1
        for _ in range(2):  # the first traces
            start = time.monotonic()
            _wait(calls[name](iterator))
        counts[name] = max(1, int(_CALL / (time.monotonic() - start)))
    found: dict[str, list[float]] = {name: [] for name in iterators}
    for _ in range(_ROUNDS):
        for name, iterator in iterators.items():
            model.steps_per_execution = counts[name]
            start, done = time.monotonic(), 0
            while time.monotonic() < start + _ROUND:
                if calls[name].position >= batches.last_step:  # the tickets start over, too
                    calls[name].position = batches.first_step
                before = calls[name].position
                _wait(calls[name](iterator))
                done += calls[name].position - before
            found[name].append(done * batches.batch_size / (time.monotonic() - start))
    return Speed(**{name: statistics.median(values) for name, values in found.items()})


def _wait(logs: dict[str, Any]) -> None:
    """Devices work on while Python goes on."""
    for value in logs.values():
        value.numpy()


def verdict(measured: Speed, feed: float, remedies: dict[str, str]) -> str:
    """One sentence: what holds a training up, and what would lift it.

    Args:
        measured: Of training.
        feed: Examples per second of the feed alone, after the first pass.
        remedies: For `step` and for `set_inputs`, what would make it faster.
    """
    times = feed / measured.step
    # What a feed so much faster takes is noise, or its share of the cores that both work on.
    if measured.lost <= _FREE or times >= _MUCH:
        fast = f"{times:,.0f} times" if times >= 2 else f"{times:.1f} times"
        return f"the step: the feed alone is {fast} as fast; {remedies['step']} would lift it"
    return (
        f"the feed: it takes {measured.lost:.0%} of the step's speed; {remedies['feed']} "
        "would lift it"
    )
