"""From the rows of a table to a source of files or of numbers."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.config import file_search, file_types, tables
from pipeline.config.tables import Options, Table, TableColumns
from pipeline.config.validation import only_one
from pipeline.contracts import Source
from pipeline.data import split_names
from pipeline.data.array_source import ArraySource
from pipeline.data.file_list import FileList
from pipeline.data.file_source import FileSource
from pipeline.data.labels import distinct, encode_labels, in_order, labels_of
from pipeline.data.seeds import stable_hash
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError, quote

_SPLITS = {
    name: split for split, names in split_names.ALIASES.items() for name in names
}
_LARGEST = float(np.finfo(np.float32).max)
_MOST_AXES = 3  # of the features of an example
_FIRST_FEATURES = 3  # that a note names


@dataclasses.dataclass(frozen=True)
class _Row:
    """What a row says about its file or its numbers."""

    truths: Mapping[str, Any]
    """Field -> label, labels, numbers to predict or file of a mask."""
    split: str
    group: int | None


def source(table: Table, options: Options) -> Source:
    """A source of the examples in the rows of a table.

    Of a table of files, rows without a label or without an existing file are left out,
    with a note; the id is a hash of the path below the directory of the table. Of a
    table of numbers, every value must exist; the id is the number of the row. Raises
    UsageError naming the row and the column of a value that cannot be used.
    """
    only_one({"--source.label": options.label, "--source.labels": options.labels})
    columns = tables.columns(table, options)
    if columns.value:
        return _value_source(table, columns, options)
    if columns.file:
        return _file_source(table, columns, options)
    return _feature_source(table, columns, options)


def _file_source(table: Table, columns: TableColumns, options: Options) -> Source:
    root = os.path.abspath(table.path.parent)
    types = tables.file_types_of(columns.file, options)
    names = [_text(value) for value in table.columns[columns.file]]
    files, notes = file_search.find_files(names, table.path, types)
    masks: Sequence[str] = ()
    if "mask" in columns.truths:
        texts = [_text(value) for value in table.columns[columns.truths["mask"]]]
        masks, more_notes = file_search.find_files(
            texts, table.path, {"mask": (".png",)}
        )
        notes += more_notes
    rows: dict[str, _Row] = {}
    left_out = []
    for position, file in enumerate(files):
        truths = _truths(table, columns, position)
        if masks:
            truths["mask"] = masks[position]
        if not file or "" in truths.values() or None in truths.values():
            name = os.path.join(table.path.parent, names[position])
            left_out.append(f"{table.noun} {table.numbers[position]} ({name!r})")
            continue
        row = _row(table, columns, position, truths)
        if rows.setdefault(file, row) != row:
            raise UsageError(
                f"{table.where(position)}: {names[position]} occurs twice, with"
                " different labels or splits; correct the table"
            )
    note = (
        f"{table.path}: no label or no existing file in {len(left_out):,} of"
        f" {len(table.numbers):,} {table.noun}s"
    )
    if left_out:
        note += f", such as {left_out[0]}"
    if not any(row.split == "train" for row in rows.values()):
        raise UsageError(
            f"{note}; no {table.noun} is left for training: correct the table"
        )
    if left_out:
        notes.append(f"{note}; left out")
    field = file_types.most_common(rows, types)
    if field != file_types.IMAGE or columns.truths.keys() != {"label"}:
        notes.append(_summary(table, columns, f"{field} files"))
    ids = [stable_hash(os.fsencode(os.path.relpath(file, root))) for file in rows]
    arrays, class_names = _arrays(list(rows.values()), ids, table, options)
    lists: dict[str, dict[str, FileList]] = {}
    for split in arrays:
        chosen = {file: row for file, row in rows.items() if row.split == split}
        lists[split] = {field: FileList.of(list(chosen), root)}
        if masks:
            masks_of_split = [row.truths["mask"] for row in chosen.values()]
            lists[split]["mask"] = FileList.of(masks_of_split, root)
    return FileSource(
        lists,
        arrays,
        class_names,
        notes=tuple(notes),
        group_names=_group_names(table, columns),
    )


def _value_source(table: Table, columns: TableColumns, options: Options) -> Source:
    """A source of the texts of a column."""
    if table.problem:
        raise UsageError(table.problem)
    rows = []
    numbers = []
    texts = []
    left_out = []
    for position, value in enumerate(table.columns[columns.value]):
        if value is not None and not isinstance(value, str):
            raise UsageError(
                f"{table.where(position)}: {table.titles[columns.value]!r} must be a"
                f" text; got {quote(str(value))}"
            )
        text = value or ""
        truths = _truths(table, columns, position)
        has_truths = "" not in truths.values() and None not in truths.values()
        if not text.strip() or not has_truths:
            left_out.append(f"{table.noun} {table.numbers[position]}")
            continue
        rows.append(_row(table, columns, position, truths))
        numbers.append(table.numbers[position])
        texts.append(text.encode("utf-8", "surrogatepass"))
    note = (
        f"{table.path}: no {columns.value_field} or no label in {len(left_out):,} of"
        f" {len(table.numbers):,} {table.noun}s"
    )
    if left_out:
        note += f", such as {left_out[0]}"
    if not any(row.split == "train" for row in rows):
        raise UsageError(
            f"{note}; no {table.noun} is left for training: correct the table"
        )
    arrays, class_names = _arrays(rows, numbers, table, options)
    splits = np.array([row.split for row in rows])
    values = np.empty(len(texts), object)
    values[:] = texts
    for split, columns_of_split in arrays.items():
        columns_of_split[columns.value_field] = values[splits == split]
    result = _RowSource(
        table,
        arrays.pop("train"),
        arrays,
        class_names=class_names,
        group_names=_group_names(table, columns),
    )
    summary = f"the {table.key} {table.titles[columns.value]!r}"
    notes = [_summary(table, columns, summary), *_mixed_labels(table, columns)]
    if left_out:
        notes.append(f"{note}; left out")
    result.info = dataclasses.replace(result.info, notes=tuple(notes))
    return result


class _RowSource(ArraySource):
    """Numbers or texts of a table; the id of an example is the number of its row."""

    def __init__(self, table: Table, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, name=table.path.name, **options)
        self._table = table.path.name

    def location(self, id: int) -> str:
        return f"line {id} of {self._table}"


def _feature_source(table: Table, columns: TableColumns, options: Options) -> Source:
    if table.problem:
        raise UsageError(table.problem)
    rows = []
    for position in range(len(table.numbers)):
        truths = _truths(table, columns, position)
        for field, value in truths.items():
            if value in ("", None):
                raise _missing(table, columns.truths[field], position)
        rows.append(_row(table, columns, position, truths))
    feature_names = None
    if columns.features == ("features",):
        features = _lists(table, "features")
    else:
        numbers = [_numbers(table, name) for name in columns.features]
        features = np.array(numbers, np.float32).T
        feature_names = distinct(
            [table.titles[name] for name in columns.features], "the columns"
        )
    arrays, class_names = _arrays(rows, table.numbers, table, options)
    if "train" not in arrays:
        raise UsageError(
            f"{table.path}: no {table.noun} is for training: correct the table"
        )
    splits = np.array([row.split for row in rows])
    for split, columns_of_split in arrays.items():
        columns_of_split["features"] = np.ascontiguousarray(features[splits == split])
    result = _RowSource(
        table,
        arrays.pop("train"),
        arrays,
        class_names=class_names,
        feature_names=feature_names,
        group_names=_group_names(table, columns),
    )
    notes = (
        *result.info.notes,
        _summary(table, columns, _feature_summary(table, columns)),
    )
    target = columns.truths.get("target")
    name = None if target is None else str(table.titles[target])
    result.info = dataclasses.replace(result.info, notes=notes, target_name=name)
    return result


def _text(value: Any) -> str:
    return "" if tables.is_missing(value) else str(value)


def _missing(table: Table, column: str, position: int) -> UsageError:
    return UsageError(
        f"{table.where(position)}: the {table.key} {table.titles[column]!r} has no"
        f" value; fill it in, or remove the {table.noun}"
    )


def _row(
    table: Table, columns: TableColumns, position: int, truths: Mapping[str, Any]
) -> _Row:
    split = "train"
    if columns.split:
        split = _text(table.columns[columns.split][position])
    if split.lower() not in _SPLITS:
        raise UsageError(
            f"{table.where(position)}: the split {split!r} is not one of"
            f" {', '.join(_SPLITS)}; correct the table"
        )
    group = None
    if columns.group:
        text = _text(table.columns[columns.group][position])
        if not text:
            raise _missing(table, columns.group, position)
        group = _group(text)
    return _Row(truths, _SPLITS[split.lower()], group)


def _group(text: str) -> int:
    return stable_hash(text.encode("utf-8", "surrogatepass"))


def _group_names(table: Table, columns: TableColumns) -> dict[str, int] | None:
    """The names of the groups and their values in examples; None without groups."""
    if not columns.group:
        return None
    texts = {_text(value) for value in table.columns[columns.group]}
    return {text: _group(text) for text in texts}


def _truths(table: Table, columns: TableColumns, position: int) -> dict[str, Any]:
    """Field -> what is to be predicted; "" or None if the row does not say it."""
    truths: dict[str, Any] = {}
    for field, column in columns.truths.items():
        value = table.columns[column][position]
        if field == "labels":
            truths[field] = _several_labels(table, column, position)
        elif field == "target":
            truths[field] = _target(table, column, position)
        elif isinstance(value, list | dict):
            raise UsageError(
                f"{table.where(position)}: {table.titles[column]!r} must be one value;"
                f" got {quote(str(value))}; several labels of an example need"
                " --source.labels"
            )
        else:
            truths[field] = _text(value)
    return truths


def _several_labels(table: Table, column: str, position: int) -> tuple[str, ...] | None:
    """The labels of a row, a list or a text with `|` or `;` between them, without
    repetition; an empty one has no label.
    """
    value = table.columns[column][position]
    if value is None:
        return None
    values = value if isinstance(value, list) else re.split("[|;]", str(value))
    for item in values:
        if not isinstance(item, str | int | float):
            raise UsageError(
                f"{table.where(position)}: {table.titles[column]!r} must be a list of"
                f" strings; got {quote(str(value))}"
            )
    labels = {str(item).strip() for item in values if not tables.is_missing(item)}
    return tuple(sorted(labels))


def _target(
    table: Table, column: str, position: int
) -> float | tuple[float, ...] | None:
    value = table.columns[column][position]
    if isinstance(value, list):
        return tuple(_number(table, column, position, item) for item in value)
    if tables.is_missing(value):
        return None
    return _number(table, column, position, value)


def _number(table: Table, column: str, position: int, value: Any) -> float:
    """A finite number that float32 can hold."""
    number = tables.number_of(value)
    if number is None or not abs(number) <= _LARGEST:
        kind = "a number" if number is None else "a finite number"
        raise UsageError(
            f"{table.where(position)}: {quote(str(value))} in the"
            f" {table.key} {table.titles[column]!r} is not {kind}; correct it, turn"
            " categories into numbers (pandas.get_dummies), or remove the"
            f" {table.key}"
        )
    return number


def _numbers(table: Table, column: str) -> np.ndarray:
    """The values of a column, all of them finite, float64 (rows,)."""
    values = table.columns[column]
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        numbers = np.array(values).astype(np.float64)
        if numbers.ndim == 1 and (np.abs(numbers) <= _LARGEST).all():
            return numbers
    checked = []
    for position, value in enumerate(values):
        if tables.is_missing(value):
            raise _missing(table, column, position)
        checked.append(_number(table, column, position, value))
    return np.array(checked)


def _lists(table: Table, column: str) -> np.ndarray:
    """Lists of numbers of equal shapes: int64 if all are whole, else float32."""
    arrays: list[np.ndarray] = []
    for position, value in enumerate(table.columns[column]):
        try:
            array = np.array(value)
        except ValueError:  # lists of different lengths
            array = np.array(None)
        is_numeric = array.dtype.kind in "biuf" and array.size
        if not is_numeric or not 1 <= array.ndim <= _MOST_AXES:
            raise UsageError(
                f"{table.where(position)}: {table.titles[column]!r} must be a list of"
                f" numbers, or lists of equal lengths, with at most {_MOST_AXES} axes;"
                f" got {quote(str(value))}"
            )
        if arrays and array.shape != arrays[0].shape:
            raise UsageError(
                f"{table.where(position)}: {table.titles[column]!r} has the shape"
                f" {array.shape}, but {arrays[0].shape} in {table.noun}"
                f" {table.numbers[0]}; give all examples the same shape"
            )
        arrays.append(array)
    dtype = np.float32 if any(array.dtype.kind == "f" for array in arrays) else np.int64
    stacked = np.stack(arrays).astype(dtype)
    is_finite = np.isfinite(stacked).reshape(len(arrays), -1).all(axis=1)
    if not is_finite.all():
        raise UsageError(
            f"{table.where(int(is_finite.argmin()))}: {table.titles[column]!r} must be"
            f" finite; correct it, or remove the {table.noun}"
        )
    return stacked


def _arrays(
    rows: Sequence[_Row], ids: Sequence[int], table: Table, options: Options
) -> tuple[dict[str, dict[str, np.ndarray]], tuple[str, ...] | None]:
    """Split -> field -> array, (examples, ...), without masks; and the class names."""
    arrays = {"id": np.array(ids, np.int64)}
    names = None
    if options.class_names:
        names = distinct(options.class_names, "--source.class-names")
    truths = {field: [row.truths[field] for row in rows] for field in rows[0].truths}
    if "label" in truths:
        arrays["label"] = labels_of(truths["label"], str(table.path))
    if "labels" in truths:
        names = names or _label_names(rows, table)
        arrays["labels"] = _multi_hot(truths["labels"], names, table)
    if "target" in truths:
        arrays["target"] = _targets(truths["target"], table)
    if "transcript" in truths:
        texts = np.empty(len(rows), object)
        texts[:] = [
            text.encode("utf-8", "surrogatepass") for text in truths["transcript"]
        ]
        arrays["transcript"] = texts
    if rows[0].group is not None:
        arrays["group"] = np.array([row.group for row in rows], np.int64)
    splits = np.array([row.split for row in rows])
    by_split = {}
    for split in split_names.SPLITS:
        if split in splits:
            is_in_split = splits == split
            by_split[split] = {
                name: array[is_in_split] for name, array in arrays.items()
            }
    if "label" in truths and "train" in by_split:
        names = encode_labels(by_split, names, "--source.label")
    return by_split, names


def _targets(values: Sequence[Any], table: Table) -> np.ndarray:
    shapes = {np.shape(value) for value in values}
    if len(shapes) > 1:
        raise UsageError(
            f"{table.path}: the numbers to predict have different shapes:"
            f" {', '.join(map(str, sorted(shapes)))}; give all examples as many"
        )
    return np.array(values, np.float32)


def _label_names(rows: Sequence[_Row], table: Table) -> tuple[str, ...]:
    names = set()
    for row in rows:
        if row.split == "train":
            names.update(row.truths["labels"])
    if not names:
        raise UsageError(
            f"{table.path}: no example for training has a label; correct the table"
        )
    return distinct(in_order(names), "the labels")


def _multi_hot(
    labels: Sequence[tuple[str, ...]], names: tuple[str, ...], table: Table
) -> np.ndarray:
    """1 for each class that an example has, else 0, uint8, (examples, classes)."""
    numbers = {name: number for number, name in enumerate(names)}
    result = np.zeros((len(labels), len(names)), np.uint8)
    for row, values in enumerate(labels):
        for value in values:
            if value not in numbers:
                raise UsageError(
                    f"{table.path}: the label {value!r} is not one of the classes of"
                    " the training examples; correct it, or name all classes with"
                    " --source.class-names"
                )
            result[row, numbers[value]] = 1
    return result


def _feature_summary(table: Table, columns: TableColumns) -> str:
    names = columns.features
    if names == ("features",):
        return f"the {table.key} 'features'"
    listing = ", ".join(names[:_FIRST_FEATURES])
    if len(names) > _FIRST_FEATURES:
        listing += ", ..."
    return f"{pluralize(len(names), table.key)}, {listing}"


def _mixed_labels(table: Table, columns: TableColumns) -> list[str]:
    """A note if some labels are numbers and others are words."""
    label = columns.truths.get("label")
    if label is None:
        return []
    values = table.columns[label]
    present = [row for row, value in enumerate(values) if not tables.is_missing(value)]
    words = [row for row in present if tables.number_of(values[row]) is None]
    numbers = [row for row in present if tables.number_of(values[row]) is not None]
    if not numbers or not words:
        return []
    rarer = min(numbers, words, key=len)
    kind = "numbers" if rarer is numbers else "words"
    value = quote(str(values[rarer[0]]))
    return [
        f"{table.path}: {len(rarer):,} of {len(table.numbers):,} labels are {kind}"
        f" unlike the others, such as {value} in {table.noun}"
        f" {table.numbers[rarer[0]]}; each is a class"
    ]


def _summary(table: Table, columns: TableColumns, inputs: str) -> str:
    """A note about the columns that are used."""
    truths = []
    for field, column in columns.truths.items():
        truths.append(f"{field} is the {table.key} {table.titles[column]!r}")
    note = f"{table.path}: inputs are {inputs}; {', '.join(truths)}"
    if columns.group:
        note += f"; groups of {table.titles[columns.group]!r} stay together"
    if columns.row_names:
        note += f"; left out: {', '.join(map(repr, columns.row_names))}"
    label = columns.truths.get("label")
    if label and None not in map(tables.number_of, table.columns[label]):
        title = table.titles[label]
        note += f"; --source.target {title} predicts its numbers, not classes"
    return note
