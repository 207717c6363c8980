"""From the rows of a table to a source of files, texts, lists or rows."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config.validation import only_one
from pipeline.contracts import Source
from pipeline.data import (
    file_search,
    file_types,
    mask_files,
    names,
    split_names,
    table_columns,
)
from pipeline.data.array_source import ArraySource
from pipeline.data.file_list import FileList
from pipeline.data.file_source import FileSource
from pipeline.data.labels import distinct, encode_labels, in_order, labels_of
from pipeline.data.seeds import stable_hash
from pipeline.data.table import (
    Table,
    iso_dates,
    lists,
    missing,
    quote_cell,
    texts,
    words,
)
from pipeline.data.table_columns import NUMBERS, Options, Roles
from pipeline.utils import image_formats
from pipeline.utils.console import join_words
from pipeline.utils.errors import UsageError, quote

_SPLITS = {
    name: split for split, aliases in split_names.ALIASES.items() for name in aliases
}
_SPLIT_DTYPE = np.array(split_names.SPLITS).dtype
_MAX_FLOAT = float(np.finfo(np.float32).max)
_MIN_ROWS_OF_LEAKS = 20
_MAX_AXES = 3  # of the features of an example


def from_table(table: Table, options: Options) -> Source:
    """A source of the examples in the rows of a table.

    Rows without what is to be predicted, or without the file or text to predict from,
    are left out, with a note. The id of an example with a file is a hash of the path
    below the directory of the table, and else the number of the row. Raises UsageError
    naming the row and the column of a value that cannot be used.
    """
    only_one({"--source.label": options.label, "--source.labels": options.labels})
    roles = table_columns.find_roles(table, options)
    truths, has_truths = _truths(table, roles)
    if roles.has_files:
        return _file_source(table, roles, options, truths, has_truths)
    is_used = has_truths
    if roles.source and not lists(table.columns[roles.source]):
        is_used = is_used & ~missing(table.columns[roles.source])
    notes = [*table.notes, *table_columns.describe(table, roles)]
    notes += _left_out_note(table, roles, is_used)
    notes += _class_notes(table, roles)
    notes += _leak_notes(table, roles)
    columns = {"id": _ids(table.row_numbers), **_columns(table, roles), **truths}
    columns_by_split = _by_split(table, roles, columns, is_used)
    class_names = _encode(columns_by_split, table, roles, options)
    source = _RowSource(
        table,
        columns_by_split.pop("train"),
        columns_by_split,
        class_names=class_names,
        feature_names=None,
        group_names=_group_names(table, roles),
    )
    (target,) = roles.truths.get("target", ("",))[:1]
    source.info = dataclasses.replace(
        source.info,
        notes=tuple(notes),
        target_name=target or None,
        columns=roles.columns or None,
        input_name=roles.source or None,
    )
    return source


def _ids(row_numbers: Sequence[int]) -> np.ndarray:
    if isinstance(row_numbers, range):  # much faster than one by one
        return np.arange(row_numbers.start, row_numbers.stop, dtype=np.int64)
    numbers = np.array(row_numbers)
    if numbers.dtype.kind == "u" and numbers.max(initial=0) > np.iinfo(np.int64).max:
        return np.arange(len(numbers), dtype=np.int64)
    return numbers.astype(np.int64)


class _RowSource(ArraySource):
    """Rows of a table; the id of an example is the number of its row."""

    def __init__(self, table: Table, *arguments: Any, **options: Any) -> None:
        name = os.path.basename(table.name)
        super().__init__(*arguments, name=name, **options)
        self._table = name
        self._noun = table.noun

    def location(self, id: int) -> str:
        return f"{self._noun} {id} of {self._table}"


def _columns(table: Table, roles: Roles) -> dict[str, np.ndarray]:
    """The raw fields of the inputs of all rows."""
    of_columns = _row_fields(table, roles) if roles.columns else {}
    if not roles.source:
        return of_columns
    values = table.columns[roles.source]
    if lists(values):
        return {roles.field: _lists(table, roles.source)}
    if not pa.types.is_string(values.type) and not pa.types.is_null(values.type):
        raise UsageError(
            f"{table.where(0)}: {roles.source!r} must be a text; got"
            f" {quote_cell(values, 0)}"
        )
    return {roles.field: _bytes(texts(values)), **of_columns}


def _bytes(strings: pa.ChunkedArray) -> np.ndarray:
    """Strings as bytes, an object array (rows,)."""
    result = np.empty(len(strings), object)
    result[:] = strings.cast(pa.binary()).to_pylist()
    return result


def _row_fields(table: Table, roles: Roles) -> dict[str, np.ndarray]:
    """`numbers`, float64 (rows, n) with NaN for none, and `strings`, (rows, m)."""
    are_numbers = [column.kind in ("number", "boolean") for column in roles.columns]
    numbers = np.empty((len(table), sum(are_numbers)), np.float64)
    strings = np.empty((len(table), len(are_numbers) - sum(are_numbers)), object)
    position = {"numbers": 0, "strings": 0}
    for column, is_number in zip(roles.columns, are_numbers, strict=True):
        title = str(table.find(column.name))
        if is_number:
            numbers[:, position["numbers"]] = _finite(table, title)
        elif column.kind == "date" and column.order != table.date_order(title):
            strings[:, position["strings"]] = _bytes(iso_dates(table, title))
        else:
            strings[:, position["strings"]] = _bytes(words(table.columns[title]))
        position["numbers" if is_number else "strings"] += 1
        table.forget(title)  # one copy of a large table is enough
    return {NUMBERS: numbers, "strings": strings}


def _truths(table: Table, roles: Roles) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Field -> values of what is to be predicted, (rows, ...); and whether a row has
    all of them.
    """
    fields: dict[str, np.ndarray] = {}
    has_all = np.ones(len(table), bool)
    for field, titles in roles.truths.items():
        if field == "labels":
            fields[field], has_value = _several_labels(table, titles)
        elif field == "target":
            fields[field], has_value = _targets(table, titles[0])
        else:
            values = table.columns[titles[0]]
            if lists(values):
                raise UsageError(
                    f"{table.where(0)}: {titles[0]!r} must be one value; got"
                    f" {quote_cell(values, 0)}; several labels of an example need"
                    " --source.labels"
                )
            fields[field] = _bytes(texts(values))
            has_value = _has_value(table, titles[0])
        has_all &= has_value
    return fields, has_all


def _has_value(table: Table, title: str) -> np.ndarray:
    """Whether a row has a value: among numbers, words such as NA are none."""
    numbers = table.numbers(title)
    return ~missing(table.columns[title]) if numbers is None else ~np.isnan(numbers)


def _several_labels(
    table: Table, titles: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """The labels of each row, an object array of tuples (rows,)."""
    result = np.empty(len(table), object)
    if len(titles) > 1:
        columns: list[Any] = [table.numbers(title) for title in titles]
        marks = np.stack(columns, axis=1)
        for row, mark in enumerate(marks == 1):
            result[row] = tuple(np.array(titles)[mark].tolist())
        return result, np.ones(len(table), bool)
    values = table.columns[titles[0]]
    has_value = np.ones(len(table), bool)
    if not lists(values):
        words = texts(values).to_pylist()
        result[:] = [table_columns.split_labels(word) for word in words]
        return result, has_value
    for row, items in enumerate(values.to_pylist()):
        has_value[row] = items is not None
        cells = [str(item).strip() for item in items or ()]
        present = {cell for cell in cells if cell not in names.MISSING_TEXTS}
        result[row] = tuple(sorted(present))
    return result, has_value


def _targets(table: Table, title: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers to predict, float32 (rows,) or (rows, numbers)."""
    values = table.columns[title]
    if lists(values):
        return _lists(table, title).astype(np.float32), np.ones(len(table), bool)
    if table.booleans(title) is None and table.numbers(title) is None:
        row = table.not_numbers(title)[0]
        raise UsageError(
            f"{table.where(row)}: {quote_cell(values, row)} in the {table.key}"
            f" {title!r} is not a number; correct it, or write --source.label {title}"
            " to predict classes"
        )
    numbers = _finite(table, title)
    return numbers.astype(np.float32), ~np.isnan(numbers)


def _finite(table: Table, title: str) -> np.ndarray:
    """The numbers or booleans of a column, float64 (rows,), NaN for none.

    Raises UsageError naming the first row with infinity, or more than float32 has.
    """
    numbers = table.booleans(title)
    if numbers is None:
        numbers = np.asarray(table.numbers(title))
    for row in np.flatnonzero(np.abs(numbers) > _MAX_FLOAT)[:1].tolist():
        raise UsageError(
            f"{table.where(row)}: {quote_cell(table.columns[title], row)} in the"
            f" {table.key} {title!r} is not a finite number; correct it"
        )
    return numbers


def _lists(table: Table, title: str) -> np.ndarray:
    """Lists of numbers of equal shapes: int64 if all are whole, else float32."""
    arrays: list[np.ndarray] = []
    values = table.columns[title].to_pylist()
    for position, value in enumerate(values):
        try:
            array = np.array(value)
        except ValueError:  # lists of different lengths
            array = np.array(None)
        is_numeric = array.dtype.kind in "biuf" and array.size
        if not is_numeric or not 1 <= array.ndim <= _MAX_AXES:
            raise UsageError(
                f"{table.where(position)}: {title!r} must be a list of numbers, or"
                f" lists of equal lengths, with at most {_MAX_AXES} axes; got"
                f" {quote(str(value))}"
            )
        if arrays and array.shape != arrays[0].shape:
            raise UsageError(
                f"{table.where(position)}: {title!r} has the shape {array.shape}, but"
                f" {arrays[0].shape} in {table.noun} {table.row_numbers[0]}; give all"
                " examples the same shape"
            )
        arrays.append(array)
    dtype = np.float32 if any(array.dtype.kind == "f" for array in arrays) else np.int64
    stacked = np.stack(arrays).astype(dtype)
    is_finite = np.isfinite(stacked).reshape(len(arrays), -1).all(axis=1)
    if not is_finite.all():
        raise UsageError(
            f"{table.where(int(is_finite.argmin()))}: {title!r} must be finite;"
            f" correct it, or remove the {table.noun}"
        )
    return stacked


def _left_out_note(table: Table, roles: Roles, is_used: np.ndarray) -> list[str]:
    """A note about the rows that are left out.

    Raises UsageError if none is left.
    """
    left_out = np.flatnonzero(~is_used)
    if not len(left_out):
        return []
    truths = join_words([repr(title) for t in roles.truths.values() for title in t])
    what = f"no value in {truths}"
    if roles.source:
        what = f"no {roles.field} or {what}"
    note = (
        f"{table.name}: {what} in {len(left_out):,} of {len(table):,} {table.noun}s,"
        f" such as {table.noun} {table.row_numbers[left_out[0]]}"
    )
    if not is_used.any():
        raise UsageError(
            f"{note}; no {table.noun} is left for training: correct the table"
        )
    return [f"{note}; left out"]


def _split_of_rows(table: Table, roles: Roles) -> np.ndarray:
    """The split of each row, one of `SPLITS`, strings (rows,)."""
    if not roles.split:
        return np.full(len(table), "train", _SPLIT_DTYPE)
    words = texts(table.columns[roles.split]).to_pylist()
    splits = np.empty(len(words), _SPLIT_DTYPE)
    for row, word in enumerate(words):
        split = _SPLITS.get(word.lower())
        if split is None:
            raise UsageError(
                f"{table.where(row)}: the split {word!r} is not one of"
                f" {', '.join(_SPLITS)}; correct the table"
            )
        splits[row] = split
    return splits


def _groups(table: Table, roles: Roles) -> np.ndarray | None:
    """A hash of the group of each row, int64 (rows,); None without groups."""
    if not roles.group:
        return None
    words = texts(table.columns[roles.group]).to_pylist()
    if "" in words:
        row = words.index("")
        raise UsageError(
            f"{table.where(row)}: the {table.key} {roles.group!r} has no value; fill it"
            f" in, or remove the {table.noun}"
        )
    hashes = {word: _hash(word) for word in {*words}}
    return np.array([hashes[word] for word in words], np.int64)


def _hash(text: str) -> int:
    return stable_hash(text.encode("utf-8", "surrogatepass"))


def _group_names(table: Table, roles: Roles) -> dict[str, int] | None:
    """The names of the groups and their values in examples; None without groups."""
    if not roles.group:
        return None
    words = {*texts(table.columns[roles.group]).to_pylist()}
    return {word: _hash(word) for word in words}


def _by_split(
    table: Table,
    roles: Roles,
    columns: Mapping[str, np.ndarray],
    is_used: np.ndarray,
) -> dict[str, dict[str, np.ndarray]]:
    """Split -> field -> values of its rows that are used.

    Raises UsageError if there is nothing for training.
    """
    groups = _groups(table, roles)
    if groups is not None:
        columns = {**columns, "group": groups}
    splits = _split_of_rows(table, roles)
    by_split = {}
    for split in split_names.SPLITS:
        rows = np.flatnonzero(is_used & (splits == split))
        if len(rows):
            is_whole = len(rows) == len(table)
            by_split[split] = {
                name: values if is_whole else values[rows]
                for name, values in columns.items()
            }
    if "train" not in by_split:
        raise UsageError(
            f"{table.name}: no {table.noun} is for training: correct the table"
        )
    return by_split


def _encode(
    by_split: Mapping[str, dict[str, np.ndarray]],
    table: Table,
    roles: Roles,
    options: Options,
) -> tuple[str, ...] | None:
    """Numbers the classes of labels in place; returns their names."""
    class_names = None
    if options.class_names:
        class_names = distinct(options.class_names, "--source.class-names")
    if "label" in roles.truths:
        for columns in by_split.values():
            columns["label"] = labels_of(columns["label"], table.name)
        return encode_labels(by_split, class_names, "--source.label")
    if "labels" in roles.truths:
        class_names = class_names or _label_names(by_split["train"]["labels"], table)
        for columns in by_split.values():
            columns["labels"] = _multi_hot(columns["labels"], class_names, table)
    return class_names


def _label_names(labels: np.ndarray, table: Table) -> tuple[str, ...]:
    present: set[str] = set().union(*labels)
    if not present:
        raise UsageError(
            f"{table.name}: no example for training has a label; correct the table"
        )
    return distinct(in_order(present), "the labels")


def _multi_hot(
    labels: np.ndarray, class_names: tuple[str, ...], table: Table
) -> np.ndarray:
    """1 for each class that an example has, else 0, uint8, (examples, classes)."""
    numbers = {name: number for number, name in enumerate(class_names)}
    result = np.zeros((len(labels), len(class_names)), np.uint8)
    for row, values in enumerate(labels):
        for value in values:
            if value not in numbers:
                raise UsageError(
                    f"{table.name}: the label {value!r} is not one of the classes of"
                    " the training examples; correct it, or name all classes with"
                    " --source.class-names"
                )
            result[row, numbers[value]] = 1
    return result


def _class_notes(table: Table, roles: Roles) -> list[str]:
    """Notes if labels look like no value, or are numbers among words."""
    if "label" not in roles.truths:
        return []
    title = roles.truths["label"][0]
    words = texts(table.columns[title])
    words = words.filter(pc.not_equal(words, ""))
    notes = []
    ambiguous = sorted({*words.unique().to_pylist()} & {*names.AMBIGUOUS_TEXTS})
    if ambiguous:
        notes.append(
            f"{table.name}: {join_words([repr(word) for word in ambiguous])} in the"
            f" {table.key} {title!r} is a class; leave the cell empty for no value"
        )
    wrong = table.not_numbers(title) if table.numbers(title) is None else []
    count = len(words)
    numbers: list[int] = []
    if wrong and len(wrong) < count:
        others = {*range(len(table))} - {*wrong}
        cells = texts(table.columns[title]).to_pylist()
        numbers = sorted(
            row for row in others if cells[row].lower() not in names.MISSING_NUMBERS
        )
        rarer = min(numbers, wrong, key=len)
    if wrong and numbers:
        kind = "numbers" if rarer is numbers else "words"
        notes.append(
            f"{table.name}: {len(rarer):,} of {count:,} labels are {kind} unlike the"
            f" others, such as {quote_cell(table.columns[title], rarer[0])} in"
            f" {table.noun} {table.row_numbers[rarer[0]]}; each is a class"
        )
    return notes


def _leak_notes(table: Table, roles: Roles) -> list[str]:
    """A warning for each column that equals what is to be predicted, or has one value
    for each class.
    """
    field, (title, *_) = next(iter(roles.truths.items()))
    if lists(table.columns[title]):
        return []
    notes: list[str] = []
    for column in roles.columns:
        if column.kind in ("date", "text"):
            continue
        tells = _correspond if field == "label" else _are_equal
        if tells(table, column.name, title):
            notes.append(
                f"{table.name}: the {table.key} {column.name!r} tells {title!r}, which"
                " is to be predicted; remove it if it is not known at prediction time"
            )
    return notes


def _are_equal(table: Table, *titles: str) -> bool:
    """Whether two columns of numbers are equal where both have one."""
    first, second = (table.numbers(title) for title in titles)
    if first is None or second is None:
        return False
    is_present = ~np.isnan(first) & ~np.isnan(second)
    return bool(is_present.any() and (first == second)[is_present].all())


def _correspond(table: Table, *titles: str) -> bool:
    """Whether each value of one column goes with one value of the other."""
    for count in (_MIN_ROWS_OF_LEAKS, len(table)):  # most differ in the first rows
        first, second = (_codes(table, title, count) for title in titles)
        pairs = len(np.unique(first * (second.max() + 1) + second))
        if not pairs == first.max() + 1 == second.max() + 1:
            return False
    return 2 <= pairs < count / 2


def _codes(table: Table, title: str, count: int) -> np.ndarray:
    """The number of each of the first values among the different ones, int64 (n,)."""
    values = table.numbers(title)
    if values is None:
        values = texts(table.columns[title][:count]).to_numpy()
    return np.unique(values[:count], return_inverse=True)[1]


def _file_source(
    table: Table,
    roles: Roles,
    options: Options,
    truths: Mapping[str, np.ndarray],
    has_truths: np.ndarray,
) -> Source:
    types = table_columns.types_of_files(roles.source, options)
    words = texts(table.columns[roles.source]).to_pylist()
    files, notes = file_search.find_files(words, table.folder, table.name, types)
    has_files = np.array([bool(file) for file in files])
    masks: list[str] = []
    if "mask" in truths:
        cells = [cell.decode() for cell in truths["mask"]]
        types_of_masks = {"mask": image_formats.SUFFIXES}
        masks, more_notes = file_search.find_files(
            cells, table.folder, table.name, types_of_masks
        )
        notes += more_notes
        has_files &= np.array([bool(mask) for mask in masks])
    is_used = has_truths & has_files
    left_out = np.flatnonzero(~is_used)
    note = (
        f"{table.name}: no label or no existing file in {len(left_out):,} of"
        f" {len(table):,} {table.noun}s"
    )
    if len(left_out):
        row = int(left_out[0])
        path = os.path.join(table.folder, words[row])
        note += f", such as {table.noun} {table.row_numbers[row]} ({path!r})"
    if not is_used.any():
        raise UsageError(
            f"{note}; no {table.noun} is left for training: correct the table"
        )
    if len(left_out):
        notes.append(f"{note}; left out")
    is_used &= _first_of_files(table, roles, files, truths, is_used, words)
    root = os.path.abspath(table.folder)
    ids = np.zeros(len(table), np.int64)
    for row in np.flatnonzero(is_used).tolist():
        ids[row] = stable_hash(os.fsencode(os.path.relpath(files[row], root)))
    field = file_types.most_common(
        [file for file, used in zip(files, is_used, strict=True) if used], types
    )
    is_usual = field == file_types.IMAGE and roles.truths.keys() == {"label"}
    if roles.left_out or roles.columns or not is_usual:
        notes += table_columns.describe(table, dataclasses.replace(roles, field=field))
    columns = {"id": ids, "file": np.array(files, object), **truths}
    if roles.columns:
        notes += _leak_notes(table, roles)
        columns |= _row_fields(table, roles)
    if masks:
        columns["mask"] = np.array(masks, object)
    by_split = _by_split(table, roles, columns, is_used)
    lists_by_split: dict[str, dict[str, FileList]] = {}
    for split, part in by_split.items():
        lists_by_split[split] = {field: FileList.of(part.pop("file").tolist(), root)}
        if masks:
            lists_by_split[split]["mask"] = FileList.of(part.pop("mask").tolist(), root)
    class_names = _encode(by_split, table, roles, options)
    class_values: tuple[int, ...] = ()
    if masks:
        class_names, class_values = mask_files.classes(table.folder, class_names)
    source = FileSource(
        lists_by_split,
        by_split,
        class_names,
        class_values=class_values,
        notes=(*table.notes, *notes),
        group_names=_group_names(table, roles),
    )
    source.info = dataclasses.replace(
        source.info, columns=roles.columns or None, input_name=roles.source
    )
    return source


def _first_of_files(
    table: Table,
    roles: Roles,
    files: Sequence[str],
    truths: Mapping[str, np.ndarray],
    is_used: np.ndarray,
    words: Sequence[str],
) -> np.ndarray:
    """Whether a row is the first with its file.

    Raises UsageError if another one has another label or split.
    """
    splits = _split_of_rows(table, roles)
    groups = _groups(table, roles)
    first: dict[str, int] = {}
    is_first = np.ones(len(table), bool)
    for row in np.flatnonzero(is_used).tolist():
        earlier = first.setdefault(files[row], row)
        if earlier == row:
            continue
        is_first[row] = False
        is_same = splits[row] == splits[earlier]
        is_same &= groups is None or groups[row] == groups[earlier]
        for values in truths.values():
            is_same &= np.array_equal(values[row], values[earlier])
        if not is_same:
            raise UsageError(
                f"{table.where(row)}: {words[row]} occurs twice, with different labels"
                " or splits; correct the table"
            )
    return is_first
