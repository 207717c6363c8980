"""Measures the speed of the input pipeline alone, and of the training step alone."""

import dataclasses
import time
from typing import Any

import keras

from pipeline.contracts import Batches
from pipeline.training import autotune, distributed
from pipeline.training.train_step import Step

_MAX_SECONDS = 3.0  # of measuring the input pipeline
_TRIALS = 3  # of the step; the fastest counts


def input_speed(batches: Batches) -> float:
    """Measures examples per second of the input pipeline alone, in the second epoch."""
    first = batches.steps_per_epoch
    iterator = iter(distributed.dataset(dataclasses.replace(batches, first_step=first)))
    start = time.monotonic()
    steps = 0
    end = start + _MAX_SECONDS
    while steps < batches.last_step - first and time.monotonic() < end:
        next(iterator)
        steps += 1
    return steps * batches.batch_size / (time.monotonic() - start)


class RepeatedSource:
    """An iterator that always returns the first batch or block, which stays on the
    device.
    """

    def __init__(self, step: Step, batches: Batches) -> None:
        iterator = distributed.open_iterator(step, "train", batches)
        self.element_spec = iterator.element_spec
        self._first = next(iterator)
        self._is_block = step.is_one_program("train")

    def __next__(self) -> Any:
        return self._first

    def get_next(self) -> Any:
        """Returns a batch, even if XLA turned out not to compile the step."""
        if not self._is_block:
            return self._first
        return {name: values[0] for name, values in self._first.items()}


def step_speed(model: keras.Model, batches: Batches) -> float:
    """Measures examples per second of the step on a batch that stays on the device.

    Call it in the scope of the strategy.
    """
    model.step.set_inputs(batches, None)
    source = RepeatedSource(model.step, batches)
    trials = [autotune.seconds_per_step(model, batches, source) for _ in range(_TRIALS)]
    return batches.batch_size / min(trials)


def bottleneck(step: float, feed: float, precision: str = "float32") -> str:
    """Names the slower of step and input pipeline, and how to speed it up.

    `step` and `feed` are examples per second; `precision` is that of the step.
    """
    if feed >= step:
        remedies = "a GPU, a 16-bit --runtime.precision or a smaller model"
        if precision != "float32":
            remedies = "a GPU or a smaller model"
        return (
            f"the step: the feed alone is {feed / step:.1f} times as fast; {remedies}"
            " would speed it up"
        )
    return (
        f"the feed: the step alone is {step / feed:.1f} times as fast; another"
        " --data.cache or --data.augment-on device may speed it up"
    )
