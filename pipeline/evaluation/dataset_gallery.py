"""Shows images of the data: examples of each class, and images before and after augmentation."""

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

_CLASSES, _PER_CLASS = 50, 8
_AUGMENTED = 6  # images before and after; an even number, as some augmentations pair them


def examples(train: Split, names: Sequence[str], location: Callable[[int], str]) -> Section:
    """A row of images for each class, evenly spread over its examples.

    Args:
        train: Contains `image` and `label`.
        names: Names of the classes.
        location: Id -> where the example comes from.
    """
    labels, rows = train.column("label"), []
    for label, name in enumerate(names[:_CLASSES]):
        places = np.flatnonzero(labels == label)
        if not len(places):
            rows.append(Row([], name, "no examples"))
            continue
        some = train.take(places[dataset_stats.spread(len(places), _PER_CLASS)])
        titles = [f"{name}: {location(int(id))}" for id in some["id"]]
        rows.append(_row(some["image"], titles, name))
    return Section("Examples of each class in train", rows=rows)


def augmentations(
    train: Split,
    operations: Mapping[str, Mapping[str, Any]],
    seed: int,
    location: Callable[[int], str],
) -> list[Section]:
    """Pictures before and after the run's augmentations, and after each one alone, in two epochs.

    Args:
        train: Contains `image`.
        operations: The run's augmentations: name -> options.
        seed: The run's seed.
        location: Id -> where the example comes from.
    """
    some = train.take(dataset_stats.spread(len(train), _AUGMENTED))
    titles = [location(int(id)) for id in some["id"]]
    shown: dict[str, Mapping[str, Any]] = {"of this run": operations}
    shown |= {f"{name}, default options": {name: {}} for name in registry.names("augment")}
    sections = []
    for title, chosen in shown.items():
        rows, text = [_row(some["image"], titles, "before")], ""
        try:
            for epoch in (0, 1):
                after = _augmented(some, chosen, seed, epoch)
                rows.append(_row(after, titles, f"epoch {epoch + 1}"))
        except UsageError as error:
            text = str(error)
        sections.append(Section(f"Augmentation {title}", text, rows))
    return sections


def _augmented(
    examples: Mapping[str, np.ndarray], operations: Mapping[str, Any], seed: int, epoch: int
) -> np.ndarray:
    batch = {name: tf.constant(values) for name, values in examples.items()}
    batch["epoch"] = tf.fill(tf.shape(batch["id"]), tf.constant(epoch, tf.int64))
    return Augmenter(operations, seed)(batch)["image"].numpy()


def _row(images: Iterable[np.ndarray], titles: Sequence[str], label: str) -> Row:
    pairs = zip(images, titles, strict=True)
    return Row([Picture(html_pages.image(image), title) for image, title in pairs], label)
