"""The augmentations of a run in their order, wherever they are carried out."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import config, registry
from pipeline.contracts import Batches, Decision, Example, Share
from pipeline.data import seeds
from pipeline.utils.errors import UsageError

_WHOLE = Share()
# Times that the largest pixel of a batch may shrink, or of floats grow. A change of the range from
# 0 ... 255 to 0 ... 1 shrinks it 255 times, `color_jitter` with its defaults makes floats 3 times
# as bright.
_SCALE = 16


class Augmenter:
    """A batch to the augmented batch, a pure function of it: on the host as inside the step.

    Args:
        operations: Name -> options of registered augmentations, in order.
        seed: Of the run.
    """

    def __init__(self, operations: Mapping[str, Mapping[str, Any]], seed: int) -> None:
        self._seed = seed
        self._operations = {
            name: registry.bind("augment", name, options) for name, options in operations.items()
        }

    def seeds(self, batch: Example) -> tf.Tensor:
        """The seed of each example, int64 (batch,), from the run's seed, its epoch and its id."""
        return seeds.example_seeds(self._seed, batch["epoch"], batch["id"])

    def __call__(self, batch: Example) -> Example:
        """Each operation gets seeds of its own, and as `lasting_seed` those of no epoch.

        Raises:
            UsageError: An operation does not fit the examples, or leaves a field with another
                dtype or shape; when it is traced.
        """
        for _, _, after in self._stages(batch):
            batch = after
        return batch

    def require_range(self, batch: Example) -> None:
        """Carries the operations out, eagerly, to see what they make of the pixels.

        Raises:
            UsageError: One leaves the range of the images, as from 0 ... 255 to 0 ... 1.
        """
        for name, before, after in self._stages(batch):
            if "image" in before:
                _require_range(name, before["image"], after["image"])

    def _stages(self, batch: Example) -> Iterator[tuple[str, Example, Example]]:
        """(name, batch before, batch after) of each operation."""
        own = self.seeds(batch)
        lasting = seeds.example_seeds(self._seed, tf.constant(-1, tf.int64), batch["id"])
        for number, (name, operation) in enumerate(self._operations.items(), start=1):
            given = {**batch, "lasting_seed": seeds.fold(lasting, number)}
            after = operation(given, seeds.fold(own, number))
            _require_fields(name, batch, after)
            # tf.numpy_function returns tensors of unknown shape.
            kept = {field: tf.ensure_shape(after[field], batch[field].shape) for field in batch}
            after = {**after, **kept}
            after.pop("lasting_seed", None)
            yield name, batch, after
            batch = after


def _require_fields(name: str, before: Example, after: Any) -> None:
    """Raises UsageError unless what an operation has made of a batch has the fields it had."""
    if not isinstance(after, Mapping):
        raise UsageError(
            f"--data.augment: {name} must return the batch, a dictionary of tensors; "
            f"it returns {type(after).__name__}"
        )
    for field, value in before.items():
        if field not in after:
            raise UsageError(f"--data.augment: {name} must return the field {field!r} too")
        given, made = tf.convert_to_tensor(value), tf.convert_to_tensor(after[field])
        if made.dtype != given.dtype or not made.shape.is_compatible_with(given.shape):
            levels = _levels(given.dtype) if field == "image" else ""
            raise UsageError(
                f"--data.augment: {name} gets {field!r} as {given.dtype.name}{levels} of shape "
                f"{given.shape} and must return it so; it returns {made.dtype.name} of shape "
                f"{made.shape}"
            )


def _levels(dtype: tf.DType) -> str:
    return f" from 0 to {dtype.max}" if dtype.is_integer else ""


def _require_range(name: str, before: tf.Tensor, after: tf.Tensor) -> None:
    """Raises UsageError where the images of a batch, taken together, have another scale.

    A single image may turn dark, and noise may leave the range of floats.
    """
    old, new = (float(np.abs(i.numpy().astype(np.float64)).max()) for i in (before, after))
    # A black batch says nothing; integers cannot grow out of their range.
    if new * _SCALE < old or (before.dtype.is_floating and new > old * _SCALE > 0):
        raise UsageError(
            f"--data.augment: {name} must keep the range of the images, "
            f"{before.dtype.name}{_levels(before.dtype)}: the largest value of the first batch is "
            f"{old:g} before it and {new:g} after it"
        )


def placed(
    batches: Batches, options: config.Data, seed: int, cache: str
) -> tuple[Batches, list[Decision]]:
    """The batches that the step gets, augmented if that is done on the host; and the decision.

    Args:
        batches: Of training, as `batching.training` makes them. Where they come back as they are,
            the step augments them.
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
        return augmenter(batches.materialize(ticket))

    def tickets(first_step: int, share: Share = _WHOLE) -> tf.data.Dataset:
        made = batches.tickets(first_step, share)
        made = made.map(augmented, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return made.prefetch(2 * share.count)

    return dataclasses.replace(batches, tickets=tickets, materialize=lambda ticket: ticket)
