"""Recognizes what y holds: classes, several labels, numbers to predict, or masks."""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.data.array_inputs import (
    NUMERIC,
    array_of,
    floats_of,
    is_table,
    numbers_of_table,
)
from pipeline.data.labels import is_missing, labels_of, text_of
from pipeline.utils.errors import UsageError

KINDS = {"label": "classes", "labels": "labels", "target": "number", "mask": "mask"}
"""Field of an example -> name of the target that takes it."""
_FEW_CLASSES = 20
_EXAMPLES_PER_CLASS = 10
_TAKEN = (
    "classes (n,) or one-hot (n, classes), several labels as rows of 0 and 1 (n,"
    " classes), numbers (n,) or (n, numbers), and for images masks (n, height, width)"
)
_MOST_CLASSES = 256  # of masks, which are uint8


@dataclasses.dataclass(frozen=True)
class TargetField:
    """The field of y, and what to say about it."""

    field: str
    values: np.ndarray
    notes: tuple[str, ...] = ()


def target_array(y: Any, where: str, kind: str | None) -> np.ndarray:
    """Converts y to an array; several labels of an example become a tuple of strings.

    `kind` is the name of the target, or None.
    """
    if isinstance(y, Mapping):
        raise UsageError(
            f"{where}: y is a dictionary ({', '.join(map(str, y))}); give one array,"
            " because a model has one target"
        )
    if isinstance(y, tf.RaggedTensor):
        raise UsageError(
            f"{where}: y is a tf.RaggedTensor; give several labels per example as"
            " y.to_list()"
        )
    if not isinstance(y, list | tuple) and not is_table(y):
        y = array_of(y, "y", where)
    label_sets = _label_sets(y, where, kind)
    if label_sets is not None:
        return label_sets
    if is_table(y):
        return _array_of_table(y)
    values = array_of(y, "y", where)
    if values.dtype.kind == "V" and not values.dtype.names:  # such as bfloat16
        values = values.astype(np.float32)
    if values.ndim < 3:
        values = np.asarray(values)  # not a memory map
    return values


def _array_of_table(table: Any) -> np.ndarray:
    """The values of a table or column of pandas, whose own dtypes become floats."""
    values = np.asarray(table)
    columns = table.to_frame() if table.ndim == 1 else table
    kinds = "".join(dtype.kind for dtype in columns.dtypes)
    is_numeric = set(kinds) <= set(NUMERIC)
    if values.dtype.kind != "O" or not is_numeric or set(kinds) == {"b"}:
        return values
    numbers = numbers_of_table(columns)
    return numbers[:, 0] if table.ndim == 1 else numbers


def _label_sets(y: Any, where: str, kind: str | None) -> np.ndarray | None:
    """Tuples of strings, (n,), of sequences of strings; None if y has another form.

    One string per example is a class, unless `kind` says that there may be several.
    """
    if isinstance(y, np.ndarray) and y.ndim == 2 and y.dtype.kind in "OSUT":
        rows = y.tolist()
    elif isinstance(y, list | tuple) or (_has_objects(y) and y.ndim == 1):
        rows = list(y)
    else:
        return None
    lists = [row for row in rows if isinstance(row, list | tuple | set | np.ndarray)]
    has_text = any(
        isinstance(next(iter(row), None), str | bytes) for row in lists if len(row)
    )
    are_empty = bool(lists) and not any(map(len, lists))
    if not has_text and not (are_empty and kind == "labels"):
        return None
    have_one = len(lists) == len(rows) and all(len(row) == 1 for row in rows)
    if have_one and kind != "labels":
        return None
    sets = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        sets[number] = _label_set(row, number, where)
    return sets


def _has_objects(y: Any) -> bool:
    return getattr(getattr(y, "dtype", None), "kind", "") == "O"


def _label_set(row: Any, number: int, where: str) -> tuple[str, ...]:
    is_list = isinstance(row, list | tuple | set | np.ndarray)
    if not is_list:
        raise UsageError(
            f"{where}: the labels of an example must be a list of strings; example"
            f" {number} has {row!r:.40}; an example without labels has []"
        )
    labels = tuple(map(text_of, row))
    for label in labels:
        if not isinstance(label, str) or is_missing(label):
            raise UsageError(
                f"{where}: example {number} has the label {label!r:.40}; labels must be"
                " non-empty strings"
            )
    return labels


def has_label_sets(values: np.ndarray) -> bool:
    """Whether an array has tuples of labels, from `target_array`."""
    return values.dtype == object and len(values) > 0 and isinstance(values[0], tuple)


def target_of(
    values: np.ndarray,
    where: str,
    *,
    kind: str | None,
    image_sizes: set[tuple[int, int]],
    has_class_names: bool,
) -> TargetField:
    """Checks and converts y to the field of a target.

    Args:
        values: The result of `target_array`.
        where: The name of the data in messages.
        kind: `classes`, `labels`, `number` or `mask`; otherwise recognized.
        image_sizes: The (height, width) of the images; empty if x has none.
        has_class_names: Whether the user names the classes, so that whole numbers are
            classes.

    Returns:
        `label`, int64 or strings (n,); `labels`, uint8 (n, classes) or tuples of
        strings (n,); `target`, float32 (n,) or (n, numbers); or `mask`, uint8 (n,
        height, width).
    """
    if has_label_sets(values):
        return TargetField("labels", _require_several(values, where, kind))
    column = values
    while column.ndim > 1 and column.shape[-1] == 1:  # as in keras.datasets
        column = column[..., 0]
    is_plane = column.ndim > 2 or values.shape[1:3] in image_sizes
    may_be_mask = kind not in KINDS.values() and values.ndim in (3, 4) and is_plane
    if kind == "mask" or (may_be_mask and image_sizes):
        return TargetField("mask", _masks_of(values, where, image_sizes))
    if kind == "classes":
        return TargetField("label", labels_of(values, where))
    if column.ndim > 2 or not values.size:
        raise UsageError(
            f"{where}: y has shape {values.shape}, which no target takes; give {_TAKEN}"
        )
    if kind == "number":
        return TargetField("target", _numbers_of(column, where))
    if kind == "labels":
        return TargetField("labels", _label_rows(values, where))
    return _recognize(column, where, bool(image_sizes), has_class_names)


def _require_several(values: np.ndarray, where: str, kind: str | None) -> np.ndarray:
    """Raises UsageError if another target than several labels is wanted."""
    if kind not in KINDS.values() or kind == "labels":
        return values
    example = next((row for row, labels in enumerate(values) if len(labels) != 1), 0)
    raise UsageError(
        f"{where}: example {example} has {len(values[example])} labels, but the target"
        f' is {kind!r}; several labels per example need task={{"target": "labels"}}'
    )


def _recognize(
    values: np.ndarray, where: str, has_images: bool, has_class_names: bool
) -> TargetField:
    """Recognizes the target of y, (n,) or (n, columns)."""
    if values.dtype.kind in "OSUT":
        return TargetField("label", labels_of(values, where))
    if values.dtype.kind not in NUMERIC:
        raise UsageError(
            f"{where}: y must hold numbers or strings; got {values.dtype}; give"
            f" {_TAKEN}"
        )
    if values.ndim == 2:
        return _recognize_rows(values, where)
    if values.dtype.kind == "b":
        return TargetField("label", labels_of(values, where))
    is_whole = _are_whole(values)
    if has_images or (has_class_names and is_whole):
        if is_whole:
            return TargetField("label", labels_of(values, where))
        return TargetField(
            "target", _numbers_of(values, where), (_fraction_note(values),)
        )
    if not is_whole:
        return TargetField("target", _numbers_of(values, where))
    classes = _count_classes(values)
    if classes:
        note = (
            f"y has the whole numbers 0 to {classes - 1}, which are read as classes;"
            ' for numbers to predict, write task={"target": "number"}'
        )
        return TargetField("label", labels_of(values, where), (note,))
    numbers = _numbers_of(values, where)
    lowest, highest = values.min(), values.max()
    note = (
        f"y has whole numbers from {lowest:.10g} to {highest:.10g}, which are read as"
        " numbers to predict; for classes, number them 0, 1, ... and write"
        ' task={"target": "classes"}'
    )
    return TargetField("target", numbers, (note,))


def _recognize_rows(values: np.ndarray, where: str) -> TargetField:
    if _are_binary(values):
        ones = values.sum(axis=1)
        several = np.flatnonzero(ones != 1)
        if not len(several):
            return TargetField("label", labels_of(values, where))
        row = several[0]
        note = (
            f"y has rows of 0 and 1 that are not all one-hot (example {row} has"
            f" {int(ones[row])} of {values.shape[1]}), which are read as several labels"
            ' per example; for one class each, write task={"target": "classes"}'
        )
        return TargetField("labels", _label_rows(values, where), (note,))
    if values.dtype.kind == "f" and _are_soft(values):
        labels_of(values, where)  # raises UsageError
    notes: tuple[str, ...] = ()
    if _are_whole(values):
        note = (
            f"y has rows of {values.shape[1]} whole numbers, which are read as numbers"
            " to predict; classes are one whole number or string per example"
        )
        notes = (note,)
    return TargetField("target", _numbers_of(values, where), notes)


def _are_whole(values: np.ndarray) -> bool:
    """Whether all numbers that are not missing are whole."""
    if values.dtype.kind != "f":
        return True
    present = values[np.isfinite(values)]
    return bool((present == np.round(present)).all())


def _are_binary(values: np.ndarray) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _are_soft(values: np.ndarray) -> bool:
    """Whether rows are probabilities."""
    sums = values.sum(axis=1, dtype=np.float64)
    return bool((values >= 0).all() and np.isclose(sums, 1, atol=1e-3).all())


def _count_classes(values: np.ndarray) -> int:
    """The number of classes if whole numbers number classes; otherwise 0."""
    present = np.unique(values)
    count = len(present)
    limit = max(_FEW_CLASSES, len(values) // _EXAMPLES_PER_CLASS)
    return count if count <= limit and (present == np.arange(count)).all() else 0


def _fraction_note(values: np.ndarray) -> str:
    row = int(np.flatnonzero(values != np.round(values))[0])
    return (
        f"y has numbers that are not whole, such as {values[row]:g} in example {row},"
        " and is read as numbers to predict; classes are whole numbers or strings"
    )


def _numbers_of(values: np.ndarray, where: str) -> np.ndarray:
    """Converts numbers to predict to float32, (n,) or (n, numbers)."""
    values = _floats_of_objects(values)
    if values.dtype.kind not in NUMERIC:
        raise UsageError(
            f"{where}: y must be numbers to predict; got {values.dtype}; convert it"
            ' with y.astype("float32"), or write task={"target": "classes"}'
        )
    return floats_of(values, "y", where)


def _floats_of_objects(values: np.ndarray) -> np.ndarray:
    """Converts objects that are numbers; returns other values as they are."""
    if values.dtype.kind != "O":
        return values
    if any(isinstance(value, str | bytes) for value in values.flat):
        return values
    with contextlib.suppress(TypeError, ValueError):  # such as lists
        return values.astype(np.float64)
    return values


def _label_rows(values: np.ndarray, where: str) -> np.ndarray:
    """Checks rows of 0 and 1, and converts them to uint8 (n, classes)."""
    rows = values[:, None] if values.ndim == 1 else values
    rows = _floats_of_objects(rows)
    if rows.dtype.kind not in NUMERIC or rows.ndim != 2 or not _are_binary(rows):
        raise UsageError(
            f"{where}: several labels per example must be rows of 0 and 1 of shape (n,"
            f" classes), or a list of strings for each example; got {_sample(rows)}"
        )
    return rows.astype(np.uint8)


def _sample(rows: np.ndarray) -> str:
    """Names the first value that is not 0 or 1."""
    if rows.dtype.kind not in NUMERIC or rows.ndim != 2:
        return f"{rows.dtype} of shape {rows.shape}"
    row, column = np.argwhere((rows != 0) & (rows != 1))[0].tolist()
    return f"{rows[row, column]} in example {row}, column {column}"


def _masks_of(
    values: np.ndarray, where: str, image_sizes: Iterable[tuple[int, int]]
) -> np.ndarray:
    """Checks masks, and converts them to uint8 (n, height, width)."""
    sizes = sorted(image_sizes)
    if not sizes:
        raise UsageError(
            f"{where}: masks need images of shape (n, height, width[, channels]), but x"
            " has only features"
        )
    masks = values[..., 0] if values.ndim == 4 and values.shape[3] == 1 else values
    if masks.ndim == 4:
        raise UsageError(
            f"{where}: masks must have one class for each pixel, (n, height, width);"
            f" got {values.shape}; if the last axis has the classes, give"
            " y.argmax(axis=-1)"
        )
    if masks.ndim != 3 or masks.dtype.kind not in NUMERIC:
        raise UsageError(
            f"{where}: masks must be integers of shape (n, height, width); got"
            f" {values.dtype} of shape {values.shape}"
        )
    for height, width in sizes:
        if masks.shape[1:] != (height, width):
            raise UsageError(
                f"{where}: y has a mask of {masks.shape[1]}x{masks.shape[2]} pixels for"
                f" an image of {height}x{width}; resize the masks, without"
                " interpolation"
            )
    if masks.dtype == np.uint8:
        return masks
    for row, mask in enumerate(masks):
        _require_classes(mask, row, where)
    return masks.astype(np.uint8)


def _require_classes(mask: np.ndarray, row: int, where: str) -> None:
    """Raises UsageError unless a mask has whole numbers from 0 to 255."""
    if mask.dtype.kind == "b":
        return
    for value in mask[(mask != np.round(mask)) | ~np.isfinite(mask)]:
        raise UsageError(
            f"{where}: the mask of example {row} has {value}; masks must have a whole"
            " number for each pixel, its class; numbers for each pixel cannot be"
            " predicted"
        )
    if mask.min() < 0:
        raise UsageError(
            f"{where}: the mask of example {row} has {mask.min():g}; number the classes"
            " 0, 1, ..."
        )
    if mask.max() >= _MOST_CLASSES:
        raise UsageError(
            f"{where}: the mask of example {row} has the class {mask.max():g}; at most"
            f" {_MOST_CLASSES} classes, 0 to {_MOST_CLASSES - 1}, are supported"
        )
