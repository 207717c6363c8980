"""What a page shows of the data: examples of each class, histograms, augmentations at work."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import registry
from pipeline.data.augmentation import Augmenter
from pipeline.data.splits import Split
from pipeline.evaluation import dataset_stats
from pipeline.utils import html_pages
from pipeline.utils.errors import UsageError

_EACH = 8  # pictures of a class
_ALL = 400  # pictures of all classes
_FEW = 6  # pictures before and after; an even number, as some operations pair them
_HISTOGRAMS = 24


def examples(train: Split, names: Sequence[str], location: Callable[[int], str]) -> Iterator[str]:
    """A row of pictures for each class, evenly spread over its examples.

    Args:
        train: Has `image` and `label`.
        names: Of the classes.
        location: Id -> what a person calls the example.
    """
    each = max(2, min(_EACH, _ALL // len(names)))
    labels = train.column("label")
    yield html_pages.heading("Examples of each class in train")
    for label, name in enumerate(names[: _ALL // each]):
        places = np.flatnonzero(labels == label)
        if not len(places):
            yield html_pages.paragraph(f"{name}: none")
            continue
        some = train.take(places[dataset_stats.spread(len(places), each)])
        titles = [f"{name}: {location(int(id))}" for id in some["id"]]
        yield html_pages.row(some["image"], titles, name)
    if len(names) > _ALL // each:
        yield html_pages.paragraph(f"and {len(names) - _ALL // each:,} classes more")


def histograms(train: Split, names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """How the numbers of the examples are spread.

    Args:
        train: Its short fields are shown: numbers, and each number of a vector.
        names: Field -> what its numbers are called, where that is known.
    """
    from matplotlib.figure import Figure

    columns: dict[str, np.ndarray] = {}
    for field, values in train.store.short.items():
        if field in ("id", "group") or values.dtype.kind not in "iuf":
            continue
        if values.ndim == 1:
            columns[field] = train.column(field)
            continue
        called = names.get(field) or [f"{field} {i}" for i in range(values.shape[1])]
        columns.update(zip(called, train.column(field).T, strict=True))
    shown = list(columns.items())[:_HISTOGRAMS]
    if not shown:
        return
    yield html_pages.heading("How numbers are spread in train")
    rows = -(-len(shown) // 4)
    drawing = Figure(figsize=(11, 2.2 * rows), layout="constrained")
    for axes, (name, values) in zip(
        drawing.subplots(rows, 4, squeeze=False).ravel(), shown, strict=False
    ):
        axes.hist(values, bins=30)
        axes.set_title(name, fontsize=9, parse_math=False)
        axes.tick_params(labelsize=7)
    for axes in drawing.axes[len(shown) :]:
        axes.remove()
    yield html_pages.figure(drawing, "histograms")
    if len(columns) > len(shown):
        yield html_pages.paragraph(f"and {len(columns) - len(shown):,} numbers more")


def augmentations(
    train: Split,
    operations: Mapping[str, Mapping[str, Any]],
    seed: int,
    location: Callable[[int], str],
) -> Iterator[str]:
    """Each operation before and after, in two epochs; those of the run first.

    Args:
        train: Has `image`.
        operations: Name -> options, of the run.
        seed: Of the run.
        location: Id -> what a person calls the example.
    """
    some = train.take(dataset_stats.spread(len(train), _FEW))
    before = {name: tf.constant(values) for name, values in some.items()}
    titles = [location(int(id)) for id in some["id"]]
    alone = {f"{name} {_words(given)}": {name: given} for name, given in operations.items()}
    together = {"all of them, in this order": operations} if len(operations) > 1 else {}
    others = {n: {n: {}} for n in registry.names("augment") if n not in operations}
    yield html_pages.heading("Augmentation of this run")
    if not operations:
        yield html_pages.paragraph("none; --data.augment NAME ... takes some of those below")
    for heading, group in ((None, {**alone, **together}), ("Other augmentations", others)):
        if heading:
            yield html_pages.heading(heading)
            yield html_pages.paragraph("with their default options")
        for title, chosen in group.items():
            yield html_pages.heading(title, small=True)
            try:
                after = [_augmented(before, chosen, seed, epoch) for epoch in (0, 1)]
            except UsageError as error:
                yield html_pages.paragraph(error)
                continue
            yield html_pages.row(some["image"], titles, "before")
            for epoch, images in enumerate(after, start=1):
                yield html_pages.row(images, titles, f"epoch {epoch}")


def _augmented(
    batch: Mapping[str, tf.Tensor], operations: Mapping[str, Any], seed: int, epoch: int
) -> np.ndarray:
    epochs = tf.fill(tf.shape(batch["id"]), tf.constant(epoch, tf.int64))
    return Augmenter(operations, seed)({**batch, "epoch": epochs})["image"].numpy()


def _words(options: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items())
