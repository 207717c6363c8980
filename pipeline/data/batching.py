"""From a source and a task to batches: decode, cache, split, order, batch, pad,
prefetch.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config.config import Config, Train
from pipeline.contracts import Batches, Decision, Example, Share, Source, Task
from pipeline.data import cache, decoder_warnings, seeds
from pipeline.data.decoder_warnings import Warnings
from pipeline.data.example_store import (
    DIGEST,
    PLACE,
    Copies,
    Device,
    Memory,
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

_WHOLE = Share()
_BLOCK = 8 << 20  # bytes of decoded examples in one block; several are decoded at once


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
    return (Device if kind == "device" else Memory)(kept, digest), ""


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


def training(split: Split, options: Train, seed: int) -> Batches:
    """Batches of all epochs; each epoch is a new permutation, whose remainder is
    dropped.

    The batch of a step is a pure function of (seed, step), so a resumed run sees the
    same batches. The place of a ticket is one number, from which the device computes
    the rows of its examples.
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
    per_epoch = steps_per_epoch * batch_size
    # Seeds of an epoch that does not exist: three for offsets, and one for each
    # position.
    keys = seeds.example_seeds(
        seed, -2, tf.range(-3, len(split), dtype=tf.int64)
    ).numpy()
    fixed = np.argsort(keys[3:])
    tables = {"fixed": tf.constant(fixed), "rows": tf.constant(split.rows[fixed])}
    copies = Copies(lambda: tables)

    def rows(start: tf.Tensor, size: int, tables: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """The rows of `size` examples from number `start` of the run on.

        Three lookups in a fixed permutation, each after a shift by a random offset of
        the epoch. Unlike `RandomIndexShuffle`, these operations also run on GPUs.
        """
        found = start % per_epoch + tf.range(size, dtype=tf.int64)
        offsets = seeds.integers(tf.constant(keys[:3]), len(split), start // per_epoch)
        for draw, name in enumerate(("fixed", "fixed", "rows")):
            found = tf.gather(tables[name], (found + offsets[draw]) % len(split))
        return found

    def materialize(ticket: Any, parts: int = 1) -> Example:
        found = rows(ticket[PLACE], batch_size // parts, copies.here())
        epoch = tf.zeros_like(found) + ticket[PLACE] // per_epoch
        return split.store.batch(ticket, found, epoch, tf.ones(found.shape))

    def order(start: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
        return rows(start, size, tables), start

    return _batches(split, order, materialize, batch_size, steps_per_epoch, last_step)


def evaluation(split: Split, options: Train, replicas: int = 1) -> Batches:
    """One pass in the order of the source; padding repeats the last example with weight
    0.

    Batches are four times as large as in training, because they need less memory
    without gradients. All `replicas` get parts of the same size, even if a part is only
    padding: with an empty part, Keras crashes or returns NaN.
    """
    largest = min(4 * options.batch_size, len(split))
    batch_size = -(-largest // replicas) * replicas
    steps = -(-len(split) // batch_size)
    in_order = tf.constant(split.rows)

    def order(start: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
        places = start + tf.range(size, dtype=tf.int64)
        rows = tf.gather(in_order, tf.minimum(places, len(split) - 1))
        return rows, tf.where(places < len(split), rows, -1 - rows)

    return _batches(split, order, split.store.evaluation, batch_size, steps, steps)


def _batches(
    split: Split,
    order: Callable[[tf.Tensor, int], tuple[tf.Tensor, tf.Tensor]],
    materialize: Callable[..., Example],
    batch_size: int,
    steps_per_epoch: int,
    last_step: int,
) -> Batches:
    """Batches from a function of the number of the first example and the size of a
    part; it returns the rows of its examples, int64 (size,), and their place for the
    ticket.
    """
    store = split.store
    # Only decoding gets faster with more parallel calls, and each needs the memory of a
    # batch. Only decoding may run a user's functions, which autograph must convert;
    # that takes 0.2 s.
    decodes = isinstance(store, OnTheFly)
    parallel = tf.data.AUTOTUNE if decodes else 2

    def tickets(first_step: int, share: Share = _WHOLE) -> tf.data.Dataset:
        size = batch_size // share.of

        def part(number: tf.Tensor) -> Any:
            start = (
                number // share.count * batch_size
                + (share.first + number % share.count) * size
            )
            rows, place = order(start, size)
            return {**store.sent(rows), PLACE: place}

        parts = tf.data.Dataset.range(first_step * share.count, last_step * share.count)
        converted = part if decodes else tf.autograph.experimental.do_not_convert(part)
        parts = parts.map(converted, num_parallel_calls=parallel, deterministic=True)
        return parts.prefetch(2 * share.count)

    def explain(first: int, end: int) -> None:
        if isinstance(store, Memory):
            return
        for step in range(first, end):
            store.take(
                order(tf.constant(step * batch_size, tf.int64), batch_size)[0].numpy()
            )

    return Batches(
        tickets=tickets,
        materialize=materialize,
        raise_if_undecodable=explain,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        last_step=last_step,
    )
