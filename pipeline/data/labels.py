"""Reads labels and class names in any form, the same for every source."""

import decimal
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from pipeline.utils.errors import UsageError, suggest

# How NumPy and pandas write a missing value.
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
        shape = values.shape
        values = _convert_objects(values.ravel(), where).reshape(shape)
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
        _require_whole(values, where)
    return values.astype(np.int64)


def _convert_objects(values: np.ndarray, where: str) -> np.ndarray:
    """Converts objects to an array of strings or of numbers."""
    labels = [text_of(value) for value in values.tolist()]
    _require_present(labels, where)
    is_text = [isinstance(label, str) for label in labels]
    if all(is_text):
        return np.array(labels, str)
    if any(is_text):
        text = is_text.index(True)
        number = is_text.index(False)
        raise UsageError(
            f"{where}: labels must be all strings or all numbers; example {text} has "
            f"{labels[text]!r}, example {number} has {labels[number]!r}"
        )
    for row, label in enumerate(labels):
        if not isinstance(label, Real | decimal.Decimal):
            raise UsageError(
                f"{where}: labels must be {_EXPECTED}; example {row} has"
                f" {type(label).__name__}"
            )
    return np.array([float(label) for label in labels])


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
    wrong = np.flatnonzero(~is_binary | (ones != 1))
    if not len(wrong):
        return values.argmax(axis=1)
    row = values[wrong[0]]
    remedy = f"give {_EXPECTED}"
    if is_binary[wrong[0]]:
        problem = f"{ones[wrong[0]]} classes instead of one"
        remedy += ', or write task={"target": "labels"} for several per example'
    elif np.isclose(row.sum(), 1, atol=1e-3) and (row >= 0).all():
        problem = "soft labels, not zeros and a one"
        remedy += (
            "; y.argmax(axis=1) is the most probable class, and with"
            ' task={"target": "number"}, the numbers are predicted'
        )
    else:
        problem = "other numbers than zeros and a one"
    raise UsageError(
        f"{where}: labels of shape {values.shape} must be one-hot, but example"
        f" {wrong[0]} has {problem}; {remedy}"
    )


def _require_whole(values: np.ndarray, where: str) -> None:
    for row in np.flatnonzero(~np.isfinite(values)):
        raise UsageError(
            f"{where}: example {row} has no label ({values[row]}); remove it"
        )
    for row in np.flatnonzero(values != np.round(values)):
        raise UsageError(
            f"{where}: labels must be {_EXPECTED}; example {row} has {values[row]:g}."
            ' Numbers to predict need task={"target": "number"}'
        )


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
        if unknown := sorted({*labels.tolist()} - {*names}):
            raise UsageError(
                f"{split}: the label {unknown[0]!r} is not one of the classes"
            )
        table["label"] = np.array([numbers[name] for name in labels.tolist()], np.int64)
    return names


def encode_targets(
    tables: Mapping[str, dict[str, np.ndarray]],
    names: tuple[str, ...] | None,
    option: str,
) -> tuple[str, ...] | None:
    """Numbers the classes of labels, several labels and masks; returns their names.

    Strings in `label` become numbers, and lists of strings in `labels` rows of 0 and 1.
    The arguments are those of `encode_labels`. Returns None for numbers to predict.
    Raises UsageError if a class has no name, or a split has a class unknown in train.
    """
    train = tables["train"]
    if "label" in train:
        return encode_labels(tables, names, option)
    if "labels" in train:
        return _encode_several(tables, names, option)
    if "mask" in train:
        return _name_masks(tables, names, option)
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
    if names is None:
        names = tuple(map(str, range(train.shape[1])))
    numbers = {name: number for number, name in enumerate(names)}
    for split, table in tables.items():
        labels = table["labels"]
        if labels.dtype == object:
            table["labels"] = _rows_of(labels, numbers, split)
        elif labels.shape[1] != len(names):
            raise UsageError(
                f"{split}: y has {labels.shape[1]} columns for {len(names)} classes;"
                f" give a column for each class ({option})"
            )
    return names


def _rows_of(labels: np.ndarray, numbers: Mapping[str, int], split: str) -> np.ndarray:
    """Rows of 0 and 1, uint8, of tuples of names."""
    rows = np.zeros((len(labels), len(numbers)), np.uint8)
    for row, present in zip(rows, labels, strict=True):
        for name in present:
            if name not in numbers:
                raise UsageError(
                    f"{split}: the label {name!r} is not one of the classes;"
                    f" {suggest(name, list(numbers))}"
                )
            row[numbers[name]] = 1
    return rows


def _name_masks(
    tables: Mapping[str, dict[str, np.ndarray]],
    names: tuple[str, ...] | None,
    option: str,
) -> tuple[str, ...]:
    """The names of the classes of masks, by default their numbers."""
    present = np.zeros(256, bool)
    for split, table in tables.items():
        for row, mask in enumerate(table["mask"]):
            present[mask] = True
            largest = mask[mask != 255].max(initial=0)  # 255 is no class
            if names is not None and largest >= len(names):
                raise UsageError(
                    f"{split}: the mask of example {row} has the class {largest},"
                    f" but {option} has {len(names)} names, of the classes 0 to"
                    f" {len(names) - 1}"
                )
    classes = np.flatnonzero(present).tolist()
    if names is None and classes == [0, 255]:
        raise UsageError(
            "the masks have the values 0 and 255; divide them by 255, because they are"
            " the classes 0 and 1"
        )
    largest = max((label for label in classes if label != 255), default=0)
    return names or tuple(map(str, range(largest + 1)))


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
    if isinstance(value, Mapping):
        value = _sort_by_number(value, where)
    names = _names_of_sequence(value)
    if not names:
        raise UsageError(
            f"{where} must have a name for each class, such as ['cat', 'dog']; got"
            f" {value!r:.100}"
        )
    return distinct(names, where)


def _names_of_sequence(values: Any) -> list[str]:
    """The class names as strings; empty if `values` is not a flat sequence."""
    if isinstance(values, str | bytes):
        return []
    try:
        return [_class_name(value) for value in np.asarray(values, object).tolist()]
    except (TypeError, ValueError):  # not a sequence, or nested
        return []


def _class_name(value: Any) -> str:
    """A class name as a string; TypeError unless it is text or a whole number."""
    value = text_of(value)
    if isinstance(value, str | bool):
        return str(value)
    if not isinstance(value, Real) or not float(value).is_integer():
        raise TypeError(value)
    return str(int(float(value)))


def _sort_by_number(names: Mapping[Any, Any], where: str) -> list[Any]:
    """The names of a dictionary, name -> number or number -> name, in order."""
    pairs = [(number, name) for name, number in names.items()]
    if not all(_is_whole(number) for number, _ in pairs):
        pairs = list(names.items())
    by_number = {int(number): name for number, name in pairs if _is_whole(number)}
    if sorted(by_number) != list(range(len(names))):
        raise UsageError(
            f"{where}: a dictionary must number the classes 0, 1, ...; got"
            f" {dict(names)!r:.100}"
        )
    return [by_number[number] for number in range(len(by_number))]


def _is_whole(value: Any) -> bool:
    if isinstance(value, str):  # a key of a JSON file
        return value.isdecimal()
    return isinstance(value, Real) and float(value).is_integer()


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


def reorder(
    rows: np.ndarray, old_names: Sequence[str], names: Sequence[str], where: str
) -> np.ndarray:
    """Moves the columns of several labels from the order `old_names` to `names`.

    Raises UsageError if a name is unknown.
    """
    _require_names(old_names, names, where)
    result = np.zeros((len(rows), len(names)), rows.dtype)
    result[:, [names.index(name) for name in old_names]] = rows
    return result


def _require_names(old_names: Sequence[str], names: Sequence[str], where: str) -> None:
    for name in old_names:
        if name not in names:
            raise UsageError(
                f"{where} has a class {name!r}, unknown in train;"
                f" {suggest(name, names)}"
            )


def renumber(
    labels: np.ndarray, old_names: Sequence[str], names: Sequence[str], where: str
) -> np.ndarray:
    """Converts labels that number `old_names` to labels that number `names`, int64.

    Raises UsageError if a label or a name is unknown.
    """
    for row in np.flatnonzero((labels < 0) | (labels >= len(old_names))):
        raise UsageError(
            f"{where}: example {row} has the label {labels[row]}, which is none of its "
            f"{len(old_names)} classes; remove such examples with filter()"
        )
    _require_names(old_names, names, where)
    return np.array([names.index(name) for name in old_names])[labels]
