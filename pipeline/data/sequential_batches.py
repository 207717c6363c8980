"""Batches of a source that can only be read sequentially: two-level shuffling.

Each epoch starts at a different position of the split and reads the whole split, in blocks; each
block is shuffled. Both are functions of (seed, epoch), so a resumed run needs no state: it skips
the examples already used, without decoding them. Examples move only within their block: if adjacent
examples are similar (sorted by class), a cache in memory or on disk shuffles better.
"""

from typing import Any

import tensorflow as tf

from pipeline.contracts import Batches, Example, Share
from pipeline.data import seeds
from pipeline.data.example_store import Sequential
from pipeline.data.splits import Split

BLOCK = 4096
"""Number of raw examples that are shuffled together; two blocks are in memory."""
_WHOLE = Share()


def batches(
    split: Split,
    store: Sequential,
    batch_size: int,
    steps_per_epoch: int,
    last_step: int,
    seed: int | None = None,
) -> Batches:
    """Batches for training if there is a seed; otherwise, a single pass in the source's order.

    `store` is the store of the split. If the last batch is incomplete, it is filled with the first
    example of the split, with weight 0.
    """
    raw, count = store.raw(split.rows), len(split)
    short = max(0, steps_per_epoch * batch_size - count)

    def examples(epoch: tf.Tensor) -> tf.data.Dataset:
        if seed is None:
            return raw.concatenate(raw.take(1).repeat(short)) if short else raw
        drawn = seeds.example_seeds(seed, epoch, tf.constant([-1], tf.int64))
        start = seeds.integers(drawn, count)[0]
        around = raw.skip(start).concatenate(raw.take(start))
        return around.batch(BLOCK).map(lambda block: _shuffled(block, seed, epoch)).unbatch()

    def tickets(first_step: int, share: Share = _WHOLE) -> tf.data.Dataset:
        first_epoch, passed = divmod(first_step, steps_per_epoch)

        def epoch_of(epoch: tf.Tensor) -> tf.data.Dataset:
            gone = tf.where(epoch == first_epoch, tf.constant(passed * batch_size, tf.int64), 0)
            rest = store.decoded(examples(epoch).skip(gone)).batch(batch_size, drop_remainder=True)
            return rest.enumerate().map(lambda number, batch: weighted(epoch, gone, number, batch))

        def weighted(epoch: tf.Tensor, gone: tf.Tensor, number: tf.Tensor, batch: Example) -> Any:
            place = gone + number * batch_size + tf.range(batch_size, dtype=tf.int64)
            weight = tf.cast(place < count, tf.float32)
            return {**batch, "weight": weight, "epoch": tf.fill([batch_size], epoch)}

        def parts(batch: Example) -> tf.data.Dataset:
            mine = slice(share.first, share.first + share.count)
            size = batch_size // share.of
            cut = {k: tf.reshape(v, (share.of, size, *v.shape[1:])) for k, v in batch.items()}
            return tf.data.Dataset.from_tensor_slices({k: v[mine] for k, v in cut.items()})

        steps, epochs = last_step - first_step, -(-last_step // steps_per_epoch)
        made = tf.data.Dataset.range(first_epoch, epochs).flat_map(epoch_of).take(steps)
        made = made.flat_map(parts)
        made = made.apply(tf.data.experimental.assert_cardinality(steps * share.count))
        return made.prefetch(2 * share.count)

    return Batches(
        tickets=tickets,
        materialize=store.materialize,
        raise_if_undecodable=lambda first, end: store.raise_if_undecodable(split.rows),
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        last_step=last_step,
    )


def _shuffled(block: Example, seed: int, epoch: tf.Tensor) -> Example:
    order = tf.argsort(seeds.example_seeds(seed, epoch, block["id"]))
    return {name: tf.gather(values, order) for name, values in block.items()}
