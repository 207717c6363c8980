"""What the data contains: lines of text, and images by class and before and after
augmentation.
"""

import collections
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import registry
from pipeline.config.config import Config
from pipeline.contracts import Source
from pipeline.data.augmentation import Augmenter
from pipeline.data.dataset import LoadedData
from pipeline.data.image_sizes import sample, spread
from pipeline.data.splits import Split
from pipeline.utils import console, html_pages
from pipeline.utils.errors import UsageError
from pipeline.utils.html_pages import PageSection, Picture, Row

Lines = Iterator[tuple[str, str]]
_SAMPLE = 500  # examples to read if reading all of them would take long
_ROWS = 20  # classes listed one by one
_CLASSES, _PER_CLASS = 50, 8
_AUGMENTED = (
    6  # images before and after; an even number, as some augmentations pair them
)


def statistics(data: LoadedData) -> Lines:
    """Names and texts: notes, counts, and for each field but `id` its shape, dtype and
    range.
    """
    yield from (("note", note) for note in data.source.info.notes)
    yield (
        "examples",
        ", ".join(f"{name} {len(split):,}" for name, split in data.splits.items()),
    )
    if names := _class_names(data):
        yield from classes(data.splits, names)
    yield from files(data.source)
    train = data.splits["train"]
    some = train.take(spread(len(train), _SAMPLE))  # of fields too large to keep
    for name, spec in train.store.specs.items():
        if name == "id":
            continue
        values = train.column(name) if name in train.store.short else some[name]
        line = " ".join(
            filter(None, (name, "x".join(map(str, spec.shape)), spec.dtype.name))
        )
        if values.dtype.kind in "iuf":
            number = "{:,}" if values.dtype.kind in "iu" else "{:.4g}"
            line += f", {number.format(values.min())} to {number.format(values.max())}"
        yield (
            "field",
            line + f" ({len(values):,} examples)" * (len(values) < len(train)),
        )


def classes(splits: Mapping[str, Split], names: Sequence[str]) -> Lines:
    """A line about the sizes of the classes, and a table of the first classes."""
    counts = {
        name: np.bincount(split.column("label"), minlength=len(names))
        for name, split in splits.items()
    }
    train, judged = counts["train"], "test" if "test" in counts else "train"
    most = int(train.argmax())
    share = counts[judged][most] / max(counts[judged].sum(), 1)
    yield (
        "classes",
        (
            f"{len(names):,}, with {train.min():,} to {train.max():,} examples in"
            f" train; always predicting {names[most]!r} is right for {share:.1%} of"
            f" {judged}"
        ),
    )
    rows = [
        [name, *(f"{n[i]:,}" for n in counts.values())] for i, name in enumerate(names)
    ]
    header = ["class", *counts]
    for line in console.table(
        rows[:_ROWS], header, right=range(1, len(header))
    ).splitlines():
        yield "", line
    if len(rows) > _ROWS:
        yield "", f"... {len(rows) - _ROWS:,} more"


def files(source: Source) -> Lines:
    """Formats and sizes in pixels of a sample of encoded images; nothing for other
    data.
    """
    from PIL import Image

    spec = source.info.fields.get("image")
    if spec is None or spec.dtype != tf.string:
        return
    kinds: collections.Counter[str] = collections.Counter()
    sides = []
    for contents in sample(source, _SAMPLE):
        try:
            with Image.open(io.BytesIO(contents)) as opened:
                sides.append((opened.height, opened.width))
                kinds[f"{opened.format} {opened.mode}"] += 1
        except Exception:  # Pillow raises many types for a damaged file
            kinds["unreadable"] += 1
    text = "a sample of train: " + ", ".join(
        f"{n:,} {kind}" for kind, n in kinds.most_common()
    )
    if sides:
        (low, narrow), (high, wide) = np.min(sides, axis=0), np.max(sides, axis=0)
        median = "{:.0f}x{:.0f}".format(*np.median(sides, axis=0))
        text += f"; heights {low} to {high}, widths {narrow} to {wide}, median {median}"
    yield "files", text


def pictures(data: LoadedData, config: Config) -> list[PageSection]:
    """Images of each class, evenly spread over its examples, and augmented ones."""
    train, location, names = (
        data.splits["train"],
        data.source.location,
        _class_names(data),
    )
    if "image" not in train.store.specs:
        return []
    augmented = augmentations(train, config.data.augment, config.runtime.seed, location)
    if not names:
        return augmented
    labels, rows = train.column("label"), []
    for label, name in enumerate(names[:_CLASSES]):
        places = np.flatnonzero(labels == label)
        if not len(places):
            rows.append(Row([], name, "no examples"))
            continue
        some = train.take(places[spread(len(places), _PER_CLASS)])
        titles = [f"{name}: {location(int(id))}" for id in some["id"]]
        rows.append(_row(some["image"], titles, name))
    return [PageSection("Examples of each class in train", rows=rows), *augmented]


def augmentations(
    train: Split,
    operations: Mapping[str, Any],
    seed: int,
    location: Callable[[int], str],
) -> list[PageSection]:
    """Images before and after the run's augmentations, and after each one alone, in two
    epochs.
    """
    some = train.take(spread(len(train), _AUGMENTED))
    titles = [location(int(id)) for id in some["id"]]
    batch = {name: tf.constant(values) for name, values in some.items()}
    shown = {"of this run": operations}
    shown |= {
        f"{name}, default options": {name: {}} for name in registry.names("augment")
    }
    sections = []
    for title, chosen in shown.items():
        rows, text = [_row(some["image"], titles, "before")], ""
        try:
            for epoch in (0, 1):
                batch["epoch"] = tf.fill([len(titles)], tf.constant(epoch, tf.int64))
                after = Augmenter(chosen, seed)(batch)["image"].numpy()
                rows.append(_row(after, titles, f"epoch {epoch + 1}"))
        except UsageError as error:
            text = str(error)
        sections.append(PageSection(f"Augmentation {title}", text, rows))
    return sections


def _class_names(data: LoadedData) -> list[str] | None:
    labelled = "label" in data.splits["train"].store.short
    return data.metadata.get("class_names") if labelled else None


def _row(images: Iterable[np.ndarray], titles: Sequence[str], label: str) -> Row:
    pairs = zip(images, titles, strict=True)
    return Row(
        [Picture(html_pages.image(image), title) for image, title in pairs], label
    )
