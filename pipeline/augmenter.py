"""The augmentations of a run in their order, wherever they are carried out."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipeline import seeds, shelf
from pipeline.contracts import Batches, Example, Share

_WHOLE = Share()


class Augmenter:
    """A batch to the augmented batch, a pure function of it: on the host as inside the step.

    Args:
        operations: Name -> options of siblings of the shelf `augment`, in order.
        seed: Of the run.
    """

    def __init__(self, operations: Mapping[str, Mapping[str, Any]], seed: int) -> None:
        self._seed = seed
        self._operations = [
            functools.partial(shelf.take("augment", name), **options)
            for name, options in operations.items()
        ]

    def seeds(self, batch: Example) -> tf.Tensor:
        """The seed of each example, int64 (batch,), from the run's seed, its epoch and its id."""
        return seeds.of_examples(self._seed, batch["epoch"], batch["id"])

    def __call__(self, batch: Example) -> Example:
        own = self.seeds(batch)
        for number, operation in enumerate(self._operations, start=1):
            batch = operation(batch, seeds.fold(own, number))
        return batch


def on_host(batches: Batches, augmenter: Augmenter) -> Batches:
    """The same batches with augmented tickets, made by `tf.data` beside the training.

    Raises:
        UsageError: An operation does not fit the examples; when a dataset is made.
    """

    # Autograph would wrap a UsageError in a text of its own.
    @tf.autograph.experimental.do_not_convert
    def augmented(ticket: Any) -> Example:
        return augmenter(batches.fetch(ticket))

    def tickets(first_step: int, share: Share = _WHOLE) -> tf.data.Dataset:
        made = batches.tickets(first_step, share)
        made = made.map(augmented, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return made.prefetch(2 * share.count)

    return dataclasses.replace(batches, tickets=tickets, fetch=lambda ticket: ticket)
