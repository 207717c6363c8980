"""Statistics of the data as plain lines: counts, shapes, types, ranges of values."""

import collections
import io
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from pipeline.contracts import Source
from pipeline.data.splits import Split
from pipeline.utils.tf_data import without_autotune

_SAMPLE = 500  # examples of a split that are read if reading all would take long
_ROWS = 20  # classes listed one by one
_BALANCED = 1.5  # largest over smallest class


def spread(count: int, most: int = _SAMPLE) -> np.ndarray:
    """Positions of at most `most` examples out of `count`, evenly spread; int64."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))


def classes(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Split -> number of examples of each class, int64 (classes,).

    Args:
        columns: Split -> labels; those out of range are ignored.
        names: Of the classes.
    """
    return {
        split: np.bincount(labels[(labels >= 0) & (labels < len(names))], minlength=len(names))
        for split, labels in columns.items()
    }


def rows(counts: Mapping[str, np.ndarray], names: Sequence[str]) -> list[list[str]]:
    """A row of cells for each class; if there are many, for the largest and smallest classes."""
    order = np.arange(len(names))
    skipped = len(names) - _ROWS
    if skipped > 0:
        by_size = np.argsort(-counts["train"], kind="stable")
        order = np.concatenate([by_size[: _ROWS // 2], by_size[-_ROWS // 2 :]])
    found = [[names[i], *(f"{count[i]:,}" for count in counts.values())] for i in order.tolist()]
    if skipped > 0:
        found.insert(_ROWS // 2, [f"... {skipped:,} more"])
    return found


def balance(counts: Mapping[str, np.ndarray], names: Sequence[str]) -> str:
    """One sentence on class imbalance and missing classes."""
    train = counts["train"]
    most, least = int(train.argmax()), int(train.argmin())
    if not train[least]:
        text = f"train has no examples of {names[least]!r}, which cannot be learned"
    elif train[most] <= _BALANCED * train[least]:
        text = f"balanced: {train[least]:,} to {train[most]:,} examples of each class in train"
    else:
        text = (
            f"imbalanced: train has {train[most]:,} of {names[most]!r} and {train[least]:,} of "
            f"{names[least]!r}; --train.class-weight {names[least]}="
            f"{train[most] / train[least]:.1f} gives both the same weight"
        )
    for split, count in counts.items():
        if split != "train" and not count.min():
            text += f"; {split} has no examples of {names[int(count.argmin())]!r}"
    judged = "test" if "test" in counts else "train"
    share = counts[judged][most] / max(counts[judged].sum(), 1)
    return f"{text}; always predicting {names[most]!r} is right for {share:.1%} of {judged}"


def fields(split: Split) -> list[str]:
    """A line for each field but `id`: shape, dtype, range, mean; of a sample if it is large."""
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
            if name not in ("label", "group"):
                numbers = values.astype(np.float64)
                line += f", mean {numbers.mean():.4g}, standard deviation {numbers.std():.4g}"
        lines.append(line + (f" ({len(values):,} examples)" if len(values) < len(split) else ""))
    return lines


def files(source: Source) -> str | None:
    """Formats, sizes in pixels and bytes of a sample of encoded images; None for other data."""
    spec = source.info.fields.get("image")
    if spec is None or spec.dtype != tf.string:
        return None
    read, count = source.reader("train"), source.info.splits["train"]
    sampled = min(_SAMPLE, count)
    if read is None:
        raw = source.examples("train").take(sampled)
    else:
        raw = tf.data.Dataset.from_tensor_slices(spread(count)).map(read).ignore_errors()
    images = without_autotune(raw.map(lambda example: example["image"]))
    headers = [_header(contents) for contents in images.as_numpy_iterator()]
    kinds = collections.Counter(kind for kind, _, _ in headers)
    kinds["unreadable"] += sampled - len(headers)
    parts = [", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common() if number)]
    if sides := [side for _, side, _ in headers if side]:
        (low, narrow), (high, wide) = np.min(sides, axis=0), np.max(sides, axis=0)
        median = "{:.0f}x{:.0f}".format(*np.median(sides, axis=0))
        parts.append(f"heights {low} to {high}, widths {narrow} to {wide}, median {median}")
        parts.append(f"median {np.median([size for *_, size in headers]) / 1e3:,.1f} kB")
    return "; ".join(parts) + ("" if sampled == count else f" ({sampled:,} examples of train)")


def _header(contents: bytes) -> tuple[str, tuple[int, int] | None, int]:
    """(format and mode, (height, width), bytes) of an encoded image."""
    from PIL import Image

    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(contents)) as opened:
            kind = f"{opened.format} {opened.mode}"
            return kind, (opened.height, opened.width), len(contents)
    except Exception:  # Pillow raises many kinds for a damaged file
        return "unreadable", None, len(contents)
