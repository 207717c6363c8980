"""Sources of data in memory: arrays, datasets of TensorFlow and Keras, and tables."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Source
from pipeline.data import arrays, detect, table, table_source
from pipeline.data import names as names_of_columns
from pipeline.data.array_source import ArraySource
from pipeline.data.labels import class_names_of, encode_targets, renumber
from pipeline.data.table import Table
from pipeline.data.table_columns import Options
from pipeline.utils.errors import UsageError

_LABEL_COLUMNS = (*names_of_columns.LABELS, *names_of_columns.SEVERAL_LABELS)


def adapt(data: Any) -> Callable[..., Source]:
    """A registered source for data, or for a function that returns data or a Source."""
    if not (inspect.isfunction(data) or inspect.isclass(data)):
        return functools.partial(from_object, data)
    parameters = inspect.signature(data).parameters

    def source(**options: Any) -> Source:
        kinds = {}
        for name in ("input", "target"):
            if name in options and name not in parameters:
                kinds[name] = options.pop(name)
        result = data(**options)
        return result if isinstance(result, Source) else from_object(result, **kinds)

    return source


def from_object(
    data: Any,
    *,
    validation_data: Any = None,
    test_data: Any = None,
    class_names: Any = None,
    input: str | None = None,
    target: str | None = None,
    predict: str | None = None,
    columns: tuple[str, ...] = (),
) -> Source:
    """A source of data in memory; the id of an example is its position.

    A table is read as one in a file, `predict` is its column to predict, and `columns`
    are inputs as in a file. Other `data` have x and y as for `arrays.examples`, or with
    the target `arrays` as for `arrays.unchanged_fields`. Without `validation_data`, a
    part of it is held out. Without `class_names`, in a form of `labels.class_names_of`,
    the names come from the data (`find_class_names`), or else are the labels
    themselves. Without `input` (`image`, `features`) and `target` (`classes`, `labels`,
    `number`, `mask`), the arrays of train decide, and a note says what was assumed.
    Raises UsageError if the data have another form, no end, or do not fit into memory.
    """
    parts = {"train": data, "validation": validation_data, "test": test_data}
    parts = {split: getattr(part, "value", part) for split, part in parts.items()}
    parts = {split: part for split, part in parts.items() if part is not None}
    tables = None if target == "arrays" else _tables(parts)
    if tables is not None:
        chosen = Options(predict=predict, columns=tuple(columns))
        return _table_source(tables, parts["train"], chosen, class_names)
    if columns:
        raise UsageError("columns are names of columns of a table; the data is not one")
    names_by_split = {split: find_class_names(part) for split, part in parts.items()}
    if class_names is not None and target != "arrays":
        class_names = class_names_of(class_names, "class_names")
    elif target == "arrays":
        class_names = None
    has_class_names = bool(class_names) or names_by_split["train"] is not None
    options = {"input": input, "target": target, "has_class_names": has_class_names}
    examples = {}
    for split, part in parts.items():
        examples[split] = _read(part, split, options)
        options |= examples["train"].kinds
        _require_same_names(examples[split], examples["train"], split)
    by_split = {split: fields.columns for split, fields in examples.items()}
    arrays.match_fields(by_split)
    notes = examples["train"].notes
    if "label" in by_split["train"] or "labels" in by_split["train"]:
        class_names = _match_class_names(by_split, names_by_split, class_names)
        notes += () if class_names else _lost_names_note(parts["train"])
    class_names = encode_targets(by_split, class_names, "class_names")
    source = ArraySource(
        by_split.pop("train"),
        by_split,
        class_names=class_names,
        feature_names=examples["train"].feature_names,
        name="the arrays",
    )
    notes = (*source.info.notes, *notes)
    source.info = dataclasses.replace(
        source.info,
        notes=notes,
        label_shape=examples["train"].label_shape,
        gray_axis=examples["train"].gray_axis,
    )
    return source


def _table_source(
    tables: Mapping[str, Table], train: Any, options: Options, class_names: Any
) -> Source:
    """A source of the rows of tables; paths in them are relative to the directory."""
    joined = table.join(tables)
    predict = options.predict
    if predict is None and isinstance(train, tuple | list):
        predict = [*joined.columns][-1 - (len(tables) > 1)]
    if class_names is None:
        class_names = find_class_names(train)
    options = dataclasses.replace(
        options,
        predict=predict,
        split=table.SPLIT if len(tables) > 1 else None,
        class_names=class_names_of(class_names, "class_names") if class_names else (),
    )
    return table_source.from_table(joined, options)


def _require_same_names(
    examples: arrays.Examples, train: arrays.Examples, split: str
) -> None:
    """Raises UsageError if the columns of two tables of features differ."""
    names = examples.feature_names or ()
    train_names = train.feature_names or ()
    if names != train_names and names and train_names:
        unknown = sorted({*names} ^ {*train_names}) or ["the order"]
        raise UsageError(
            f"{split}: the columns of x differ from train in {', '.join(unknown)};"
            " pass x[x_train.columns]"
        )


def find_class_names(data: Any) -> tuple[str, ...] | None:
    """The class names that data contain, in the order of the classes.

    These are `class_names` of a dataset of Keras, `class_indices` of an iterator of
    Keras, the names of a ClassLabel of Hugging Face, or the columns of a one-hot pandas
    table of labels.
    """
    data, may_change_labels = _named_dataset(getattr(data, "value", data))
    if may_change_labels:
        return None
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        columns = getattr(data[1], "columns", ())
        return class_names_of(columns, "the columns of y") if len(columns) > 1 else None
    if hasattr(data, "iloc"):  # its attributes may be columns
        return None
    names = getattr(data, "class_names", getattr(data, "class_indices", None))
    if names is None and hasattr(data, "features") and hasattr(data, "column_names"):
        label = names_of_columns.first(_LABEL_COLUMNS, data.column_names)
        names = getattr(data.features[label], "names", None) if label else None
    has_names = names is not None and len(names)
    return class_names_of(names, "class_names") if has_names else None


def _named_dataset(data: Any) -> tuple[Any, bool]:
    """The `tf.data.Dataset` with class names from which `data` is derived, or `data`.

    Also returns whether a function in between, such as the one of `map`, may have
    changed the labels.
    """
    dataset = data
    may_change_labels = False
    while isinstance(dataset, tf.data.Dataset) and not hasattr(dataset, "class_names"):
        inputs = dataset._inputs()
        if len(inputs) != 1:
            return data, False
        may_change_labels |= bool(dataset._functions())
        (dataset,) = inputs
    return dataset, may_change_labels


def _lost_names_note(data: Any) -> tuple[str, ...]:
    """A note that class names are not used, because labels may have changed."""
    dataset, may_change_labels = _named_dataset(data)
    if not may_change_labels:
        return ()
    names = list(dataset.class_names)
    note = (
        "the classes are named by their numbers, because map() or a similar call may"
        f" have changed the labels of {names!r:.100}; class_names=... names them"
    )
    return (note,)


def _match_class_names(
    tables: Mapping[str, dict[str, np.ndarray]],
    names_by_split: Mapping[str, tuple[str, ...] | None],
    names: tuple[str, ...] | None,
) -> tuple[str, ...] | None:
    """Renumbers numeric labels, so that all splits number the classes alike.

    The splits may have the names in different orders; so may the columns of several
    labels. Returns the class names.
    """
    train_names = names_by_split["train"]
    new_names = train_names or names
    if names and train_names and set(train_names) <= set(names):
        new_names = names
    elif names and train_names and len(names) != len(train_names):
        raise UsageError(
            f"class_names has {len(names)} names; the data have {len(train_names)}"
        )
    field = "label" if "label" in tables["train"] else "labels"
    for split, columns in tables.items():
        old_names = names_by_split[split]
        if new_names and old_names and columns[field].dtype.kind not in "UO":
            columns[field] = renumber(columns[field], old_names, new_names, split)
    return names or train_names


def _read(data: Any, split: str, options: Mapping[str, Any]) -> arrays.Examples:
    """Reads all examples of a split; `options` are those of `arrays.examples`."""
    columns = arrays.arrays_of(data, split)
    if columns is not None and options["target"] == "arrays":
        return arrays.Examples(arrays.unchanged_fields(split, *columns))
    if columns is not None:
        return arrays.examples(split, *columns, **options)
    if detect.has_pictures(data) and hasattr(data, "__len__"):  # not streamed
        return _read_hugging_face(data, split, options)
    raise UsageError(
        f"data of type {type(data).__name__} cannot be used; {arrays.EXPECTED}"
    )


def _tables(parts: Mapping[str, Any]) -> dict[str, Table] | None:
    """The tables of all splits, with y as a column if there is one; None for arrays.

    Raises UsageError if only some of the splits are tables.
    """
    tables: dict[str, Table] = {}
    has_words = any(map(_has_words, parts.values()))
    for split, part in parts.items():
        name = f"the table of {split}" if len(parts) > 1 else "the table"
        read = table_of(part, name, has_words)
        if read is None and tables:
            raise UsageError(f"{split} is not a table like train; pass the same type")
        if read is None:
            return None
        tables[split] = read
    return tables


def _has_words(data: Any) -> bool:
    """Whether x of (x, y) is a DataFrame with other columns than numbers, or gaps."""
    return isinstance(data, tuple | list) and detect.is_mixed_table(data)


def table_of(data: Any, name: str, takes_pairs: bool) -> Table | None:
    """A table or, if it takes pairs, x with y as the last column; None for others."""
    is_pair = isinstance(data, tuple | list) and len(data) in (2, 3)
    if takes_pairs and is_pair and hasattr(data[0], "iloc"):
        x, y, *weight = data
        if weight:
            raise UsageError(
                f"{name}: x has columns of words, beside which sample_weight is not"
                " supported; leave it out"
            )
        title = str(getattr(y, "name", None) or "y")
        if title in map(str, x.columns):
            raise UsageError(
                f"{name}: x has the column {title!r}, which is y; remove it from x"
            )
        values = getattr(y, "array", y)  # by position, whatever the index of a Series
        if np.shape(y) != (len(x),):
            raise UsageError(
                f"{name}: beside columns of words, y must be one value for each of the"
                f" {len(x):,} rows of x; got the shape {np.shape(y)}"
            )
        return table.from_object(x.assign(**{title: values}), name)
    if detect.has_pictures(data):
        return None
    return table.from_object(data, name)


def _read_hugging_face(
    data: Any, split: str, options: Mapping[str, Any]
) -> arrays.Examples:
    image_column = arrays.find_key(data.column_names, ("image", "img"), split)
    label_column = arrays.find_key(data.column_names, _LABEL_COLUMNS, split)
    images = []
    for picture in data[image_column]:
        if getattr(picture, "mode", "") == "P":
            picture = picture.convert("RGB")
        images.append(np.asarray(picture))
    options = {**options, "input": options["input"] or "image"}
    return arrays.examples(split, images, data[label_column], **options)
