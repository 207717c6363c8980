"""Statistics of the data as lines of text: counts, shapes, dtypes, ranges of values."""

import collections
import io
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from pipeline.contracts import Source
from pipeline.data.splits import Split
from pipeline.utils import console
from pipeline.utils.tf_data import without_autotune

_SAMPLE = 500  # examples to read if reading all of them would take long
_ROWS = 20  # classes listed one by one


def spread(count: int, most: int = _SAMPLE) -> np.ndarray:
    """Positions of at most `most` examples out of `count`, evenly spread; int64."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))


def classes(splits: Mapping[str, Split], names: Sequence[str]) -> list[str]:
    """A line about the sizes of the classes, and a table of the first classes.

    Args:
        splits: Contain `label`.
        names: Names of the classes.
    """
    counts = {
        name: np.bincount(split.column("label"), minlength=len(names))
        for name, split in splits.items()
    }
    train, judged = counts["train"], "test" if "test" in counts else "train"
    most = int(train.argmax())
    share = counts[judged][most] / max(counts[judged].sum(), 1)
    rows = [[names[i], *(f"{n[i]:,}" for n in counts.values())] for i in range(len(names))]
    header = ["class", *counts]
    table = console.table(rows[:_ROWS], header, right=range(1, len(header))).splitlines()
    return [
        f"{len(names):,}, with {train.min():,} to {train.max():,} examples in train; "
        f"always predicting {names[most]!r} is right for {share:.1%} of {judged}",
        *table,
        *([f"... {len(rows) - _ROWS:,} more"] if len(rows) > _ROWS else []),
    ]


def fields(split: Split) -> list[str]:
    """A line for each field but `id`: shape, dtype and range; of a sample if the field is large."""
    lines = []
    sample = split.take(spread(len(split)))
    for name, spec in split.store.specs.items():
        if name == "id":
            continue
        values = split.column(name) if name in split.store.short else sample[name]
        shape = "x".join(map(str, spec.shape))
        line = " ".join(part for part in (name, shape, spec.dtype.name) if part)
        if values.dtype.kind in "iuf":
            number = "{:,}" if values.dtype.kind in "iu" else "{:.4g}"
            line += f", {number.format(values.min())} to {number.format(values.max())}"
        lines.append(line + (f" ({len(values):,} examples)" if len(values) < len(split) else ""))
    return lines


def files(source: Source) -> str | None:
    """Formats and sizes in pixels of a sample of encoded images; None for other data."""
    from PIL import Image

    spec, read = source.info.fields.get("image"), source.reader("train")
    if spec is None or spec.dtype != tf.string:
        return None
    positions = tf.data.Dataset.from_tensor_slices(spread(source.info.splits["train"]))
    images = positions.map(lambda position: read(position)["image"]).ignore_errors()
    kinds: collections.Counter[str] = collections.Counter()
    sides = []
    for contents in without_autotune(images).as_numpy_iterator():
        try:
            with Image.open(io.BytesIO(contents)) as opened:
                sides.append((opened.height, opened.width))
                kinds[f"{opened.format} {opened.mode}"] += 1
        except Exception:  # Pillow raises many types for a damaged file
            kinds["unreadable"] += 1
    text = "a sample of train: " + ", ".join(f"{n:,} {kind}" for kind, n in kinds.most_common())
    if sides:
        (low, narrow), (high, wide) = np.min(sides, axis=0), np.max(sides, axis=0)
        median = "{:.0f}x{:.0f}".format(*np.median(sides, axis=0))
        text += f"; heights {low} to {high}, widths {narrow} to {wide}, median {median}"
    return text
