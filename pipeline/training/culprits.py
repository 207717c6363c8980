"""Which examples made a step bad: its batch is read again by the step's number, and looked at."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from pipeline.contracts import Batches


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


def of_step(
    model: keras.Model, batches: Batches, step: int, locate: Callable[[int], str]
) -> Culprits:
    """Examples with a field that is not finite; else with such a loss; else the whole batch.

    The loss is that under the present weights, which are those of the step: it did not change them,
    and only later steps of the same call may have.

    Args:
        model: Of `build`, fed.
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


def unread(batches: Batches, step: int) -> Culprits:
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
