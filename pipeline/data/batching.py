"""Decodes and caches the examples of a source, and makes batches of them."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import tensorflow as tf

from pipeline.config.config import Config
from pipeline.config.sections import TrainConfig
from pipeline.contracts import (
    WHOLE_BATCH,
    Batches,
    Decision,
    Example,
    ReplicaPart,
    Source,
    Task,
)
from pipeline.data import block_decoding, cache, decoder_warnings, epoch_order
from pipeline.data.decoder_warnings import DecoderWarnings
from pipeline.data.epoch_order import EpochOrder
from pipeline.data.example_store import (
    DIGEST,
    ROW,
    DeviceCache,
    DeviceStore,
    MemoryStore,
    OnTheFly,
    Store,
    decode_arrays,
    decoded_specs,
    short_columns,
    trace,
)
from pipeline.data.raw_split import RawSplit
from pipeline.data.splits import Split
from pipeline.utils import progress_bar
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError, reason
from pipeline.utils.tf_data import (
    READ_ERRORS,
    as_tensor,
    empty,
    is_short,
    row_bytes,
    with_options,
    without_autograph,
)

_BLOCK_BYTES = 8 << 20  # of decoded examples; several blocks are decoded at once
_SMALL_BYTES = 1 << 20  # of decoded examples, in a batch
_FEW_BATCHES = 64
_CHUNK_ROWS = 1 << 18  # read from the order of the epoch at once


def load(
    included: Mapping[str, RawSplit],
    parts: Mapping[str, RawSplit],
    task: Task,
    config: Config,
    excluded: Collection[int] = (),
) -> tuple[dict[str, Split], list[Decision]]:
    """Loads splits; decodes all examples if a cache has space for them.

    `included` are the splits of the source without the ids `excluded`, of which `parts`
    are the splits of the run.
    """
    source = parts["train"].source
    specs = decoded_specs(source, task)
    decision = cache.choose(source, specs, config.data)
    excluded_ids = np.fromiter(excluded, np.int64)
    stores: dict[str, Store] = {}
    reasons = [decision.reason]
    warnings: list[Decision] = []
    if decision.value != "none":
        progress_bar.stage("decoding", f"{sum(source.info.splits.values()):,} examples")
    for name, split in included.items():
        with decoder_warnings.collect() as split_warnings:
            store, note = _create_store(
                decision.value,
                split,
                task,
                specs,
                config,
                excluded_ids,
                split_warnings,
            )
        if split_warnings.lines:
            undecoded = OnTheFly(source, task, name, {}, source.columns(name))
            warnings += split_warnings.notes(undecoded, source.location)
        if note:
            reasons.append(f"{name} {note}")
        rows = _rows(store, split, included)
        columns = {key: values[rows] for key, values in store.short.items()}
        task.check(columns, name, source.location)
        stores[name] = store
    decisions = [dataclasses.replace(decision, reason="; ".join(reasons)), *warnings]
    if len(parts["train"]) > epoch_order.MAX_COUNT and config.train.shuffle:
        size = f"blocks of {epoch_order.BLOCK:,} examples"
        reason = f"{size} are shuffled, then the examples within each, to save memory"
        decisions.append(Decision("order", "in blocks", reason))
    splits = {}
    for name, part in parts.items():
        store = stores[part.source_split]
        splits[name] = Split(store, _rows(store, part, included), part)
    return splits, decisions


def _rows(store: Store, part: RawSplit, included: Mapping[str, RawSplit]) -> np.ndarray:
    """The rows of a store that have the examples of a split, int64 (examples,).

    A cache has a row for each example that is included; without one, the row is the
    position in the source.
    """
    cached = included[part.source_split].positions
    if isinstance(store, OnTheFly) or len(cached) == len(part.columns["id"]):
        return part.positions
    return np.searchsorted(cached, part.positions)


def _create_store(
    kind: str,
    part: RawSplit,
    task: Task,
    specs: Mapping[str, tf.TensorSpec],
    config: Config,
    excluded: np.ndarray,
    warnings: DecoderWarnings,
) -> tuple[Store, str]:
    """A store with the examples of one of the source's splits, and a note about it."""
    source = part.source
    split = part.source_split
    if kind == "none":
        columns = source.columns(split)
        short = short_columns(source, task, split, columns, part.positions)
        return OnTheFly(source, task, split, specs, short), ""
    store_type = DeviceStore if kind == "device" else MemoryStore
    arrays = source.arrays(split) if task.decodes_batches else None
    if arrays is not None and kind != "disk":
        columns = _decode_arrays(arrays, part, task)
        digest = block_decoding.digests(columns, specs, len(part))
        return store_type(_tensors(columns), digest), ""
    specs = {**specs, DIGEST: tf.TensorSpec((), tf.int64)}
    block = max(1, min(256, _BLOCK_BYTES // max(1, row_bytes(specs))))
    batches = _decode(source, task, split, excluded, block, warnings)
    if kind == "disk":
        folder, state = cache.directory_and_state(config, source, task, split, excluded)
        return cache.load_or_build(folder, state, specs, batches)
    columns = _concatenate(batches, specs, source.info.splits[split])
    digest = columns.pop(DIGEST)
    return store_type(_tensors(columns), digest), ""


def _tensors(columns: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: as_tensor(column) for name, column in columns.items()}


def _concatenate(
    batches: Iterator[dict[str, np.ndarray]],
    specs: Mapping[str, tf.TensorSpec],
    count: int,
) -> dict[str, np.ndarray]:
    """Concatenates batches of up to `count` examples."""
    # With `np.concatenate`, the memory of the batches is not returned to the system.
    columns = {
        name: empty((count, *spec.shape), spec.dtype.as_numpy_dtype)
        for name, spec in specs.items()
    }
    start = 0
    for batch in batches:
        end = start + len(batch["id"])
        for name, values in batch.items():
            columns[name][start:end] = values
        start = end
    return {name: column[:start] for name, column in columns.items()}


def _decode_arrays(
    arrays: Mapping[str, np.ndarray], part: RawSplit, task: Task
) -> dict[str, np.ndarray]:
    """The decoded fields of examples in memory, (examples, ...), many at a time."""
    specs, unchanged = trace(part.source, task)
    columns = {}
    changed = {}
    for name, spec in specs.items():
        shape = (len(part), *spec.shape)
        columns[name] = empty(shape, spec.dtype.as_numpy_dtype)
        if name in unchanged:
            values = arrays[unchanged[name]]
            np.take(values, part.positions, 0, columns[name], mode="clip")  # unbuffered
        else:
            changed[name] = columns[name]
    decode_arrays(part.source, task, part.source_split, part.positions, specs, changed)
    return columns


def _decode(
    source: Source,
    task: Task,
    split: str,
    excluded: np.ndarray,
    block: int,
    warnings: DecoderWarnings,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields blocks of decoded examples of a split, in the order of the source.

    Each example has a digest of the fields that are not short, such as the pixels of an
    image. Large blocks need memory, because several are decoded at once: 256 images of
    224 pixels increased the peak by 100 MB.
    """
    count = source.info.splits[split]
    raw = source.examples(split).take(count)
    if len(excluded):  # before decoding, which may fail for these examples
        raw = raw.filter(lambda example: tf.reduce_all(example["id"] != excluded))

    def decode(example: Example) -> Example:
        fields = task.decode(example)
        long_names = sorted(name for name in fields if not is_short(fields[name]))
        long_fields = [tf.io.serialize_tensor(fields[name]) for name in long_names]
        content = tf.strings.join(["", *long_fields])
        digest = tf.strings.to_hash_bucket_fast(content, tf.int64.max)
        return {**fields, DIGEST: digest}

    decoded = raw.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    blocks = with_options(decoded.batch(block).prefetch(2))
    done = 0
    try:
        for batch in blocks.as_numpy_iterator():
            yield batch
            done += len(batch["id"])
            warnings.mark_decoded(done)
            progress_bar.count("decoding", done, count)
    except READ_ERRORS as error:
        columns = source.columns(split)  # raises an error that names a damaged record
        included = np.flatnonzero(~np.isin(columns["id"], excluded))
        # Raises an error that names a damaged example.
        OnTheFly(source, task, split, {}, columns).take(included[done : done + block])
        raise UsageError(
            f"the split {split!r} cannot be read after {done} examples: {reason(error)}"
        ) from None
    if not count - len(excluded) <= done <= count:
        raise UsageError(
            f"the split {split!r} should have {count} examples, but {done} were read"
        )


def training(split: Split, options: TrainConfig, seed: int) -> Batches:
    """Batches of all epochs.

    Each pass is a new permutation of the examples; those that do not fill a batch are
    left out. Without shuffling, they begin the next pass.
    """
    batch_size = options.batch_size
    if options.accumulate == 1:
        batch_size = min(batch_size, len(split))
    steps_per_pass = len(split) // max(batch_size, 1)
    if not steps_per_pass:
        raise UsageError(
            f"--train.batch-size {batch_size}: the split 'train' has only"
            f" {pluralize(len(split), 'example')}; set at most {len(split)}"
        )
    steps_per_epoch = options.steps_per_epoch or steps_per_pass
    last_step = options.epochs * steps_per_epoch
    if options.steps is not None:
        last_step = min(last_step, options.steps)
    return TrainingBatches(
        split=split,
        order=EpochOrder(len(split), seed) if options.shuffle else None,
        batch_size=batch_size,
        steps_per_pass=steps_per_pass,
        steps_per_epoch=steps_per_epoch,
        last_step=last_step,
    )


def evaluation(split: Split, options: TrainConfig, replicas: int = 1) -> Batches:
    """Batches of one pass in the order of the source.

    The last batch is padded with the last example, with weight 0. Batches are four
    times as large as in training, because they need less memory without gradients; and
    larger if there would be many of small examples, each of which takes a while. All
    `replicas` get parts of the same size, even if a part is only padding: with an empty
    part, Keras crashes or returns NaN.
    """
    small = _SMALL_BYTES // max(1, row_bytes(split.store.specs))
    largest = max(4 * options.batch_size, min(small, -(-len(split) // _FEW_BATCHES)))
    largest = min(largest, len(split))
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

        def add_fields(batch: Example) -> Example:
            fields = store.gather(batch[ROW])
            return {**fields, "epoch": batch["epoch"], "weight": batch["weight"]}

        # Only decoding gets faster with more parallel calls, and each needs the memory
        # of a batch. Only decoding may run a user's functions, which autograph must
        # convert.
        if isinstance(store, OnTheFly):
            parallel = tf.data.AUTOTUNE
        else:
            parallel = 2
            add_fields = without_autograph(add_fields)
        batches = index.map(add_fields, num_parallel_calls=parallel, deterministic=True)
        return batches.prefetch(2 * part.count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingBatches(_SplitBatches):
    """Batches of all epochs.

    The examples are in the order of `EpochOrder` in each pass, which need not end with
    an epoch; or without an `order`, in that of the split, again and again. The field
    `epoch` of a batch is the number of its pass.
    """

    order: EpochOrder | None
    steps_per_pass: int

    def order_checksum(self, epoch: int) -> int:
        if self.order is None:
            return 0
        return self.order.checksum(epoch * self.steps_per_epoch // self.steps_per_pass)

    def rows(self, step: int) -> np.ndarray:
        return self._rows(step, step + 1)

    def _rows(self, first: int, last: int) -> np.ndarray:
        """The rows of the steps `first` to `last` - 1, which are in one pass."""
        size = self.batch_size
        if self.order is None:
            positions = np.arange(first * size, last * size) % len(self.split)
            return self.split.rows[positions]
        number, within = divmod(first, self.steps_per_pass)
        end = within + last - first
        positions = self.order.positions(number, within * size, end * size)
        return self.split.rows[positions]

    def dataset(
        self, first_step: int, part: ReplicaPart = WHOLE_BATCH
    ) -> tf.data.Dataset:
        size = self.batch_size // part.total
        # The rows of many steps at once: of a whole pass, unless it is very long.
        chunk = min(self.steps_per_pass, max(1, _CHUNK_ROWS // self.batch_size))
        chunks_per_pass = -(-self.steps_per_pass // chunk)

        def chunk_of(step: int) -> int:
            number, within = divmod(step, self.steps_per_pass)
            return number * chunks_per_pass + within // chunk

        def chunk_rows(number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """The rows of each part of a chunk, int64 (parts, size), and its pass."""
            pass_number, index = divmod(int(number), chunks_per_pass)
            start = pass_number * self.steps_per_pass
            end = min(start + self.steps_per_pass, self.last_step)
            first = max(start + index * chunk, first_step)
            last = min(start + (index + 1) * chunk, end)
            rows = self._rows(first, last)
            rows = rows.reshape(last - first, part.total, size)
            rows = rows[:, part.first : part.first + part.count].reshape(-1, size)
            return rows, np.full(len(rows), pass_number)

        @without_autograph
        def batches(rows: tf.Tensor, epoch: tf.Tensor) -> tf.data.Dataset:
            rows.set_shape((None, size))
            epoch.set_shape((None,))
            return tf.data.Dataset.from_tensor_slices((rows, epoch))

        @without_autograph
        def index(rows: tf.Tensor, epoch: tf.Tensor) -> Example:
            weight = tf.ones_like(rows, tf.float32)
            return {ROW: rows, "epoch": tf.zeros_like(rows) + epoch, "weight": weight}

        end = chunk_of(self.last_step - 1) + 1 if first_step < self.last_step else 0
        numbers = tf.data.Dataset.range(chunk_of(first_step), end)

        @without_autograph
        def rows_of_chunk(number: tf.Tensor) -> list[tf.Tensor]:
            return tf.numpy_function(chunk_rows, [number], (tf.int64, tf.int64))

        chunks = numbers.map(rows_of_chunk)
        count = (self.last_step - first_step) * part.count
        assert_count = tf.data.experimental.assert_cardinality(max(count, 0))
        parts = chunks.prefetch(1).flat_map(batches).apply(assert_count)
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

        @without_autograph
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
