"""Pictures of the data: examples of each class, histograms, augmentations before and after."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import registry
from pipeline.data.augmentation import Augmenter
from pipeline.data.splits import Split
from pipeline.evaluation import dataset_stats
from pipeline.utils import html_pages
from pipeline.utils.errors import UsageError
from pipeline.utils.html_pages import Picture, Row, Section

_PER_CLASS = 8  # pictures
_ALL_CLASSES = 400  # pictures
_AUGMENTED = 6  # pictures before and after; an even number, as some augmentations pair them
_HISTOGRAMS = 24


def examples(train: Split, names: Sequence[str], location: Callable[[int], str]) -> Section:
    """A row of pictures for each class, evenly spread over its examples.

    Args:
        train: Has `image` and `label`.
        names: Of the classes.
        location: Id -> where the example comes from.
    """
    each = max(2, min(_PER_CLASS, _ALL_CLASSES // len(names)))
    shown = names[: _ALL_CLASSES // each]
    labels, rows = train.column("label"), []
    for label, name in enumerate(shown):
        places = np.flatnonzero(labels == label)
        if not len(places):
            rows.append(Row([], name, "no examples"))
            continue
        some = train.take(places[dataset_stats.spread(len(places), each)])
        titles = [f"{name}: {location(int(id))}" for id in some["id"]]
        rows.append(_row(some["image"], titles, name))
    more = len(names) - len(shown)
    text = f"{more:,} more classes are not shown." if more else ""
    return Section("Examples of each class in train", text, rows)


def histograms(train: Split, feature_names: Sequence[str] | None) -> list[Section]:
    """The distribution of each number in the short fields; no section if there are none."""
    from matplotlib.figure import Figure

    columns: dict[str, np.ndarray] = {}
    for field, values in train.store.short.items():
        if field not in ("id", "group") and values.dtype.kind in "iuf":
            numbers = train.column(field).reshape(len(train), -1)
            names = [field, *(f"{field} {i}" for i in range(1, numbers.shape[1]))]
            if field == "features" and feature_names:
                names = list(feature_names)
            columns.update(zip(names, numbers.T, strict=True))
    shown = list(columns.items())[:_HISTOGRAMS]
    if not shown:
        return []
    height = -(-len(shown) // 4)
    drawing = Figure(figsize=(11, 2.2 * height), layout="constrained")
    for place, (name, values) in enumerate(shown, start=1):
        axes = drawing.add_subplot(height, 4, place)
        axes.hist(values, bins=30)
        axes.set_title(name, fontsize=9, parse_math=False)
    text = f"{len(shown):,} of {len(columns):,} numbers"
    row = Row([Picture(html_pages.figure(drawing), "histograms")])
    return [Section("Distribution of the numbers in train", text, [row], layout="wide")]


def augmentations(
    train: Split,
    operations: Mapping[str, Mapping[str, Any]],
    seed: int,
    location: Callable[[int], str],
) -> list[Section]:
    """Every augmentation before and after, in two epochs; those of the run first.

    Args:
        train: Has `image`.
        operations: Name -> options, of the run.
        seed: Of the run.
        location: Id -> where the example comes from.
    """
    some = train.take(dataset_stats.spread(len(train), _AUGMENTED))
    titles = [location(int(id)) for id in some["id"]]

    def section(title: str, chosen: Mapping[str, Mapping[str, Any]]) -> Section:
        try:
            after = [_augmented(some, chosen, seed, epoch) for epoch in (0, 1)]
        except UsageError as error:
            return Section(title, str(error), small=True)
        labelled = zip(("before", "epoch 1", "epoch 2"), (some["image"], *after), strict=True)
        rows = [_row(images, titles, label) for label, images in labelled]
        return Section(title, rows=rows, small=True)

    none = "" if operations else "none; --data.augment NAME ... adds some of those below"
    sections = [Section("Augmentation of this run", none)]
    for name, options in operations.items():
        words = [name, *(f"{option}={value}" for option, value in options.items())]
        sections.append(section(" ".join(words), {name: options}))
    if len(operations) > 1:
        sections.append(section("all of them, in this order", operations))
    sections.append(Section("Other augmentations", "with their default options"))
    others = [name for name in registry.names("augment") if name not in operations]
    return sections + [section(name, {name: {}}) for name in others]


def _augmented(
    examples: Mapping[str, np.ndarray], operations: Mapping[str, Any], seed: int, epoch: int
) -> np.ndarray:
    batch = {name: tf.constant(values) for name, values in examples.items()}
    batch["epoch"] = tf.fill(tf.shape(batch["id"]), tf.constant(epoch, tf.int64))
    return Augmenter(operations, seed)(batch)["image"].numpy()


def _row(images: Iterable[np.ndarray], titles: Sequence[str], label: str) -> Row:
    pairs = zip(images, titles, strict=True)
    return Row([Picture(html_pages.image(image), title) for image, title in pairs], label)
