"""Arrays that a network takes as they are: any number, shape and type of x and y."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.data import array_inputs
from pipeline.data.array_source import weights_of
from pipeline.utils.errors import UsageError

TEXT = "text"
"""Ends the names of fields with texts: their bytes in UTF-8, filled with zeros."""


def fields_of(
    where: str, x: Any, y: Any, sample_weight: Any = None
) -> dict[str, np.ndarray]:
    """The fields of x and y.

    Args:
        where: The name of the arrays in messages.
        x: Numbers or strings, (n, ...), or a dictionary of them.
        y: Numbers (n, ...), or a dictionary of them.
        sample_weight: At least 0, (n,).

    Returns:
        `x` or `x/NAME`; `y` or `y/NAME`; perhaps `sample_weight`, float32. Floats are
        float32, booleans too; integers keep their type. Texts are uint8 (n, ..., bytes)
        under a name that ends with `/text`.

    Raises:
        UsageError: An array has another form, or their lengths differ.
    """
    fields: dict[str, np.ndarray] = {}
    for field, title, values in [*_named("x", x, where), *_named("y", y, where)]:
        array = array_inputs.array_of(values, title, where)
        if array.dtype.kind in "OSU" and array_inputs.first_text(array) is not None:
            if field.startswith("y"):
                raise UsageError(
                    f"{where}: {title} holds text, but a loss compares numbers; encode"
                    " it, for example with keras.layers.StringLookup"
                )
            fields[f"{field}/{TEXT}"] = _bytes_of(array, title, where)
            continue
        array = array_inputs.numbers_of(array, title, where)
        if array.dtype.kind == "f":
            array = _float32(array, title, where)
            if field.startswith("x"):
                array = array_inputs.floats_of(array, title, where)
        fields[field] = np.ascontiguousarray(array)
    lengths = {field: len(values) for field, values in fields.items()}
    (first, count), *others = lengths.items()
    for field, length in others:
        if length != count:
            raise UsageError(
                f"{where}: {first} has {count} examples, but {field} has {length}"
            )
    if not count:
        raise UsageError(f"{where} is empty")
    if isinstance(sample_weight, Mapping):
        raise UsageError(
            f"{where}: sample_weight is a dictionary; give one weight for each example,"
            " and loss_weights for the outputs"
        )
    if sample_weight is not None:
        fields["sample_weight"] = weights_of(sample_weight, count, where)
    return fields


def _named(name: str, values: Any, where: str) -> list[tuple[str, str, Any]]:
    """(field, title, array) for an array, or for each array of a dictionary."""
    if not isinstance(values, Mapping):
        return [(name, name, values)]
    if not values:
        raise UsageError(f"{where}: {name} is an empty dictionary")
    parts = []
    for key, part in values.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise UsageError(
                f"{where}: {name} has an array named {key!r}; rename it to a string"
                " that is not empty and has no '/'"
            )
        parts.append((f"{name}/{key}", f"{name}[{key!r}]", part))
    return parts


def _float32(array: np.ndarray, title: str, where: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        result = array.astype(np.float32, copy=False)
    if result is not array and np.any(np.isinf(result) & np.isfinite(array)):
        raise UsageError(
            f"{where}: {title} has numbers too large for float32, such as"
            f" {np.abs(array).max():g}; scale them"
        )
    return result


def _bytes_of(texts: np.ndarray, title: str, where: str) -> np.ndarray:
    """The bytes of texts (n, ...), uint8 (n, ..., bytes)."""
    encoded = []
    for value in texts.ravel().tolist():
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass")
        if not isinstance(value, bytes):
            raise UsageError(
                f"{where}: {title} holds text and {type(value).__name__}; give strings"
                " only"
            )
        encoded.append(value)
    content = np.array(encoded, np.bytes_)
    return content.view(np.uint8).reshape(*texts.shape, -1)


def match(tables: Mapping[str, dict[str, np.ndarray]]) -> None:
    """Gives a field the same type in all splits, and texts the same number of bytes.

    Raises UsageError if the splits have different fields.
    """
    train = tables["train"]
    for split, table in tables.items():
        if different := sorted((table.keys() ^ train.keys()) - {"sample_weight"}):
            raise UsageError(
                f"{split} and train must have the same x and y; only one of them has"
                f" {different[0]}"
            )
    for field in train:
        columns = [table[field] for table in tables.values() if field in table]
        dtype = np.result_type(*columns)
        if dtype.kind == "f":
            dtype = np.dtype(np.float32)
        for table in tables.values():
            if field in table:
                column = table[field].astype(dtype, copy=False)
                if field.endswith(f"/{TEXT}"):
                    longest = max(column.shape[-1] for column in columns)
                    column = _fill(column, longest)
                table[field] = column


def _fill(texts: np.ndarray, length: int) -> np.ndarray:
    """Fills the bytes of texts with zeros up to this length."""
    widths = [(0, 0)] * texts.ndim
    widths[-1] = (0, length - texts.shape[-1])
    return np.pad(texts, widths)
