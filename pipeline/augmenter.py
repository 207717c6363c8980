"""The augmentations of a run in their order, wherever they are carried out."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipeline import config, seeds, shelf
from pipeline.contracts import Batches, Decision, Example, Share

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
        """Each operation gets seeds of its own, and as `lasting_seed` those of no epoch.

        Raises:
            UsageError: An operation does not fit the examples; when it is traced.
        """
        own = self.seeds(batch)
        lasting = seeds.of_examples(self._seed, tf.constant(-1, tf.int64), batch["id"])
        for number, operation in enumerate(self._operations, start=1):
            given = {**batch, "lasting_seed": seeds.fold(lasting, number)}
            batch = dict(operation(given, seeds.fold(own, number)))
            batch.pop("lasting_seed", None)
        return batch


def placed(
    batches: Batches, options: config.Data, seed: int, cache: str
) -> tuple[Batches, list[Decision]]:
    """The batches that the step gets, augmented if that is done on the host; and the decision.

    Args:
        batches: Of training, as `stream` makes them. Where they come back as they are, the step
            augments them.
        options: The operations, and what was asked for.
        seed: Of the run.
        cache: Where the decoded examples are: device, memory, ... or none.
    """
    if not options.augment:
        return batches, []
    decision = Decision("augment", *_place(options.augment_on, cache))
    if decision.value == "host":
        batches = on_host(batches, Augmenter(options.augment, seed))
    return batches, [decision]


def _place(asked: str, cache: str) -> tuple[str, str]:
    """`host` or `device`, and why."""
    if cache == "device":
        return "device", "in the compiled step, as the examples lie on the device"
    if asked != "auto":
        return asked, "asked for"
    if tf.config.list_logical_devices("GPU"):
        return "device", "in the compiled step, on the GPU"
    # Flip and crop before `convnet` on CIFAR-10: both within 2 % of each other, spread 30 %.
    return "device", "in the compiled step; the host, the same CPU, is no faster"


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
