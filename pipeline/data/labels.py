"""Reads labels and class names in any form, the same for every source."""

import contextlib
import decimal
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from pipeline.data.mask_files import IGNORED
from pipeline.utils.errors import UsageError, suggest

# How NumPy and pandas write a missing value. "NA" and "None" may be names of classes.
_MISSING = ("", "nan", "NaN", "<NA>", "NaT")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)
_WHOLE_NUMBER = re.compile(r"[+-]?\d+(\.0+)?", re.ASCII)
_EXPECTED = "whole numbers or strings of shape (n,), or one-hot of shape (n, classes)"


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, `pandas.NA`, `NaT`, their text, or empty."""
    return value is None or str(value).strip() in _MISSING


def labels_of(labels: Any, where: str) -> np.ndarray:
    """Converts labels of any form to int64 or strings, (n,).

    Args:
        labels: An array, tensor or sequence of shape (n,) or (n, 1): whole numbers of
            any dtype, floats included; booleans, which become 0 and 1; strings, bytes
            in UTF-8, or objects of these kinds. Or one-hot (n, classes), of any numeric
            dtype or bool. Strings such as `1.0`, if all are whole numbers, become `1`.
        where: Name of the data in messages.

    Raises:
        UsageError: The labels have another form; the message names the first example.
    """
    values = np.asarray(labels)
    while values.ndim > 1 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.dtype.kind == "V" and not values.dtype.names:  # such as bfloat16
        values = values.astype(np.float32)
    if values.dtype.kind in "OST":
        values = _convert_objects(values.ravel(), where).reshape(values.shape)
    if values.ndim == 2 and values.dtype.kind in "biuf":
        values = _convert_one_hot(values, where)
    if values.ndim != 1 or values.dtype.kind not in "biufU":
        raise UsageError(
            f"{where}: labels must be {_EXPECTED}; got {values.dtype} of shape"
            f" {values.shape}"
        )
    if values.dtype.kind == "U":
        return _clean_strings(values, where)
    if values.dtype.kind == "f":
        _require_present(values.tolist(), where)
        for row in np.flatnonzero(~np.isfinite(values) | (values != np.round(values))):
            raise UsageError(
                f"{where}: labels must be {_EXPECTED}; example {row} has"
                f" {values[row]:g}; numbers to predict need"
                ' task={"target": "number"}'
            )
    return values.astype(np.int64)


def _convert_objects(values: np.ndarray, where: str) -> np.ndarray:
    """Converts objects to an array of strings or of numbers."""
    labels = values.tolist()
    if labels and {*map(type, labels)} <= {bytes, str}:  # much faster than one by one
        texts = {label: text_of(label) for label in {*labels}}
        if not any(map(is_missing, texts.values())):
            return np.array([texts[label] for label in labels], str)
    labels = [text_of(value) for value in labels]
    _require_present(labels, where)
    has_text = any(isinstance(label, str) for label in labels)
    for row, label in enumerate(labels):
        if not isinstance(label, str if has_text else Real | decimal.Decimal):
            raise UsageError(
                f"{where}: labels must be all strings or all numbers; example {row} has"
                f" {label!r:.40}"
            )
    return np.array(labels, str if has_text else float)


def text_of(value: Any) -> Any:
    """Decodes bytes as UTF-8 with surrogates for errors; returns other values as is."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value


def _clean_strings(values: np.ndarray, where: str) -> np.ndarray:
    unique_values, indices = np.unique(values, return_inverse=True)
    texts = unique_values.tolist()
    if any(map(is_missing, texts)):
        _require_present(values.tolist(), where)
    if all(map(_WHOLE_NUMBER.fullmatch, texts)) and any("." in text for text in texts):
        # pandas writes a column of whole numbers with a gap as 1.0, 2.0.
        texts = [text.partition(".")[0] for text in texts]
    return np.array(texts)[indices]


def _require_present(values: Sequence[Any], where: str) -> None:
    for row, value in enumerate(values):
        if is_missing(value):
            raise UsageError(
                f"{where}: example {row} has no label ({value!r}); remove it"
            )


def _convert_one_hot(values: np.ndarray, where: str) -> np.ndarray:
    is_binary = ((values == 0) | (values == 1)).all(axis=1)
    ones = (values == 1).sum(axis=1)
    for row in np.flatnonzero(~is_binary | (ones != 1)):
        problem = (
            "other numbers than 0 and 1; of soft labels, y.argmax(axis=1) is the most"
            ' probable class; numbers to predict need task={"target": "number"}'
        )
        if is_binary[row]:
            problem = (
                f"{ones[row]} classes instead of one; several labels per example need"
                ' task={"target": "labels"}'
            )
        raise UsageError(
            f"{where}: labels of shape {values.shape} must be one-hot, but example"
            f" {row} has {problem}"
        )
    return values.argmax(axis=1)


def encode_labels(
    tables: Mapping[str, dict[str, np.ndarray]],
    names: tuple[str, ...] | None,
    option: str,
) -> tuple[str, ...]:
    """Replaces labels that are strings by class numbers; returns the class names.

    If `names` is None, the names are the labels themselves, strings in the order of
    `in_order`. `option` is named in messages as the way to give class names.
    """
    train = tables["train"]["label"]
    is_text = train.dtype.kind == "U"
    if names is None and is_text:
        names = distinct(in_order({*train.tolist()}), "the labels")
    names = names or from_labels(train, "the labels", option)
    numbers = {name: number for number, name in enumerate(names)}
    for split, table in tables.items():
        labels = table["label"]
        if is_text:
            labels = labels.astype(str)  # 1 is the class "1", not the second class
        if labels.dtype.kind != "U":
            continue  # the task checks them, after cleaning
        _require_names(labels.tolist(), names, split)
        table["label"] = np.array([numbers[name] for name in labels.tolist()], np.int64)
    return names


def _require_names(labels: Iterable[str], names: Sequence[str], where: str) -> None:
    for name in sorted({*labels} - {*names}):
        raise UsageError(
            f"{where}: the label {name!r} is not one of the classes;"
            f" {suggest(name, names)}"
        )


def encode_targets(
    tables: Mapping[str, dict[str, np.ndarray]],
    names: tuple[str, ...] | None,
    option: str,
) -> tuple[str, ...] | None:
    """Numbers the classes of labels and of several labels; returns their names.

    Strings in `label` become numbers, and lists of strings in `labels` rows of 0 and 1.
    The arguments are those of `encode_labels`. Returns None for numbers to predict, and
    for masks whose values are no numbers of classes. Raises UsageError if a class has
    no name, or a split has a class unknown in train.
    """
    train = tables["train"]
    if "label" in train:
        return encode_labels(tables, names, option)
    if "labels" in train:
        return _encode_several(tables, names, option)
    if "mask" in train:
        return names or _numbers_of_masks([table["mask"] for table in tables.values()])
    if names is not None:
        raise UsageError(
            f"{option} names classes, but y has numbers to predict; remove it"
        )
    return None


def _encode_several(
    tables: Mapping[str, dict[str, np.ndarray]],
    names: tuple[str, ...] | None,
    option: str,
) -> tuple[str, ...]:
    """Encodes several labels per example as uint8, (n, classes)."""
    train = tables["train"]["labels"]
    if names is None and train.dtype == object:
        names = distinct(in_order(set().union(*train)), "the labels")
    names = names or tuple(map(str, range(train.shape[1])))
    numbers = {name: number for number, name in enumerate(names)}
    for split, table in tables.items():
        labels = table["labels"]
        if labels.dtype == object:
            _require_names(set().union(*labels), names, split)
            table["labels"] = np.zeros((len(labels), len(names)), np.uint8)
            for row, present in zip(table["labels"], labels, strict=True):
                row[[numbers[name] for name in present]] = 1
        elif labels.shape[1] != len(names):
            raise UsageError(
                f"{split}: y has {labels.shape[1]} columns for {len(names)} classes;"
                f" pass a column for each class ({option})"
            )
    return names


def _numbers_of_masks(masks: Sequence[np.ndarray]) -> tuple[str, ...] | None:
    """The numbers of the classes of all splits, from 0; None if the target must find
    out what the values of the masks mean, such as 0 and 255.
    """
    present = np.zeros(256, bool)
    for values in masks:
        for mask in values:
            present[mask] = True
    numbers = np.flatnonzero(present)
    largest = numbers[numbers != IGNORED].max(initial=0)
    if not 0 < largest < 2 * len(numbers):
        return None
    return tuple(map(str, range(largest + 1)))


def in_order(names: Iterable[str]) -> list[str]:
    """Sorts names alphabetically, or by their values if all of them are numbers.

    Names keep their spelling: `01` and `1` are two classes, the shorter one first.
    """
    texts = sorted(names)
    if all(map(_NUMBER.fullmatch, texts)):
        texts.sort(key=lambda text: (decimal.Decimal(text), len(text)))
    return texts


def class_names_of(value: Any, where: str) -> tuple[str, ...]:
    """Converts class names of any form to strings, in the order of the classes.

    Args:
        value: Strings, bytes, whole numbers or booleans in the order of the classes: a
            sequence, array or tensor. Or a dictionary name -> number (Keras's
            `class_indices`) or number -> name.
        where: Name of the argument in messages.

    Raises:
        UsageError: The names have another form, are not distinct, or do not number the
            classes 0, 1, ...
    """
    values = _sort_by_number(value) if isinstance(value, Mapping) else value
    names = []
    if not isinstance(values, str | bytes):
        with contextlib.suppress(TypeError, ValueError):  # not a sequence, or nested
            names = [*map(_class_name, np.asarray(values, object).tolist())]
    if not names:
        raise UsageError(
            f"{where} must have a name for each class, such as ['cat', 'dog'] or"
            f" {{'cat': 0, 'dog': 1}}; got {value!r:.100}"
        )
    return distinct(names, where)


def _class_name(value: Any) -> str:
    """A class name as a string; TypeError unless it is text or a whole number."""
    value = text_of(value)
    if isinstance(value, str | bool):
        return str(value)
    if not isinstance(value, Real) or not float(value).is_integer():
        raise TypeError(value)
    return str(int(float(value)))


def _sort_by_number(names: Mapping[Any, Any]) -> list[Any]:
    """The names of a dictionary, name -> number or number -> name, in order.

    Empty unless the numbers are 0, 1, ...; keys of a JSON file are text.
    """
    numbers = [str(number) for number in range(len(names))]
    for pairs in (zip(names.values(), names, strict=True), names.items()):
        by_number = {str(number): name for number, name in pairs}
        if sorted(by_number) == sorted(numbers):
            return [by_number[number] for number in numbers]
    return []


def distinct(names: Sequence[str], where: str) -> tuple[str, ...]:
    """The names as a tuple; UsageError unless they are distinct, non-empty Unicode."""
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where} must be Unicode text") from None
    problem = f"{where} must be distinct, non-empty strings"
    if not names or not all(names):
        raise UsageError(problem)
    if len(set(names)) != len(names):
        ((repeated, count),) = Counter(names).most_common(1)
        raise UsageError(f"{problem}; {repeated!r} is there {count} times")
    return tuple(names)


def from_labels(labels: np.ndarray, where: str, option: str) -> tuple[str, ...]:
    """Names the classes 0, 1, ... by their numbers; UsageError if one is missing.

    The task rejects negative labels later, unless cleaning excludes them.
    """
    present = np.unique(labels[labels >= 0])
    if not len(present) or len(present) != present[-1] + 1:
        if len(present) and present[0] == 1 and len(present) == present[-1]:
            raise UsageError(
                f"{where} begin with 1; subtract 1, because classes count from 0"
            )
        missing = int(np.setdiff1d(np.arange(len(present) + 1), present)[0])
        raise UsageError(
            f"{where}: no example has label {missing}; number the classes 0, 1, 2, ..."
            f" or name all of them ({option})"
        )
    return tuple(str(int(label)) for label in present)


def renumber(
    values: np.ndarray, old_names: Sequence[str], names: Sequence[str], where: str
) -> np.ndarray:
    """Converts labels that number `old_names` to labels that number `names`.

    Of several labels (n, classes), moves the columns. Raises UsageError if a label or a
    name is unknown.
    """
    _require_names(old_names, names, where)
    positions = np.array([names.index(name) for name in old_names])
    if values.ndim == 2:
        rows = np.zeros((len(values), len(names)), values.dtype)
        rows[:, positions] = values
        return rows
    for row in np.flatnonzero((values < 0) | (values >= len(old_names))):
        raise UsageError(
            f"{where}: example {row} has the label {values[row]}, which is none of its "
            f"{len(old_names)} classes; remove such examples with filter()"
        )
    return positions[values]
