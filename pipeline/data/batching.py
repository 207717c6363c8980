"""From a source and a task to batches: decode, cache, split, order, batch, pad, prefetch."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config.config import Config, Data, Train
from pipeline.contracts import Batches, Decision, Example, Share, Source, Task
from pipeline.data import cache_policy, disk_cache, sequential_batches
from pipeline.data.example_store import (
    DIGEST,
    Device,
    Memory,
    OnTheFly,
    Sequential,
    Store,
    decoded_specs,
    undecodable,
)
from pipeline.data.splits import PARTS, Split, divide, require_apart, shares, without_copies
from pipeline.utils.errors import UsageError, reason
from pipeline.utils.tf_data import READ_ERRORS, without_autotune

_WHOLE = Share()
_AT_ONCE = 8 << 20  # bytes that are decoded into one block, of which several are under way
_Places = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
"""Positions in a split, int64; their weights, float32; the epoch, int64 and a scalar."""


def load(
    source: Source,
    task: Task,
    config: Config,
    dropped: Mapping[int, str] | None = None,
    groups: Mapping[int, int] | None = None,
    known: Mapping[str, np.ndarray] | None = None,
) -> tuple[dict[str, Split], list[Decision]]:
    """Decodes everything once, unless there is no room for it, and divides it into the splits.

    Args:
        source: Where the examples come from: that of `config.source`.
        task: Decodes and checks them: that of `config.task`.
        config: Of it the shares and the cache of `data`.
        dropped: Ids of examples to leave out.
        groups: Id -> group of those that are nearly the same: of each group that is divided, only
            what is held out is kept.
        known: Split -> ids of an earlier run that stay in it.

    Raises:
        UsageError: The data do not fit into memory, a split is empty, a label is wrong.
    """
    options = config.data
    decision = cache_policy.decided(source, task, options)
    splits, notes, left_out = {}, [], np.fromiter(dropped or {}, np.int64)
    for name in source.info.splits:
        store, note = _store(decision.value, source, task, config, name, left_out)
        notes += [f"{name} {note}"] * bool(note)
        rows = np.flatnonzero(~np.isin(store.short["id"], left_out))
        splits[name] = Split(store, rows)
        short = {key: splits[name].column(key) for key in store.short}
        task.check(short, name, source.location)
    decisions = [dataclasses.replace(decision, reason="; ".join([decision.reason, *notes]))]
    known, copies = known or {}, {}
    held_out = shares(source.info.splits, options, known)
    if held_out:
        value = ", ".join(f"{share:g} for {name}" for name, share in held_out.items())
        decisions.append(Decision("splits", value, _how(splits["train"], options, known)))
        divided = divide(splits["train"], held_out, options.split_seed, known)
        divided, copies = without_copies(divided, groups or {})
        splits.update(divided)
        if copies:
            value = ", ".join(f"{count:,} of {name}" for name, count in copies.items())
            reason = "near duplicates of examples that are held out for test or validation"
            decisions.append(Decision("excluded", value, reason))
    require_apart(splits, source.location, options.splits)
    for name, split in splits.items():
        if not len(split):
            raise UsageError(
                f"the split {name!r} is empty; change --data.validation, --data.test or the source"
                + "".join(f"; {note}" for note in source.info.notes)
                + _cleaned(len(left_out), copies)
            )
    return {name: splits[name] for name in PARTS if name in splits}, decisions


def _cleaned(dropped: int, copies: Mapping[str, int]) -> str:
    """What cleaning has to do with an empty split, for the end of a message."""
    near = sum(copies.values())
    said = f"; cleaning excluded {dropped + near:,} examples" if dropped or near else ""
    more = f", {near:,} of them as near duplicates (--clean.no-near keeps those)" if near else ""
    return said + more


def _how(train: Split, options: Data, known: Mapping[str, np.ndarray]) -> str:
    """What decided who is held out; `train` is still whole.

    Raises UsageError if the earlier run, whose splits are kept, had other data.
    """
    reason = "held out of train by a hash of the ids"
    if "group" in train.store.short:
        _, counts = np.unique(train.store.short["group"], return_counts=True)
        reason = (
            "held out of train by a hash of the group; "
            f"{len(counts):,} groups, the largest of {counts.max():,} examples"
        )
    if options.splits is None:
        return reason
    before = np.concatenate([np.zeros(0, np.int64), *known.values()])
    there = int(np.isin(before, train.column("id")).sum())
    if not there and options.limit is None:
        raise UsageError(
            f"--data.splits: none of the {len(before):,} examples of {options.splits} is in this "
            "source; give a run of these data"
        )
    reason = f"{there:,} as in {options.splits}, the others {reason}"
    if there == len(before):
        return reason
    where = "here" if options.limit is None else "in this sample"
    return reason + f"; {len(before) - there:,} of its examples are not {where}"


def _store(
    kind: str, source: Source, task: Task, config: Config, split: str, dropped: np.ndarray
) -> tuple[Store, str]:
    """The decoded examples of one of the source's splits, and what is to be said of that."""
    specs = decoded_specs(source, task)
    count = source.info.splits[split]
    if kind == "none":
        columns = source.columns(split).items()
        short = {name: values for name, values in columns if name in specs}
        kind = Sequential if source.reader(split) is None else OnTheFly
        return kind(source, task, split, specs, short), ""

    if "image" in specs:
        specs[DIGEST] = tf.TensorSpec((), tf.int64)
    each = sum(spec.dtype.size * spec.shape.num_elements() for spec in specs.values())
    at_once = max(1, min(256, _AT_ONCE // max(1, each)))

    def batches() -> Iterator[dict[str, np.ndarray]]:
        return _decoded(source, task, split, count, dropped, at_once)

    if kind == "disk":
        place = cache_policy.place(config, source, task, split, dropped)
        return disk_cache.obtained(place, specs, count, batches)
    columns = {k: np.empty((count, *s.shape), s.dtype.as_numpy_dtype) for k, s in specs.items()}
    at = 0
    for batch in batches():
        for key, values in batch.items():
            columns[key][at : at + len(values)] = values
        at += len(batch["id"])
    columns = {key: column[:at] for key, column in columns.items()}
    digest = columns.pop(DIGEST, None)
    return {"memory": Memory, "device": Device}[kind](columns, digest), ""


def _decoded(
    source: Source, task: Task, split: str, count: int, dropped: np.ndarray, at_once: int
) -> Iterator[dict[str, np.ndarray]]:
    """The examples of a split that are not left out, decoded, in the source's order.

    Each with a digest of its pixels, by which copies are found. So many `at_once`, and several such
    blocks are under way: 256 pictures of 224 pixels at once raised the peak by 100 MB.
    """
    raw = source.examples(split).take(count)
    if len(dropped):  # before they are decoded: some of them cannot be
        raw = raw.filter(lambda example: tf.reduce_all(example["id"] != dropped))

    def decode(example: Example) -> Example:
        found = task.decode(example)
        if "image" not in found:
            return found
        content = tf.io.serialize_tensor(found["image"])
        return {**found, DIGEST: tf.strings.to_hash_bucket_fast(content, tf.int64.max)}

    decoded = raw.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    at = 0
    try:
        for batch in without_autotune(decoded.batch(at_once).prefetch(2)).as_numpy_iterator():
            yield batch
            at += len(batch["id"])
    except READ_ERRORS as error:
        _name_undecodable(source, task, raw.skip(at).take(at_once))
        source.columns(split)  # names a damaged record, where there are records
        raise UsageError(
            f"the split {split!r} cannot be read after {at} examples: {reason(error)}"
        ) from None
    if not count - len(dropped) <= at <= count:
        raise UsageError(f"the split {split!r} should hold {count} examples, but {at} were read")


def _name_undecodable(source: Source, task: Task, raw: tf.data.Dataset) -> None:
    """Raises UsageError for the first of these examples that can be read but not decoded."""
    with contextlib.suppress(*READ_ERRORS):  # it cannot even be read
        for example in raw:
            try:
                task.decode(example)
            except READ_ERRORS as error:
                raise undecodable(source, int(example["id"]), error) from None


def training(split: Split, options: Train, seed: int) -> Batches:
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

    if isinstance(split.store, Sequential):
        return sequential_batches.batches(split, batch_size, steps_per_epoch, last_step, seed)

    def order(step: tf.Tensor, places: tf.Tensor) -> _Places:
        epoch = step // steps_per_epoch
        # tf.random.experimental.index_shuffle has 4 rounds, with which two epochs of 50,000
        # examples correlate at 0.72; with 16 they are independent (-0.003).
        positions = tf.raw_ops.RandomIndexShuffle(
            index=(step % steps_per_epoch) * batch_size + places,
            seed=tf.stack([tf.constant(seed, tf.int64), epoch, 0]),
            max_index=tf.constant(len(split) - 1, tf.int64),  # inclusive
            rounds=16,
        )
        return positions, tf.ones(places.shape), epoch

    return _batches(split, order, batch_size, steps_per_epoch, last_step)


def evaluation(split: Split, options: Train, replicas: int = 1) -> Batches:
    """One pass in the order of the source; padding repeats the last example with weight 0.

    Batches are four times as large as in training: without gradients they need less memory. Each
    of the `replicas` has a part of the same size, even where it is nothing but padding: Keras
    crashes on an empty part, or makes NaN of it.
    """
    largest = min(4 * options.batch_size, len(split))
    batch_size = -(-largest // replicas) * replicas
    steps = -(-len(split) // batch_size)
    if isinstance(split.store, Sequential):
        return sequential_batches.batches(split, batch_size, steps, steps)

    def order(step: tf.Tensor, places: tf.Tensor) -> _Places:
        positions = step * batch_size + places
        weight = tf.cast(positions < len(split), tf.float32)
        positions = tf.minimum(positions, tf.constant(len(split) - 1, tf.int64))
        return positions, weight, tf.zeros([], tf.int64)

    return _batches(split, order, batch_size, steps, steps)


def _batches(
    split: Split,
    order: Callable[[tf.Tensor, tf.Tensor], _Places],
    batch_size: int,
    steps_per_epoch: int,
    last_step: int,
) -> Batches:
    """From a function of a step and places in its batch, int64 of shape (part,)."""
    rows = tf.constant(split.rows)
    # Only decoding gains from more; each of them holds a batch.
    parallel = tf.data.AUTOTUNE if isinstance(split.store, OnTheFly) else 2

    def tickets(first_step: int, share: Share = _WHOLE) -> tf.data.Dataset:
        size = batch_size // share.of

        def part(number: tf.Tensor) -> Any:
            start = (share.first + number % share.count) * size
            places = start + tf.range(size, dtype=tf.int64)
            positions, weight, epoch = order(number // share.count, places)
            ticket = split.store.ticket(tf.gather(rows, positions))
            return {**ticket, "weight": weight, "epoch": tf.fill(weight.shape, epoch)}

        parts = tf.data.Dataset.range(first_step * share.count, last_step * share.count)
        parts = parts.map(part, num_parallel_calls=parallel, deterministic=True)
        return parts.prefetch(2 * share.count)

    def explain(first: int, end: int) -> None:
        for step in range(first, end):
            places = tf.range(batch_size, dtype=tf.int64)
            positions, *_ = order(tf.constant(step, tf.int64), places)
            split.store.raise_if_undecodable(split.rows[positions.numpy()])

    return Batches(
        tickets=tickets,
        materialize=split.store.materialize,
        raise_if_undecodable=explain,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        last_step=last_step,
    )
