"""Applies the augmentations of a run, on the host or inside the training step."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import config, registry
from pipeline.contracts import WHOLE_BATCH, Batches, Decision, Example, ReplicaPart
from pipeline.data import seeds
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import without_autograph

# Factor by which the largest pixel of a batch may shrink, or grow if images are floats.
# Rescaling from 0 ... 255 to 0 ... 1 shrinks it by 255; `color_jitter` with its
# defaults makes floats up to 3 times as bright.
_SCALE = 16


class Augmenter:
    """A pure function on batches that gives the same bits on the host and in a step.

    `spatial_fields` are those of the task. Raises UsageError for an operation that
    would move the input without them.
    """

    def __init__(
        self,
        operations: Mapping[str, Mapping[str, Any]],
        seed: int,
        spatial_fields: Sequence[str] = (),
    ) -> None:
        self._seed = seed
        self._operations = {}
        for name, options in operations.items():
            _require_moves(name, spatial_fields)
            self._operations[name] = registry.bind("augment", name, options)

    def seeds(self, batch: Example) -> tf.Tensor:
        """The seeds of the examples, int64 (batch,), from the run's seed, epoch, id."""
        return seeds.example_seeds(self._seed, batch["epoch"], batch["id"])

    def __call__(self, batch: Example) -> Example:
        """Applies all operations in order.

        Each gets its own seeds, and a `lasting_seed` that is the same in all epochs.
        When traced, raises UsageError if an operation does not fit the examples or
        changes a dtype.
        """
        for _, _, after in self._stages(batch):
            batch = after
        return batch

    def require_range(self, batch: Example) -> None:
        """Runs the operations eagerly; raises UsageError if they rescale the pixels."""
        for name, before, after in self._stages(batch):
            if "image" in before:
                _require_range(name, before["image"], after["image"])

    def try_out(
        self, batches: Batches, pieces: int, part: ReplicaPart
    ) -> Collection[str]:
        """Traces the operations for a micro-batch, to raise their errors early.

        Operations of the user also run once. Returns the fields of the result.
        """

        def augment_piece(batch: Example) -> Example:
            size = batch["weight"].shape[0] // pieces
            piece = {name: field[:size] for name, field in batch.items()}
            return self(batches.gather(piece))

        dataset = batches.dataset(batches.first_step, part)
        # Without autograph, which would wrap a UsageError.
        traced = tf.function(augment_piece, autograph=False)
        function = traced.get_concrete_function(dataset.element_spec)
        functions = [registry.find("augment", name) for name in self._operations]
        if not all(function.is_registered for function in functions):
            (batch,) = dataset.take(1)
            self.require_range(batches.gather(batch))
        return function.structured_outputs.keys()

    def _stages(self, batch: Example) -> Iterator[tuple[str, Example, Example]]:
        """Yields (name, batch before, batch after) for each operation."""
        epoch_seeds = self.seeds(batch)
        no_epoch = tf.constant(-1, tf.int64)
        lasting_seeds = seeds.example_seeds(self._seed, no_epoch, batch["id"])
        for number, (name, operation) in enumerate(self._operations.items(), start=1):
            before = {**batch, "lasting_seed": seeds.fold(lasting_seeds, number)}
            after = _apply(operation, before, seeds.fold(epoch_seeds, number))
            _require_fields(name, batch, after)
            after = dict(after)
            for field, value in batch.items():
                # tf.numpy_function returns tensors of unknown shape.
                after[field] = tf.ensure_shape(after[field], value.shape)
            after.pop("lasting_seed", None)
            yield name, batch, after
            batch = after


def _apply(operation: Any, batch: Example, seeds: tf.Tensor) -> Any:
    """Applies an operation to the image of a batch, or to each of several images."""
    names = [name for name in batch if name.endswith("/image")]
    if "image" in batch or not names:
        return operation(batch, seeds)
    for name in names:
        after = operation({**batch, "image": batch[name]}, seeds)
        batch = {**after, name: after["image"]}
        del batch["image"]
    return batch


def _require_moves(name: str, spatial_fields: Sequence[str]) -> None:
    """Raises UsageError if an operation moves the input, but not these fields."""
    if not spatial_fields:
        return
    fields = getattr(registry.load("augment", name), "moves", None)
    if fields is None and not registry.find("augment", name).is_registered:
        raise UsageError(
            f"--data.augment: {name} does not say which fields it moves; set"
            f" {name}.moves = () if it moves none, or a tuple of their names"
        )
    left_behind = [field for field in spatial_fields if field not in (fields or ())]
    if fields and left_behind:
        raise UsageError(
            f"--data.augment: {name} moves the image, but not its {left_behind[0]};"
            " remove it"
        )


def _require_fields(name: str, before: Example, after: Any) -> None:
    """Raises UsageError unless an operation has kept all fields of the batch."""
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
        old = tf.convert_to_tensor(value)
        new = tf.convert_to_tensor(after[field])
        if new.dtype != old.dtype or not new.shape.is_compatible_with(old.shape):
            levels = _level_range(old.dtype) if field == "image" else ""
            raise UsageError(
                f"--data.augment: {name} must return {field!r} as"
                f" {old.dtype.name}{levels} of shape {old.shape}; got"
                f" {new.dtype.name} of shape {new.shape}"
            )


def _level_range(dtype: tf.DType) -> str:
    return f" from 0 to {dtype.max}" if dtype.is_integer else ""


def _require_range(name: str, before: tf.Tensor, after: tf.Tensor) -> None:
    """Raises UsageError if an operation has changed the scale of the pixels.

    The images of a batch are taken together: a single image may become dark, and noise
    may exceed the range of float images.
    """
    old = _largest_magnitude(before)
    new = _largest_magnitude(after)
    is_darker = new * _SCALE < old
    # Nothing can be concluded from a black batch; integers cannot exceed their range.
    is_brighter = before.dtype.is_floating and new > old * _SCALE > 0
    if is_darker or is_brighter:
        levels = _level_range(before.dtype)
        raise UsageError(
            f"--data.augment: {name} must keep the range of the images,"
            f" {before.dtype.name}{levels}; the largest value of the first batch is"
            f" {old:g} before it and {new:g} after it"
        )


def _largest_magnitude(images: tf.Tensor) -> float:
    return float(np.abs(images.numpy().astype(np.float64)).max())


def apply_on_host(
    batches: Batches,
    options: config.DataConfig,
    seed: int,
    spatial_fields: Sequence[str] = (),
) -> tuple[Batches, list[Decision]]:
    """Returns batches that `tf.data` augments, if the options ask for it.

    Otherwise the batches are returned unchanged, and the training step augments them.
    Raises UsageError for an operation that would leave `spatial_fields` behind.
    """
    if not options.augment:
        return batches, []
    augmenter = Augmenter(options.augment, seed, spatial_fields)
    if options.augment_on == "host" and batches.device_cache is None:
        batches = augment_on_host(batches, augmenter)
        return batches, [Decision("augment", "host", "requested")]
    # For flip and crop before `convnet` on CIFAR-10, both are equally fast within 2%
    # (spread 30%).
    return batches, [Decision("augment", "device", "in the compiled step")]


def augment_on_host(batches: Batches, augmenter: Augmenter) -> Batches:
    """Returns the batches augmented by `tf.data`, in parallel with training."""
    return HostAugmentedBatches(
        batches=batches,
        augmenter=augmenter,
        batch_size=batches.batch_size,
        steps_per_epoch=batches.steps_per_epoch,
        last_step=batches.last_step,
        first_step=batches.first_step,
        first_epoch=batches.first_epoch,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostAugmentedBatches(Batches):
    """Batches that `tf.data` augments."""

    batches: Batches
    augmenter: Augmenter

    def dataset(
        self, first_step: int, part: ReplicaPart = WHOLE_BATCH
    ) -> tf.data.Dataset:
        # Autograph would add its own text to a UsageError.
        augment = without_autograph(self.augmenter)
        dataset = self.batches.dataset(first_step, part)
        dataset = dataset.map(
            augment, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return dataset.prefetch(2 * part.count)

    def rows(self, step: int) -> np.ndarray:
        return self.batches.rows(step)

    def raise_if_undecodable(self, first: int, last: int) -> None:
        self.batches.raise_if_undecodable(first, last)

    def order_checksum(self, epoch: int) -> int:
        return self.batches.order_checksum(epoch)
