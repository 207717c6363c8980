"""Sections about the data: counts, examples, augmentation, cleaning."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.data import image_sizes
from pipeline.data.augmentation import Augmenter
from pipeline.data.dataset import LoadedData
from pipeline.report import examples
from pipeline.report.blocks import Block, Cards, Grid, Heading, TableBlock, Text
from pipeline.report.subject import Subject
from pipeline.utils.columns import Columns

_EXAMPLES = 12
_AUGMENTED = 6  # an even number, because some augmentations pair them
_CLASSES = 200  # rows of the table


def data(subject: Subject) -> Iterator[Block]:
    """Counts, examples with and without augmentation, and what was excluded."""
    if subject.run is None:
        return
    if subject.data is None:
        yield Text("The data of the run is not loaded here.")
        return
    yield from _counts(subject.data)
    yield from _excluded(subject)
    yield Heading("Examples of the training split")
    train = subject.data.splits["train"]
    positions = image_sizes.spread(len(train), _EXAMPLES)
    columns = train.take(positions)
    locate = subject.data.source.location
    names = [locate(id) for id in columns["id"].tolist()]
    yield Cards(examples.plain(subject.data.task, columns, names))
    yield from _augmented(subject)


def _counts(loaded: LoadedData) -> Iterator[Block]:
    """The number of examples in each split, and of each class if there are any."""
    counts = {name: len(split) for name, split in loaded.splits.items()}
    splits: list[Block] = [
        Heading("Examples of each split"),
        TableBlock(Columns(split=list(counts), examples=list(counts.values()))),
    ]
    of_split = {}
    for name, split in loaded.splits.items():
        short = {key: split.column(key) for key in split.store.short}
        classes = loaded.task.target.class_counts(short)
        if classes is None:
            yield Grid([splits])
            return
        of_split[name] = classes
    names = list(of_split["train"])
    shown = names[:_CLASSES]
    columns: dict[str, list[Any]] = {"class": shown}
    for name, classes in of_split.items():
        columns[name] = [classes[key] for key in shown]
    of_class: list[Block] = [
        Heading("Examples of each class"),
        TableBlock(Columns(columns)),
    ]
    if len(names) > len(shown):
        of_class.append(Text(f"... and {len(names) - len(shown):,} more classes."))
    yield Grid([splits, of_class])


def _excluded(subject: Subject) -> Iterator[Block]:
    """What the cleaning of the run has left out, and why."""
    reasons = list(subject.data.cleaning.excluded.values()) if subject.data else []
    if not reasons:
        return
    names, counts = np.unique(reasons, return_counts=True)
    yield Heading("Excluded examples")
    yield TableBlock(Columns(reason=names.tolist(), examples=counts.tolist()))
    gallery = subject.run and subject.run.directory / "gallery.html"
    if gallery and gallery.is_file():
        yield Text(f"{gallery} shows them.")


def _augmented(subject: Subject) -> Iterator[Block]:
    """Examples as the network sees them in two epochs."""
    if subject.run is None or subject.data is None:
        return
    config = subject.run.config
    if not config.data.augment:
        return
    task = subject.data.task
    train = subject.data.splits["train"]
    columns = train.take(image_sizes.spread(len(train), _AUGMENTED))
    count = len(columns["id"])
    batch = {name: tf.constant(values) for name, values in columns.items()}
    augmenter = Augmenter(
        config.data.augment, config.runtime.seed, task.target.spatial_fields
    )
    yield Heading(f"With augmentation: {', '.join(config.data.augment)}")
    for epoch in (0, 1):
        batch["epoch"] = tf.fill([count], tf.constant(epoch, tf.int64))
        after = {name: np.asarray(value) for name, value in augmenter(batch).items()}
        yield Cards(examples.plain(task, after, [f"epoch {epoch + 1}"] * count))
