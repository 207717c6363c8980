"""Checks of arrays, the fields of the examples that they contain, and the names of classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.utils.errors import UsageError


def examples(where: str, x: Any, y: Any, sample_weight: Any = None) -> dict[str, np.ndarray]:
    """Field -> array of all examples.

    Args:
        where: What the arrays are called in messages.
        x: Images, uint8, uint16 or float32, (n, height, width[, channels]); or features (n, m).
        y: Labels, whole numbers or strings, (n,) or (n, 1), or one-hot; or numbers to predict.
        sample_weight: At least 0, (n,).

    Returns:
        `image` (n, height, width, channels) and `label`, int64 or strings, which `numbered`
        replaces; or `features` and `target`, float32. And perhaps `sample_weight`, float32.
    """
    if isinstance(x, Mapping | list | tuple) and len({np.shape(part) for part in x}) > 1:
        raise UsageError(f"{where}: x must be one array; got {len(x)} of different shapes")
    inputs, labels = _array(x, where), np.asarray(_array(y, where))  # not a memory map
    if labels.ndim == 2 and labels.shape[1] == 1:  # as in keras.datasets
        labels = labels[:, 0]
    if not len(inputs) or labels.ndim == 0 or len(inputs) != len(labels):
        raise UsageError(
            f"{where}: the lengths of x and y must be equal and at least 1; got shapes "
            f"{inputs.shape} and {labels.shape}"
        )
    if inputs.ndim == 2:
        found = {"target": _floats(labels, "y", where), "features": _floats(inputs, "x", where)}
    else:
        found = {"label": labels_of(labels, where), "image": images_of(inputs, where)}
    if sample_weight is not None:
        weight = found["sample_weight"] = _floats(np.asarray(sample_weight), "weights", where)
        if weight.shape != (len(inputs),) or weight.min() < 0:
            raise UsageError(
                f"{where}: sample_weight must be at least 0, of shape ({len(inputs)},)"
            )
    return found


def _array(values: Any, where: str) -> np.ndarray:
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
    except ValueError:
        raise UsageError(f"{where}: its examples have different shapes") from None
    return array if array.ndim else array[None]


def images_of(images: np.ndarray, where: str) -> np.ndarray:
    """The images with an axis for the channels."""
    shaped = images[..., None] if images.ndim == 3 else images
    if shaped.dtype == np.float64:
        shaped = shaped.astype(np.float32)
    known = shaped.dtype in (np.uint8, np.uint16, np.float32)
    if shaped.ndim != 4 or not known or not shaped.size:
        raise UsageError(
            f"{where}: images must be uint8, uint16 or float32 of shape (n, height, width[, "
            f"channels]); got {images.dtype} of shape {images.shape}"
        )
    if shaped.dtype == np.float32 and not np.isfinite(shaped).all():
        raise UsageError(f"{where}: images must be finite; got NaN or infinity")
    return shaped if shaped.flags.c_contiguous else np.ascontiguousarray(shaped)


def labels_of(labels: np.ndarray, where: str) -> np.ndarray:
    """Labels as int64 or strings, (n,)."""
    if labels.ndim == 2 and np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all():
        labels = labels.argmax(axis=1)  # one-hot
    if labels.dtype == object and all(isinstance(one, str) for one in labels):
        labels = labels.astype(str)
    if labels.ndim != 1 or labels.dtype.kind not in "iubU":
        raise UsageError(
            f"{where}: labels must be whole numbers or strings of shape (n,), or one-hot; got "
            f"{labels.dtype} of shape {labels.shape}"
        )
    return labels if labels.dtype.kind == "U" else labels.astype(np.int64)


def _floats(values: np.ndarray, what: str, where: str) -> np.ndarray:
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise UsageError(f"{where}: {what} must be finite numbers; got {values.dtype}")
    return values.astype(np.float32)


def numbered(
    tables: Mapping[str, dict[str, np.ndarray]], names: tuple[str, ...] | None, option: str
) -> tuple[str, ...]:
    """Replaces labels that are strings by their numbers; returns the names of the classes.

    Args:
        tables: Split -> columns with `label`.
        names: Of the classes; None: the labels themselves, strings in alphabetical order.
        option: Where names of classes can be given.
    """
    train = tables["train"]["label"]
    if names is None and train.dtype.kind == "U":
        names = distinct(sorted({*train.tolist()}), "the labels")
    names = names or from_labels(train, "the labels", option)
    for split, table in tables.items():
        if table["label"].dtype.kind != "U":
            continue  # the task checks them, after cleaning
        if unknown := sorted({*table["label"].tolist()} - {*names}):
            raise UsageError(f"{split}: the label {unknown[0]!r} is not one of the classes")
        numbers = {name: number for number, name in enumerate(names)}
        table["label"] = np.array([numbers[one] for one in table["label"].tolist()], np.int64)
    return names


def distinct(names: Sequence[str], where: str) -> tuple[str, ...]:
    """The names of the classes; UsageError unless they are distinct, non-empty Unicode strings."""
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where} must be Unicode text") from None
    if not names or not all(names) or len(set(names)) != len(names):
        raise UsageError(f"{where} must be distinct, non-empty strings")
    return tuple(names)


def from_labels(labels: np.ndarray, where: str, option: str) -> tuple[str, ...]:
    """The classes 0, 1, ..., named by their numbers; UsageError if a number in between is missing.

    Negative labels are rejected by the task later, unless cleaning excludes them.
    """
    present = np.unique(labels[labels >= 0])
    if not len(present) or len(present) != present[-1] + 1:
        missing = int(np.setdiff1d(np.arange(len(present) + 1), present)[0])
        raise UsageError(
            f"{where}: no example has label {missing}; number the classes 0, 1, 2, ... or name all "
            f"of them ({option})"
        )
    return tuple(str(int(label)) for label in present)
