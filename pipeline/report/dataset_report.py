"""Describes the data: statistics, examples, and images with augmentation."""

import collections
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import registry
from pipeline.config.config import Config
from pipeline.contracts import Example, Source
from pipeline.data.augmentation import Augmenter
from pipeline.data.dataset import LoadedData
from pipeline.data.image_sizes import sample, spread
from pipeline.data.splits import Split
from pipeline.report import input_report, target_report
from pipeline.report.input_report import InputReport
from pipeline.utils import html_pages
from pipeline.utils.errors import UsageError
from pipeline.utils.html_pages import PageSection, Picture, Row

Lines = Iterator[tuple[str, str]]
_SAMPLE = 500  # examples to read if reading all of them would take long
_ROWS = 20  # classes in the table
_TABLE_ROWS = 100_000  # of which the columns are described
_WORDS = 3  # of a category or date, the most frequent
_MAX_WORD = 40  # characters
_CLASSES = 50  # classes with images
_PER_CLASS = 8  # images of a class
# Images before and after; a multiple of 4, because some augmentations join them.
_AUGMENTED = 8
_DRAWN = 12  # examples in the figure
_COLUMNS = 4  # examples in a row of it


def statistics(data: LoadedData) -> Lines:
    """Yields notes, counts, and shape, dtype and range of each field, with a name."""
    yield from (("note", note) for note in data.source.info.notes)
    counts = [f"{name} {len(split):,}" for name, split in data.splits.items()]
    yield "examples", ", ".join(counts)
    columns = {}
    for name, split in data.splits.items():
        columns[name] = {key: split.column(key) for key in split.store.short}
    yield from target_report.report_of(data.task.target).describe(columns)
    yield from files(data.source)
    yield from table_columns(data)
    train = data.splits["train"]
    subset = train.take(spread(len(train), _SAMPLE))  # for fields too large to keep
    for name, spec in train.store.specs.items():
        if name == "id":
            continue
        values = train.column(name) if name in train.store.short else subset[name]
        words = [name, "x".join(map(str, spec.shape)), spec.dtype.name]
        line = " ".join(filter(None, words))
        if values.dtype.kind in "iuf":
            number = "{:,}" if values.dtype.kind in "iu" else "{:.4g}"
            line += f", {number.format(values.min())} to {number.format(values.max())}"
        if len(values) < len(train):
            line += f" ({len(values):,} examples)"
        yield "field", line


def table_columns(data: LoadedData) -> Lines:
    """Yields kind, share of missing values, and range or most frequent values of each
    column, if the source is a table of rows.
    """
    columns = data.source.info.columns
    if not columns:
        return
    train = data.splits["train"]
    raw = train.raw(spread(len(train), _TABLE_ROWS))
    numbers = iter(raw["numbers"].T)
    strings = iter(raw["strings"].T)
    for column in columns:
        if column.kind in ("number", "boolean"):
            values = next(numbers)
            present = values[~np.isnan(values)]
            text = _range(present)
        else:
            values = next(strings)
            present = values[values != b""]
            text = _frequent(present, column.kind)
        parts = [f"{column.name}: {column.kind}"]
        if len(present) < len(values):
            parts.append(f"{1 - len(present) / len(values):.1%} missing")
        yield "column", ", ".join([*parts, text])


def _range(numbers: np.ndarray) -> str:
    """The smallest and the largest number."""
    if not len(numbers):
        return "no values"
    return f"{numbers.min():.6g} to {numbers.max():.6g}"


def _frequent(strings: np.ndarray, kind: str) -> str:
    """The most frequent values of a category, or examples of other strings."""
    counts = collections.Counter(strings.tolist())
    shown = []
    for word, count in counts.most_common(_WORDS):
        text = _shorten(word.decode(errors="replace"))
        share = f" ({count / len(strings):.1%})" if kind == "category" else ""
        shown.append(f"{text!r}{share}")
    if not shown:
        return "no values"
    return f"{len(counts):,} different, such as {', '.join(shown)}"


def _shorten(text: str) -> str:
    """A text that is cut if it is long."""
    if len(text) <= _MAX_WORD:
        return text
    return f"{text[:_MAX_WORD]}..."


def files(source: Source) -> Lines:
    """Yields formats and sizes of a sample of encoded images, if there are any."""
    from PIL import Image

    spec = source.info.fields.get("image")
    if spec is None or spec.dtype != tf.string:
        return
    formats: collections.Counter[str] = collections.Counter()
    sizes = []
    for contents in sample(source, _SAMPLE):
        try:
            with Image.open(io.BytesIO(contents)) as opened:
                sizes.append((opened.height, opened.width))
                formats[f"{opened.format} {opened.mode}"] += 1
        except Exception:  # Pillow raises many types for a damaged file
            formats["unreadable"] += 1
    counts = [f"{count:,} {name}" for name, count in formats.most_common()]
    text = f"a sample of train: {', '.join(counts)}"
    if sizes:
        low, narrow = np.min(sizes, axis=0)
        high, wide = np.max(sizes, axis=0)
        median = "{:.0f}x{:.0f}".format(*np.median(sizes, axis=0))
        text += f"; heights {low} to {high}, widths {narrow} to {wide}, median {median}"
    yield "files", text


def pictures(data: LoadedData, config: Config) -> list[PageSection]:
    """Shows training examples: images of each class, or else a few of any input; and
    images with augmentation.
    """
    train = data.splits["train"]
    has_images = "image" in train.store.specs
    names = _class_names(data)
    sections = []
    if has_images and names:
        sections.append(_classes(train, names, data.source.location))
    else:
        sections += _examples(data)
    if has_images:
        sections += augmentations(
            train,
            config.data.augment,
            config.runtime.seed,
            data.source.location,
            data.task.target.spatial_fields,
        )
    return sections


def _classes(
    train: Split, names: Sequence[str], location: Callable[[int], str]
) -> PageSection:
    """Images of each class, evenly spread over its examples."""
    labels = train.column("label")
    rows = []
    for label, name in enumerate(names[:_CLASSES]):
        positions = np.flatnonzero(labels == label)
        if not len(positions):
            rows.append(Row([], name, "no examples"))
            continue
        subset = train.take(positions[spread(len(positions), _PER_CLASS)])
        titles = [f"{name}: {location(int(id))}" for id in subset["id"]]
        rows.append(_row(subset["image"], titles, name))
    return PageSection("Examples of each class in train", rows=rows)


def _examples(data: LoadedData) -> list[PageSection]:
    """Evenly spread examples as HTML, or a figure of them, if the input of the task
    shows or draws them.
    """
    from matplotlib.figure import Figure

    of_input = input_report.report_of(data.task.input)
    of_target = target_report.report_of(data.task.target)
    if type(of_input) is InputReport:
        return []
    train = data.splits["train"]
    subset = train.take(spread(len(train), _DRAWN))
    count = len(subset["id"])
    cards = []
    for row in range(count):
        example = {name: column[row] for name, column in subset.items()}
        name = data.source.location(int(example["id"]))
        cards.append((name, of_input.html(example)))
    if any(html for _, html in cards):
        return [PageSection("Examples in train", cards=cards)]
    rows = -(-count // _COLUMNS)
    figure = Figure(figsize=(3 * _COLUMNS, 2.6 * rows), layout="constrained")
    for row in range(count):
        example = {name: column[row] for name, column in subset.items()}
        axes = figure.add_subplot(rows, _COLUMNS, row + 1)
        of_input.draw(axes, example)
        of_target.draw_truth(axes, example)
        name = data.source.location(int(example["id"]))
        name = name.encode(errors="replace").decode()
        axes.set_title(name[-32:], fontsize=8, parse_math=False)
    return [PageSection("Examples in train", figure=html_pages.figure(figure))]


def augmentations(
    train: Split,
    operations: Mapping[str, Any],
    seed: int,
    location: Callable[[int], str],
    spatial_fields: Sequence[str] = (),
) -> list[PageSection]:
    """Shows images before and after augmentation, in two epochs.

    First with the augmentations of the run, then with each registered one alone.
    """
    subset = train.take(spread(len(train), _AUGMENTED))
    titles = [location(int(id)) for id in subset["id"]]
    batch = {name: tf.constant(values) for name, values in subset.items()}
    augmenters = {"of this run": operations}
    for name in registry.names("augment"):
        augmenters[f"{name}, default options"] = {name: {}}
    sections = []
    for title, options in augmenters.items():
        rows = [_row(subset["image"], titles, "before")]
        text = ""
        try:
            for epoch in (0, 1):
                batch["epoch"] = tf.fill([len(titles)], tf.constant(epoch, tf.int64))
                after = Augmenter(options, seed, spatial_fields)(batch)["image"].numpy()
                rows.append(_row(after, titles, f"epoch {epoch + 1}"))
        except UsageError as error:
            if operations is not options and not _changes_images(options, batch):
                continue
            text = str(error)
        sections.append(PageSection(f"Augmentation {title}", text, rows))
    return sections


def _changes_images(operations: Mapping[str, Any], batch: Example) -> bool:
    """Whether augmentations are for images, without what must move with them."""
    try:
        Augmenter(operations, 0)(batch)
    except UsageError:
        return False
    return True


def _class_names(data: LoadedData) -> list[str] | None:
    labelled = "label" in data.splits["train"].store.short
    return data.metadata.get("class_names") if labelled else None


def _row(images: Iterable[np.ndarray], titles: Sequence[str], label: str) -> Row:
    pictures = []
    for image, title in zip(images, titles, strict=True):
        pictures.append(Picture(html_pages.image(image), title))
    return Row(pictures, label)
