"""From a source and a task to batches: decode, cache, split, order, batch, pad, prefetch."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import psutil
import tensorflow as tf

from pipeline import config, seeds
from pipeline.contracts import Batches, Decision, Example, Share, Source, Task
from pipeline.errors import UsageError

_WHOLE = Share()


@dataclasses.dataclass(frozen=True)
class Split:
    """Decoded examples of one split: some rows of columns that several splits may share."""

    columns: Mapping[str, tf.Tensor]
    rows: tf.Tensor
    """int64, (examples,): which rows, in the order of the source."""

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def column(self, name: str) -> np.ndarray:
        """One field of all examples of the split, (examples, ...)."""
        return tf.gather(self.columns[name], self.rows).numpy()

    def take(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The examples at these positions of the split, column by column."""
        rows = tf.gather(self.rows, positions)
        return {name: tf.gather(column, rows).numpy() for name, column in self.columns.items()}


def load(
    source: Source, task: Task, options: config.Data, dropped: Mapping[int, str]
) -> tuple[dict[str, Split], list[Decision]]:
    """Decodes everything once into memory and divides it into train, validation and test.

    Args:
        source: Where the examples come from.
        task: Decodes and checks them.
        options: Shares, limits, cache.
        dropped: Ids of examples to leave out.

    Raises:
        UsageError: The data do not fit into memory, a split is empty, a label is wrong.
    """
    decisions = [_cache_decision(source, task, options)]
    splits = {}
    for name in source.info.splits:
        columns = _decode(source, task, name, options.limit)
        rows = np.arange(len(columns["id"]))
        if dropped:
            rows = rows[~np.isin(columns["id"], list(dropped))]
        task.check({key: c[rows] for key, c in columns.items()} if dropped else columns, name)
        tensors = {key: tf.convert_to_tensor(column) for key, column in columns.items()}
        splits[name] = Split(tensors, tf.constant(rows, tf.int64))
    shares = {"validation": options.validation, "test": options.test}
    missing = {name: share for name, share in shares.items() if share and name not in splits}
    if missing:
        splits.update(_divide(splits["train"], missing, options.split_seed))
        held_out = ", ".join(f"{share:g} for {name}" for name, share in missing.items())
        decisions.append(Decision("splits", held_out, "held out of train by a hash of the ids"))
    for name, split in splits.items():
        if not len(split):
            raise UsageError(
                f"the split {name!r} is empty; change --data.validation, --data.test or the source"
            )
    return {
        name: splits[name] for name in ("train", "validation", "test") if name in splits
    }, decisions


def _cache_decision(source: Source, task: Task, options: config.Data) -> Decision:
    spec = (
        tf.data.Dataset.from_tensors(
            {
                key: tf.zeros([1 if n is None else n for n in field.shape], field.dtype)
                for key, field in source.info.fields.items()
            }
        )
        .map(task.decode)
        .element_spec
    )
    each = sum(s.dtype.size * s.shape.num_elements() for s in spec.values())
    counts = source.info.splits.values()
    size = each * sum(min(n, options.limit or n) for n in counts)
    free = psutil.virtual_memory().available
    # Twice: TensorFlow copies each column once it is full.
    if 2 * size > (free if options.cache == "auto" else psutil.virtual_memory().total):
        raise UsageError(
            f"the decoded data need {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            "choose a smaller --data.limit, or a smaller --data.image-size for images"
        )
    if options.cache == "memory":
        return Decision("cache", "memory", "asked for")
    return Decision("cache", "memory", f"{size / 1e6:.1f} MB decoded, {free / 1e9:.0f} GB free")


def _decode(source: Source, task: Task, split: str, limit: int | None) -> dict[str, np.ndarray]:
    """All decoded examples of a split, in the order of the source."""
    count = min(source.info.splits[split], limit or source.info.splits[split])
    decoded = (
        source.examples(split)
        .take(count)
        .map(task.decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    )
    columns = {
        key: np.empty((count, *spec.shape), spec.dtype.as_numpy_dtype)
        for key, spec in decoded.element_spec.items()
    }
    at = 0
    try:
        for batch in decoded.batch(256).prefetch(2).as_numpy_iterator():
            for key, values in batch.items():
                columns[key][at : at + len(values)] = values
            at += len(batch["id"])
    except tf.errors.OpError as error:
        reason = (error.message or type(error).__name__).partition("\n")[0][:200]
        raise UsageError(
            f"the split {split!r} cannot be read after {at} examples: {reason}"
        ) from None
    if at != count:
        raise UsageError(f"the split {split!r} should hold {count} examples, but {at} were read")
    return columns


def _divide(train: Split, shares: Mapping[str, float], seed: int) -> dict[str, Split]:
    """Holds parts of `train` out, and what remains as `train`.

    Where an example goes depends on the seed, its class (where it has one) and its id alone, by
    comparing a hash with the shares: an example never moves when others are added or removed,
    and each class is divided on its own (shares are met up to the noise of a coin toss each).
    """
    ids = tf.gather(train.columns["id"], train.rows)
    labels = tf.zeros_like(ids)
    if "label" in train.columns and train.columns["label"].dtype.is_integer:
        labels = tf.cast(tf.gather(train.columns["label"], train.rows), tf.int64)
    place = seeds.uniform(seeds.of_examples(seed, labels, ids)).numpy()
    # From the two ends, so that another share for validation moves no example into the test.
    validation = place < shares.get("validation", 0.0)
    test = place >= 1.0 - shares.get("test", 0.0)
    masks = {"validation": validation, "test": test, "train": ~(validation | test)}
    parts = {name: mask for name, mask in masks.items() if name in shares or name == "train"}
    return {
        name: Split(train.columns, tf.boolean_mask(train.rows, mask))
        for name, mask in parts.items()
    }


def training(split: Split, options: config.Train, seed: int) -> Batches:
    """Batches over all epochs: each epoch a fresh permutation whose remainder is dropped.

    The batch of a step is a pure function of (seed, step), so that a run resumed at any step
    sees what it would have seen.
    """
    batch_size = options.batch_size
    steps_per_epoch = len(split) // batch_size
    if not steps_per_epoch:
        raise UsageError(
            f"--train.batch-size {batch_size}: the split 'train' has only {len(split)} examples"
        )
    last_step = options.epochs * steps_per_epoch
    if options.steps is not None:
        last_step = min(last_step, options.steps)

    def part_of_batch(step: tf.Tensor, places: tf.Tensor) -> Example:
        epoch = step // steps_per_epoch
        # tf.random.experimental.index_shuffle has 4 rounds, with which two epochs of 50,000
        # examples correlate at 0.72; with 16 they are independent (-0.003).
        positions = tf.raw_ops.RandomIndexShuffle(
            index=(step % steps_per_epoch) * batch_size + places,
            seed=tf.stack([tf.constant(seed, tf.int64), epoch, 0]),
            max_index=tf.constant(len(split) - 1, tf.int64),  # inclusive
            rounds=16,
        )
        return _gather(split, positions, tf.ones(places.shape), epoch)

    return _batches(part_of_batch, batch_size, steps_per_epoch, last_step)


def evaluation(split: Split, options: config.Train, replicas: int = 1) -> Batches:
    """One pass in the order of the source; padding repeats the last example with weight 0.

    Batches are four times as large as in training: without gradients they need less memory. Each
    of the `replicas` has a part of the same size, even where it is nothing but padding: Keras
    crashes on an empty part, or makes NaN of it.
    """
    largest = min(4 * options.batch_size, len(split))
    batch_size = -(-largest // replicas) * replicas
    steps = -(-len(split) // batch_size)

    def part_of_batch(step: tf.Tensor, places: tf.Tensor) -> Example:
        positions = step * batch_size + places
        weight = tf.cast(positions < len(split), tf.float32)
        positions = tf.minimum(positions, tf.constant(len(split) - 1, tf.int64))
        return _gather(split, positions, weight, tf.zeros([], tf.int64))

    return _batches(part_of_batch, batch_size, steps, steps)


def _batches(
    part_of_batch: Callable[[tf.Tensor, tf.Tensor], Example],
    batch_size: int,
    steps_per_epoch: int,
    last_step: int,
) -> Batches:
    """From a function of a step and places in its batch, int64 of shape (part,)."""

    def tickets(first_step: int, share: Share = _WHOLE) -> tf.data.Dataset:
        size = batch_size // share.of

        def part(number: tf.Tensor) -> Example:
            start = (share.first + number % share.count) * size
            return part_of_batch(number // share.count, start + tf.range(size, dtype=tf.int64))

        parts = tf.data.Dataset.range(first_step * share.count, last_step * share.count)
        parts = parts.map(part, num_parallel_calls=2, deterministic=True)
        return parts.prefetch(2 * share.count)

    return Batches(
        tickets=tickets,
        fetch=lambda ticket: ticket,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        last_step=last_step,
    )


def _gather(split: Split, positions: tf.Tensor, weight: tf.Tensor, epoch: tf.Tensor) -> Example:
    rows = tf.gather(split.rows, positions)
    batch = {name: tf.gather(column, rows) for name, column in split.columns.items()}
    return {**batch, "weight": weight, "epoch": tf.fill(weight.shape, epoch)}
