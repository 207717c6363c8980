"""Data that users hand over: arrays, datasets of TensorFlow and Keras,
tables of files.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

from pipeline.config import data_path
from pipeline.contracts import Source
from pipeline.data.array_source import ArraySource, ImageFiles, examples
from pipeline.data.labels import (
    class_names_of,
    is_missing,
    labels_of,
    numbered,
    renumber,
)
from pipeline.data.split_names import SPLITS
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError, reason

EXPECTED = (
    "give (x, y) or (x, y, sample_weight) arrays, a tf.data.Dataset or"
    " keras.utils.PyDataset of such tuples, or a pandas table or a Hugging Face dataset"
    " with the columns image and label"
)
_FILES = ("image", "path", "file", "filename", "file_name")
_LABELS = ("label", "class", "target")
_FEW = 8  # elements of a dataset


def adapt(found: Any) -> Callable[..., Source]:
    """A registered source for data, or for a function that returns data or a Source."""
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        return functools.partial(from_object, found)

    def source(**options: Any) -> Source:
        made = found(**options)
        return made if isinstance(made, Source) else from_object(made)

    return source


def from_object(
    data: Any,
    *,
    validation_data: Any = None,
    test_data: Any = None,
    class_names: Any = None,
) -> Source:
    """A source of data in memory; the id of an example is its position.

    `data` has images (n, height, width[, channels]) and labels as for `labels_of`; or
    features (n, features) and numbers to predict. Without `validation_data`, a part of
    it is held out. Without `class_names`, in a form of `labels.class_names_of`, the
    classes have the names that the data have (`own_names`), or are the labels
    themselves. Raises UsageError if the data have another form, no end, or do not fit
    into memory.
    """
    given = {"train": data, "validation": validation_data, "test": test_data}
    parts = {split: getattr(part, "value", part) for split, part in given.items()}
    parts = {split: part for split, part in parts.items() if part is not None}
    tables = {split: _table(part, split) for split, part in parts.items()}
    if any("sample_weight" in table for table in tables.values()):
        for table in tables.values():  # in some of the splits only, as Keras allows
            count = len(next(iter(table.values())))
            table.setdefault("sample_weight", np.ones(count, np.float32))
    names = None if class_names is None else class_names_of(class_names, "class_names")
    notes: tuple[str, ...] = ()
    if "label" in tables["train"]:
        own = {split: own_names(part) for split, part in parts.items()}
        names = _renumber(tables, own, names)
        notes = _names_note(parts["train"]) if names is None else ()
        names = numbered(tables, names, "class_names")
    train = tables.pop("train")
    if "path" not in train:
        source: Source = ArraySource(
            train, tables, class_names=names, name="the arrays"
        )
        source.info = dataclasses.replace(
            source.info, notes=(*source.info.notes, *notes)
        )
        return source
    paths, columns = {}, {}
    for split, table in {"train": train, **tables}.items():
        paths[split] = table["path"].tolist()
        ids = (SPLITS.index(split) << 40) + np.arange(len(paths[split]))
        columns[split] = {"id": ids, "label": table["label"]}
    return ImageFiles(paths, columns, names)


def own_names(data: Any) -> tuple[str, ...] | None:
    """The names of the classes that data have themselves, in the order of their
    numbers.

    These are `class_names` of a dataset of Keras, `class_indices` of an iterator of
    Keras, the names of a ClassLabel of Hugging Face, or the columns of a one-hot pandas
    table of labels.
    """
    data = getattr(data, "value", data)
    if isinstance(data, tf.data.Dataset):
        data, changes = _with_names(data)
        if changes:
            return None
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        columns = getattr(data[1], "columns", ())
        return class_names_of(columns, "the columns of y") if len(columns) > 1 else None
    if hasattr(data, "iloc"):  # its attributes may be columns
        return None
    names = getattr(data, "class_names", None)
    if names is None:
        names = getattr(data, "class_indices", None)
    if names is None and hasattr(data, "features") and hasattr(data, "column_names"):
        label = _column((*_LABELS, "labels"), data.column_names, "data")
        names = getattr(data.features[label], "names", None)
    return (
        None
        if names is None or not len(names)
        else class_names_of(names, "class_names")
    )


def _with_names(data: tf.data.Dataset) -> tuple[tf.data.Dataset, bool]:
    """The dataset with class names from which another one is made, or the other one
    itself.

    And whether a function, such as that of `map`, may have changed the labels in
    between.
    """
    inner, changes = data, False
    while not hasattr(inner, "class_names"):
        inputs = inner._inputs()
        if len(inputs) != 1:
            return data, False
        changes |= bool(inner._functions())
        (inner,) = inputs
    return inner, changes


def _names_note(data: Any) -> tuple[str, ...]:
    """A line about names of classes that were lost."""
    if not isinstance(data, tf.data.Dataset) or not _with_names(data)[1]:
        return ()
    names = list(_with_names(data)[0].class_names)
    return (
        (
            "the classes are named by their numbers, because a function such as that"
            f" of map() may have changed the labels of {names!r:.100}; class_names=..."
            " names them"
        ),
    )


def _renumber(
    tables: Mapping[str, dict[str, np.ndarray]],
    own: Mapping[str, tuple[str, ...] | None],
    names: tuple[str, ...] | None,
) -> tuple[str, ...] | None:
    """The names of the classes; labels that are numbers are changed to count them.

    The numbers of each split count the names of that split, which may be in another
    order.
    """
    in_train = own["train"]
    pluralize = in_train or names
    if names and in_train and set(in_train) <= set(names):
        pluralize = names
    elif names and in_train and len(names) != len(in_train):
        raise UsageError(
            f"class_names has {len(names)} names; the data have {len(in_train)}"
        )
    for split, table in tables.items():
        names_of_split = own[split]
        if pluralize and names_of_split and table["label"].dtype.kind != "U":
            table["label"] = renumber(table["label"], names_of_split, pluralize, split)
    return names or in_train


def _table(data: Any, split: str) -> dict[str, np.ndarray]:
    """Field -> array of all examples."""
    if isinstance(data, tf.data.Dataset):
        return examples(split, *_joined(_of_dataset(data), split))
    if isinstance(data, keras.utils.PyDataset):
        if data.num_batches is None:
            raise UsageError(f"the PyDataset of {split} has no length; define __len__")
        batches = (data[number] for number in range(data.num_batches))
        return examples(split, *_joined(batches, split))
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return examples(split, *data)
    if isinstance(data, Mapping) and "image" in data and "label" in data:
        return examples(split, data["image"], data["label"], data.get("sample_weight"))
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return _of_pandas(data, split)
    if hasattr(data, "features") and hasattr(data, "__len__"):  # has all examples
        return _of_hugging_face(data, split)
    raise UsageError(f"data of type {type(data).__name__} cannot be used; {EXPECTED}")


def _of_dataset(data: tf.data.Dataset) -> Iterator[Any]:
    """The batches of a dataset; single examples are batched."""
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise UsageError(
            "the tf.data.Dataset never ends; remove repeat(), or add take(N)"
        )
    spec = data.element_spec
    if isinstance(spec, Mapping):
        names = _fields(spec)  # not within map(), which would change the error
        data = data.map(lambda row: tuple(row[name] for name in names))
        spec = data.element_spec
    if isinstance(spec, tf.TensorSpec):
        raise UsageError(f"the tf.data.Dataset has no labels; {EXPECTED}")
    is_tuple = isinstance(spec, tuple) and len(spec) in (2, 3)
    if not is_tuple or any(isinstance(part, tuple | dict) for part in spec):
        raise UsageError(f"the tf.data.Dataset has elements {spec}; {EXPECTED}")
    if any(part.shape.rank is None for part in spec):
        raise UsageError("the shapes of the tf.data.Dataset are unknown; use set_shape")
    try:
        batches = data if _is_batched(data) else data.batch(256)
        yield from batches.as_numpy_iterator()
    except tf.errors.OpError as error:
        raise UsageError(
            f"the tf.data.Dataset cannot be read: {reason(error)}"
        ) from None


def _is_batched(data: tf.data.Dataset) -> bool:
    """Whether the elements (x, y) or (x, y, sample_weight) are batches, not single
    examples.
    """
    x, y, *weight = (part.shape for part in data.element_spec)
    if weight:
        return weight[0].rank > 0
    if y.rank != 1 or x.rank not in (2, 3):
        # A vector of features may have one target of shape (1,).
        return y.rank > 1 or x.rank > 3
    # Features (n, m) or gray images (n, height, width) with labels (n,); or a gray
    # image (height, width) or an image (height, width, channels) with a one-hot label
    # (classes,).
    if x[0] is not None and y[0] is not None and x[0] != y[0]:
        return False
    is_equal = is_one_hot = True
    for image, label in data.take(_FEW).as_numpy_iterator():
        is_equal &= len(image) == len(label)
        is_one_hot &= label.dtype.kind in "biuf" and len(label) > 1
        is_one_hot = (
            is_one_hot and sorted({*label.tolist()}) == [0, 1] and label.sum() == 1
        )
    # `batch` leaves the length of both open.
    return is_equal and (not is_one_hot or (x[0] is None and y[0] is None))


def _fields(row: Mapping[str, Any]) -> list[str]:
    """The keys of image, label and perhaps sample_weight."""
    wanted = (("image", "x"), (*_LABELS, "y"), ("sample_weight",))
    found = [name for names in wanted for name in names if name in row]
    if len(found) < 2:
        raise UsageError(
            f"the tf.data.Dataset has the fields {', '.join(row)}; {EXPECTED}"
        )
    return found


def _joined(batches: Iterable[Any], split: str) -> list[Any]:
    """(x, y) or (x, y, sample_weight) of all batches, in memory."""
    parts: list[tuple] = []
    size, free = 0, psutil.virtual_memory().available
    for batch in batches:
        if not isinstance(batch, tuple) or len(batch) not in (2, 3):
            raise UsageError(f"{split}: a batch is {type(batch).__name__}; {EXPECTED}")
        parts.append(tuple(map(np.asarray, batch)))
        size += sum(part.nbytes for part in parts[-1])
        if 2 * size > free:
            raise UsageError(
                f"{split} does not fit into memory; write it into TFRecord files or"
                " class folders"
            )
    if not parts:
        raise UsageError(f"{split} is empty")
    try:
        return [np.concatenate(column) for column in zip(*parts, strict=True)]
    except ValueError as error:
        raise UsageError(f"{split}: the batches differ: {reason(error)}") from None


def _of_pandas(data: Any, split: str) -> dict[str, np.ndarray]:
    name = _column(_FILES, data.columns, split)
    label = _column(_LABELS, data.columns, split)
    paths, rows = data[name].tolist(), data.index.tolist()
    for column, values in ((name, paths), (label, data[label].tolist())):
        missing = [
            row for row, value in zip(rows, values, strict=True) if is_missing(value)
        ]
        if missing:
            raise UsageError(
                f"{split}: {pluralize(len(missing), 'row')} without {column}, such as"
                f" row {missing[0]}; remove them with dropna(subset=[{column!r}])"
            )
    files = [data_path.with_slashes(str(path)) for path in paths]
    wrong = [at for at, file in enumerate(files) if not os.path.exists(file)]
    if wrong:
        raise UsageError(
            f"{split}: {len(wrong):,} of {len(files):,} files do not exist, such as"
            f" that of row {rows[wrong[0]]}: {paths[wrong[0]]}; paths are relative to"
            " the current directory"
        )
    labels = labels_of(data[label].to_numpy(), split)
    return {"label": labels, "path": np.array(files, object)}


def _of_hugging_face(data: Any, split: str) -> dict[str, np.ndarray]:
    image = _column(("image", "img"), data.column_names, split)
    label = _column((*_LABELS, "labels"), data.column_names, split)
    pictures = [
        np.asarray(p.convert("RGB") if getattr(p, "mode", "") == "P" else p)
        for p in data[image]
    ]
    return examples(split, pictures, data[label])


def _column(wanted: Sequence[str], columns: Iterable[str], split: str) -> str:
    found = [name for name in columns if str(name).lower() in wanted]
    if len(found) != 1:
        raise UsageError(
            f"{split}: one column must be named {' or '.join(wanted)}; it has "
            f"{', '.join(map(str, columns))}"
        )
    return found[0]
