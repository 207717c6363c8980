"""The augmentations of a run, applied in the given order on the host or inside the
step.
"""

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
# Factor by which the largest pixel of a batch may shrink, or grow if images are floats.
# Rescaling from 0 ... 255 to 0 ... 1 shrinks it by 255; `color_jitter` with its
# defaults makes floats up to 3 times as bright.
_SCALE = 16


class Augmenter:
    """Augments a batch, as a pure function that gives the same bits on the host and in
    the step.
    """

    def __init__(self, operations: Mapping[str, Mapping[str, Any]], seed: int) -> None:
        self._seed = seed
        self._operations = {
            name: registry.bind("augment", name, options)
            for name, options in operations.items()
        }

    def seeds(self, batch: Example) -> tf.Tensor:
        """The seed of each example, int64 (batch,), a function of the run's seed, epoch
        and id.
        """
        return seeds.example_seeds(self._seed, batch["epoch"], batch["id"])

    def __call__(self, batch: Example) -> Example:
        """Applies all operations.

        Each gets its own seeds, and a `lasting_seed` that is the same in all epochs.
        When traced, raises UsageError if an operation does not fit the examples or
        changes a dtype.
        """
        for _, _, after in self._stages(batch):
            batch = after
        return batch

    def require_range(self, batch: Example) -> None:
        """Runs the operations eagerly; raises UsageError if one changes the scale of
        the pixels.
        """
        for name, before, after in self._stages(batch):
            if "image" in before:
                _require_range(name, before["image"], after["image"])

    def try_out(self, batches: Batches, pieces: int, share: Share) -> None:
        """Traces the operations for a micro-batch, and runs the user's, so that errors
        appear.
        """

        def micro_batch(ticket: Any) -> Example:
            batch = batches.materialize(ticket, share.of)
            return {
                name: field[: field.shape[0] // pieces] for name, field in batch.items()
            }

        parts = batches.tickets(batches.first_step, share)
        # Without autograph, which would wrap a UsageError.
        traced = tf.function(lambda ticket: self(micro_batch(ticket)), autograph=False)
        traced.get_concrete_function(parts.element_spec)
        if not all(
            registry.find("augment", name).is_registered for name in self._operations
        ):
            (ticket,) = parts.take(1)
            self.require_range(micro_batch(ticket))

    def _stages(self, batch: Example) -> Iterator[tuple[str, Example, Example]]:
        """Yields (name, batch before, batch after) for each operation."""
        own = self.seeds(batch)
        lasting = seeds.example_seeds(
            self._seed, tf.constant(-1, tf.int64), batch["id"]
        )
        for number, (name, operation) in enumerate(self._operations.items(), start=1):
            given = {**batch, "lasting_seed": seeds.fold(lasting, number)}
            after = operation(given, seeds.fold(own, number))
            _require_fields(name, batch, after)
            # tf.numpy_function returns tensors of unknown shape.
            kept = {
                field: tf.ensure_shape(after[field], batch[field].shape)
                for field in batch
            }
            after = {**after, **kept}
            after.pop("lasting_seed", None)
            yield name, batch, after
            batch = after


def _require_fields(name: str, before: Example, after: Any) -> None:
    """Raises UsageError unless the result of an operation has the fields
    of its input.
    """
    if not isinstance(after, Mapping):
        raise UsageError(
            f"--data.augment: {name} must return the batch, a dictionary of tensors; "
            f"got {type(after).__name__}"
        )
    for field, value in before.items():
        if field not in after:
            raise UsageError(
                f"--data.augment: {name} must also return the field {field!r}"
            )
        given, made = tf.convert_to_tensor(value), tf.convert_to_tensor(after[field])
        if made.dtype != given.dtype or not made.shape.is_compatible_with(given.shape):
            levels = _levels(given.dtype) if field == "image" else ""
            raise UsageError(
                f"--data.augment: {name} must return {field!r} as"
                f" {given.dtype.name}{levels} of shape {given.shape}; got"
                f" {made.dtype.name} of shape {made.shape}"
            )


def _levels(dtype: tf.DType) -> str:
    return f" from 0 to {dtype.max}" if dtype.is_integer else ""


def _require_range(name: str, before: tf.Tensor, after: tf.Tensor) -> None:
    """Raises UsageError if the scale of the images of a batch, taken together, has
    changed.

    A single image may become dark, and noise may exceed the range of float images.
    """
    old, new = (
        float(np.abs(i.numpy().astype(np.float64)).max()) for i in (before, after)
    )
    # Nothing can be concluded from a black batch; integers cannot exceed their range.
    if new * _SCALE < old or (before.dtype.is_floating and new > old * _SCALE > 0):
        raise UsageError(
            f"--data.augment: {name} must keep the range of the images,"
            f" {before.dtype.name}{_levels(before.dtype)}; the largest value of the"
            f" first batch is {old:g} before it and {new:g} after it"
        )


def placed(
    batches: Batches, options: config.Data, seed: int, cache: str
) -> tuple[Batches, list[Decision]]:
    """Returns the batches for the step, augmented if this is done on the host, and the
    decision.

    `cache` is where the decoded examples are: device, memory, ... or none. If `batches`
    (from `batching.training`) are returned unchanged, the step augments them.
    """
    if not options.augment:
        return batches, []
    if options.augment_on == "host" and cache != "device":
        batches = on_host(batches, Augmenter(options.augment, seed))
        return batches, [Decision("augment", "host", "requested")]
    # For flip and crop before `convnet` on CIFAR-10, both are equally fast within 2%
    # (spread 30%).
    return batches, [Decision("augment", "device", "in the compiled step")]


def on_host(batches: Batches, augmenter: Augmenter) -> Batches:
    """The same batches, with tickets that `tf.data` augments in parallel
    with training.
    """

    def tickets(first_step: int, share: Share = _WHOLE) -> tf.data.Dataset:
        # Autograph would add its own text to a UsageError.
        @tf.autograph.experimental.do_not_convert
        def augmented(ticket: Any) -> Example:
            return augmenter(batches.materialize(ticket, share.of))

        made = batches.tickets(first_step, share)
        made = made.map(
            augmented, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return made.prefetch(2 * share.count)

    return dataclasses.replace(
        batches, tickets=tickets, materialize=lambda ticket, parts=1: ticket
    )
