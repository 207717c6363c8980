"""From a source and a task to batches: decode, cache, split, order, batch, pad,
prefetch.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from pipeline.config.config import Config, TrainConfig
from pipeline.contracts import (
    WHOLE_BATCH,
    Batches,
    Decision,
    Example,
    ReplicaPart,
    Source,
    Task,
)
from pipeline.data import cache, decoder_warnings, epoch_order
from pipeline.data.decoder_warnings import Warnings
from pipeline.data.epoch_order import EpochOrder
from pipeline.data.example_store import (
    DIGEST,
    ROW,
    DeviceCache,
    DeviceStore,
    MemoryStore,
    OnTheFly,
    Store,
    decoded_specs,
    row_bytes,
)
from pipeline.data.split_names import SPLITS
from pipeline.data.splits import Split, divide, require_disjoint, shares, without_copies
from pipeline.utils import progress_bar
from pipeline.utils.errors import UsageError, reason
from pipeline.utils.tf_data import READ_ERRORS, is_short, with_options

_BLOCK = 8 << 20  # bytes of decoded examples in one block; several are decoded at once
_CHUNK = 1 << 22  # rows that are read from the order at once


def load(
    source: Source,
    task: Task,
    config: Config,
    dropped: Mapping[int, str] | None = None,
    groups: Mapping[int, int] | None = None,
) -> tuple[dict[str, Split], list[Decision]]:
    """Decodes all examples once, unless no cache has enough space, and divides them
    into splits.

    The ids in `dropped` are excluded. `groups` maps ids to groups of near duplicates,
    of which only held-out examples are kept.
    """
    options = config.data
    decision = cache.decided(source, task, options)
    excluded = np.fromiter(dropped or {}, np.int64)
    splits, notes = {}, [decision.reason]
    warnings: list[Decision] = []
    if decision.value != "none":
        progress_bar.stage("decoding", f"{sum(source.info.splits.values()):,} examples")
    for name in source.info.splits:
        with decoder_warnings.held() as warned:
            store, note = _store(
                decision.value, source, task, config, name, excluded, warned
            )
        if warned.lines:
            again = OnTheFly(source, task, name, {}, source.columns(name))
            warnings += warned.notes(again, source.location)
        notes += [f"{name} {note}"] * bool(note)
        rows = np.flatnonzero(~np.isin(store.short["id"], excluded))
        splits[name] = Split(store, rows)
        task.check(
            {key: splits[name].column(key) for key in store.short},
            name,
            source.location,
        )
    decisions = [dataclasses.replace(decision, reason="; ".join(notes)), *warnings]
    held_out = shares(source.info.splits, options)
    if held_out:
        value = ", ".join(f"{share:g} for {name}" for name, share in held_out.items())
        hashed = "group" if "group" in splits["train"].store.short else "ids"
        decisions.append(
            Decision("splits", value, f"taken from train by a hash of the {hashed}")
        )
        divided = divide(splits["train"], held_out, options.split_seed)
        divided, copies = without_copies(divided, groups or {})
        splits.update(divided)
        if copies:
            value = ", ".join(f"{count:,} of {name}" for name, count in copies.items())
            reason = (
                "near duplicates of examples that are held out for test or validation"
            )
            decisions.append(Decision("excluded", value, reason))
    require_disjoint(splits, source.location)
    for name, split in splits.items():
        if not len(split):
            flags = "--data.validation, --data.test" + ", --clean.no-near" * bool(
                groups
            )
            raise UsageError(
                f"the split {name!r} is empty; change {flags} or the source"
            )
    if len(splits["train"]) > epoch_order.LARGEST:
        size = f"blocks of {epoch_order.BLOCK:,} examples"
        reason = f"{size} are shuffled, then the examples within each, to save memory"
        decisions.append(Decision("order", "in blocks", reason))
    return {name: splits[name] for name in SPLITS if name in splits}, decisions


def _store(
    kind: str,
    source: Source,
    task: Task,
    config: Config,
    split: str,
    dropped: np.ndarray,
    warned: Warnings,
) -> tuple[Store, str]:
    """The decoded examples of one of the source's splits, and a note about them."""
    specs = decoded_specs(source, task)
    if kind == "none":
        columns = source.columns(split)
        short = {name: values for name, values in columns.items() if name in specs}
        return OnTheFly(source, task, split, specs, short), ""
    specs[DIGEST] = tf.TensorSpec((), tf.int64)
    block = max(1, min(256, _BLOCK // max(1, row_bytes(specs))))
    batches = _decoded(source, task, split, dropped, block, warned)
    if kind == "disk":
        folder, state = cache.place(config, source, task, split, dropped)
        return cache.obtained(folder, state, specs, batches)
    # Not `np.concatenate`: the memory of the batches would not be returned to the
    # system.
    count = source.info.splits[split]
    kept = {
        k: np.empty((count, *s.shape), s.dtype.as_numpy_dtype) for k, s in specs.items()
    }
    at = 0
    for batch in batches:
        for key, values in batch.items():
            kept[key][at : at + len(values)] = values
        at += len(batch["id"])
    kept = {key: column[:at] for key, column in kept.items()}
    digest = kept.pop(DIGEST)
    return (DeviceStore if kind == "device" else MemoryStore)(kept, digest), ""


def _decoded(
    source: Source,
    task: Task,
    split: str,
    dropped: np.ndarray,
    block: int,
    warned: Warnings,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the decoded examples of a split that are not excluded, in the order of the
    source.

    Each has a digest of the fields that are not short, such as the pixels of an image.
    Large blocks need memory, because several are decoded at once: 256 images of 224
    pixels increased the peak by 100 MB.
    """
    count = source.info.splits[split]
    raw = source.examples(split).take(count)
    if len(dropped):  # before decoding, which fails for some of them
        raw = raw.filter(lambda example: tf.reduce_all(example["id"] != dropped))

    def decode(example: Example) -> Example:
        found = task.decode(example)
        long = [
            tf.io.serialize_tensor(found[n])
            for n in sorted(found)
            if not is_short(found[n])
        ]
        content = tf.strings.join(["", *long])
        return {**found, DIGEST: tf.strings.to_hash_bucket_fast(content, tf.int64.max)}

    decoded = raw.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    at = 0
    try:
        for batch in with_options(decoded.batch(block).prefetch(2)).as_numpy_iterator():
            yield batch
            at += len(batch["id"])
            warned.passed(at)
            progress_bar.count("decoding", at, count)
    except READ_ERRORS as error:
        columns = source.columns(split)  # names a damaged record, if there are records
        left = np.flatnonzero(~np.isin(columns["id"], dropped))[at : at + block]
        OnTheFly(source, task, split, {}, columns).take(left)
        raise UsageError(
            f"the split {split!r} cannot be read after {at} examples: {reason(error)}"
        ) from None
    if not count - len(dropped) <= at <= count:
        raise UsageError(
            f"the split {split!r} should have {count} examples, but {at} were read"
        )


def training(split: Split, options: TrainConfig, seed: int) -> Batches:
    """Batches of all epochs; each epoch is a new permutation, whose remainder is
    dropped.
    """
    batch_size = options.batch_size
    steps_per_epoch = len(split) // batch_size
    if not steps_per_epoch:
        raise UsageError(
            f"--train.batch-size {batch_size}: the split 'train' has only {len(split)}"
            " examples"
        )
    last_step = options.epochs * steps_per_epoch
    if options.steps is not None:
        last_step = min(last_step, options.steps)
    return TrainingBatches(
        split=split,
        order=EpochOrder(len(split), seed),
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        last_step=last_step,
    )


def evaluation(split: Split, options: TrainConfig, replicas: int = 1) -> Batches:
    """One pass in the order of the source; padding repeats the last example with weight
    0.

    Batches are four times as large as in training, because they need less memory
    without gradients. All `replicas` get parts of the same size, even if a part is only
    padding: with an empty part, Keras crashes or returns NaN.
    """
    largest = min(4 * options.batch_size, len(split))
    batch_size = -(-largest // replicas) * replicas
    steps = -(-len(split) // batch_size)
    return EvaluationBatches(
        split=split, batch_size=batch_size, steps_per_epoch=steps, last_step=steps
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SplitBatches(Batches):
    """Batches of the examples of a split."""

    split: Split

    @property
    def device_cache(self) -> DeviceCache | None:
        return self.split.store.device_cache

    def raise_if_undecodable(self, first: int, last: int) -> None:
        if isinstance(self.split.store, MemoryStore):
            return
        for step in range(first, last):
            self.split.store.take(self.rows(step))

    def _read(self, index: tf.data.Dataset, part: ReplicaPart) -> tf.data.Dataset:
        """Adds the fields to batches of `row`, `epoch` and `weight`."""
        store = self.split.store

        def fields(batch: Example) -> Example:
            others = {name: batch[name] for name in ("epoch", "weight")}
            return {**store.gather(batch[ROW]), **others}

        # Only decoding gets faster with more parallel calls, and each needs the memory
        # of a batch. Only decoding may run a user's functions, which autograph must
        # convert; that takes 0.2 s.
        if isinstance(store, OnTheFly):
            parallel = tf.data.AUTOTUNE
        else:
            parallel = 2
            fields = tf.autograph.experimental.do_not_convert(fields)
        batches = index.map(fields, num_parallel_calls=parallel, deterministic=True)
        return batches.prefetch(2 * part.count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingBatches(_SplitBatches):
    """Batches of all epochs, in the order of `EpochOrder`."""

    order: EpochOrder

    def order_checksum(self, epoch: int) -> int:
        return self.order.checksum(epoch)

    def rows(self, step: int) -> np.ndarray:
        epoch, within = divmod(step, self.steps_per_epoch)
        return self._rows(epoch, within, within + 1)

    def _rows(self, epoch: int, first: int, last: int) -> np.ndarray:
        """The rows of the steps `first` ... `last` - 1 of an epoch."""
        size = self.batch_size
        return self.split.rows[self.order.positions(epoch, first * size, last * size)]

    def dataset(
        self, first_step: int, part: ReplicaPart = WHOLE_BATCH
    ) -> tf.data.Dataset:
        size = self.batch_size // part.total
        # The rows of many steps at once: of a whole epoch, unless it is very long.
        chunk = min(self.steps_per_epoch, max(1, _CHUNK // self.batch_size))
        chunks = -(-self.steps_per_epoch // chunk)

        def chunk_of(step: int) -> int:
            epoch, within = divmod(step, self.steps_per_epoch)
            return epoch * chunks + within // chunk

        def chunk_rows(number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """The rows of the parts of a chunk, int64 (parts, size), and the epoch of
            each part.
            """
            epoch, index = divmod(int(number), chunks)
            start = epoch * self.steps_per_epoch
            first = max(index * chunk, first_step - start)
            last = min((index + 1) * chunk, self.end_of(epoch) - start)
            rows = self._rows(epoch, first, last)
            parts = rows.reshape(last - first, part.total, size)
            mine = parts[:, part.first : part.first + part.count].reshape(-1, size)
            return mine, np.full(len(mine), epoch)

        def batches(rows: tf.Tensor, epoch: tf.Tensor) -> tf.data.Dataset:
            rows.set_shape((None, size))
            epoch.set_shape((None,))
            return tf.data.Dataset.from_tensor_slices((rows, epoch))

        def index(rows: tf.Tensor, epoch: tf.Tensor) -> Example:
            weight = tf.ones_like(rows, tf.float32)
            return {ROW: rows, "epoch": tf.zeros_like(rows) + epoch, "weight": weight}

        end = chunk_of(self.last_step - 1) + 1 if first_step < self.last_step else 0
        numbers = tf.data.Dataset.range(chunk_of(first_step), end)
        orders = numbers.map(
            lambda number: tf.numpy_function(chunk_rows, [number], (tf.int64, tf.int64))
        )
        count = (self.last_step - first_step) * part.count
        cardinality = tf.data.experimental.assert_cardinality(max(count, 0))
        parts = orders.prefetch(1).flat_map(batches).apply(cardinality)
        return self._read(parts.map(index), part)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationBatches(_SplitBatches):
    """One pass in the order of the source."""

    def rows(self, step: int) -> np.ndarray:
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        return self.split.rows[np.minimum(positions, len(self.split) - 1)]

    def dataset(
        self, first_step: int, part: ReplicaPart = WHOLE_BATCH
    ) -> tf.data.Dataset:
        size = self.batch_size // part.total
        rows = tf.constant(self.split.rows)

        def index(number: tf.Tensor) -> Example:
            start = number // part.count * self.batch_size
            start += (part.first + number % part.count) * size
            positions = start + tf.range(size, dtype=tf.int64)
            return {
                ROW: tf.gather(rows, tf.minimum(positions, len(self.split) - 1)),
                "epoch": tf.zeros_like(positions),
                "weight": tf.cast(positions < len(self.split), tf.float32),
            }

        numbers = tf.data.Dataset.range(
            first_step * part.count, self.last_step * part.count
        )
        return self._read(numbers.map(index), part)
