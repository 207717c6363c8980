"""What the data are, in plain lines: counts by split and class, sizes, types, ranges of values."""

import collections
import io
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from pipeline.contracts import Source
from pipeline.data.splits import Split
from pipeline.utils.tf_data import without_autotune

SAMPLE = 500
"""So many examples of a split are looked at where looking at all would take long."""
_ROWS = 20  # classes that are listed one by one
_BALANCED = 1.5  # times as many examples in the largest class as in the smallest


def spread(count: int, most: int = SAMPLE) -> np.ndarray:
    """Positions of at most `most` examples out of `count`, evenly spread; int64."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))


def classes(splits: Mapping[str, Split], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Split -> examples of each class, int64 (classes,)."""
    return {
        name: np.bincount(split.column("label"), minlength=len(names))
        for name, split in splits.items()
    }


def labels(source: Source, names: Sequence[str]) -> dict[str, np.ndarray]:
    """As `classes`, of the source's own splits and labels; those of no class are passed by."""
    found = {}
    for split in source.info.splits:
        given = source.columns(split)["label"]
        good = given[(given >= 0) & (given < len(names))]
        found[split] = np.bincount(good, minlength=len(names))
    return found


def table(counts: Mapping[str, np.ndarray], names: Sequence[str]) -> list[list[str]]:
    """A row of cells for each class, under a header; of many classes, the largest and smallest."""
    order = np.arange(len(names))
    skipped = len(names) > _ROWS
    if skipped:
        by_size = np.argsort(-counts["train"], kind="stable")
        order = np.concatenate([by_size[: _ROWS // 2], by_size[-_ROWS // 2 :]])
    rows = [[names[i], *(f"{count[i]:,}" for count in counts.values())] for i in order]
    if skipped:
        rows.insert(_ROWS // 2, [f"... {len(names) - _ROWS:,} more", *[""] * len(counts)])
    return [["class", *counts], *rows]


def balance(counts: Mapping[str, np.ndarray], names: Sequence[str]) -> str:
    """One sentence on how unequal the classes are, and one on what is missing."""
    train = counts["train"]
    most, least = int(train.argmax()), int(train.argmin())
    if train[least] and train[most] <= _BALANCED * train[least]:
        said = f"balanced: {train[least]:,} to {train[most]:,} examples of each class in train"
    else:
        times = f"{train[most] / max(train[least], 1):.1f}"
        said = (
            f"unequal: train has {train[most]:,} of {names[most]!r} and {train[least]:,} of "
            f"{names[least]!r}; --train.class-weight {names[least]}={times} makes them count alike"
        )
        if not train[least]:
            said = f"train has no example of {names[least]!r}, which cannot be learned"
    for split, count in counts.items():
        lacking = [name for name, number in zip(names, count, strict=True) if not number]
        if lacking and split != "train":
            some = ", ".join(map(repr, lacking[:3])) + (" and others" if len(lacking) > 3 else "")
            said += f"; {split} has none of {some}"
    judged = "test" if "test" in counts else "train"
    share = counts[judged][most] / max(counts[judged].sum(), 1)
    return f"{said}; always answering {names[most]!r} is right for {share:.1%} of {judged}"


def fields(split: Split) -> list[str]:
    """A line for each field but `id`: shape, dtype, range and mean; long ones of a sample."""
    lines = []
    sample = split.take(spread(len(split)))
    for name, spec in split.store.specs.items():
        if name == "id":
            continue
        whole = name in split.store.short
        values = split.column(name) if whole else sample[name]
        shape = "x".join(map(str, spec.shape))
        of = "" if whole or len(values) == len(split) else f" (of {len(values):,} examples)"
        line = " ".join(part for part in (name, shape, spec.dtype.name) if part)
        if values.dtype.kind in "iuf":
            line += f", {_number(values.min())} to {_number(values.max())}"
            if name not in ("label", "group"):
                numbers = values.astype(np.float64)
                line += f", mean {numbers.mean():.4g}, deviation {numbers.std():.4g}"
        lines.append(line + of)
    return lines


def files(source: Source) -> str | None:
    """Kinds, sizes in pixels and bytes of encoded images; None where they are no files."""
    spec = source.info.fields.get("image")
    if spec is None or spec.dtype != tf.string:
        return None
    split = "train"
    read, count = source.reader(split), source.info.splits[split]
    if read is None:
        raw, wanted = source.examples(split).take(SAMPLE), min(SAMPLE, count)
    else:
        raw = tf.data.Dataset.from_tensor_slices(spread(count)).map(read).ignore_errors()
        wanted = len(spread(count))
    kinds: collections.Counter[str] = collections.Counter()
    sides, sizes = [], []
    images = without_autotune(raw.map(lambda example: example["image"]))
    for contents in images.as_numpy_iterator():
        kind, side = _header(contents)
        kinds[kind] += 1
        sizes.append(len(contents))
        sides += [side] if side else []
    if missing := wanted - len(sizes):
        kinds["unreadable"] += missing
    named = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
    of = "" if wanted == count else f" (of {wanted:,} in train)"
    middle = f", {np.median(sizes) / 1e3:,.1f} kB in the middle" if sizes else ""
    return f"{named}; {_sides(sides)}{middle}{of}"


def _header(contents: bytes) -> tuple[str, tuple[int, int] | None]:
    """(format and mode, (height, width)) of an encoded image, as it is stored."""
    from PIL import Image

    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(contents)) as opened:
            return f"{opened.format} {opened.mode}", opened.size[::-1]
    except Exception:  # whatever Pillow makes of damage
        return "unreadable", None


def _sides(sides: list[tuple[int, int]]) -> str:
    if not sides:
        return "no size is known"
    if len(set(sides)) == 1:
        return f"all {sides[0][0]}x{sides[0][1]} pixels"
    (low, narrow), (high, wide) = np.min(sides, axis=0), np.max(sides, axis=0)
    middle = np.median(sides, axis=0).astype(int)
    return (
        f"heights {low} to {high}, widths {narrow} to {wide}, {middle[0]}x{middle[1]} in the middle"
    )


def _number(value: np.generic) -> str:
    return f"{value:,}" if value.dtype.kind in "iu" else f"{value:.4g}"
