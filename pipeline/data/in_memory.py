"""Sources of data in memory: arrays, datasets of TensorFlow and Keras, and tables."""

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
from pipeline.data.array_source import ArraySource, examples
from pipeline.data.file_source import FileSource
from pipeline.data.labels import (
    class_names_of,
    encode_labels,
    is_missing,
    labels_of,
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
_FILE_COLUMNS = ("image", "path", "file", "filename", "file_name")
_LABEL_COLUMNS = ("label", "class", "target")
_SAMPLE = 8  # elements of a dataset


def adapt(data: Any) -> Callable[..., Source]:
    """A registered source for data, or for a function that returns data or a Source."""
    if not (inspect.isfunction(data) or inspect.isclass(data)):
        return functools.partial(from_object, data)

    def source(**options: Any) -> Source:
        result = data(**options)
        return result if isinstance(result, Source) else from_object(result)

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
    names come from the data (`find_class_names`), or else are the labels themselves.
    Raises UsageError if the data have another form, no end, or do not fit into memory.
    """
    arguments = {"train": data, "validation": validation_data, "test": test_data}
    parts = {split: getattr(part, "value", part) for split, part in arguments.items()}
    parts = {split: part for split, part in parts.items() if part is not None}
    tables = {split: _read_table(part, split) for split, part in parts.items()}
    if any("sample_weight" in table for table in tables.values()):
        for table in tables.values():  # Keras allows weights in train alone
            count = len(next(iter(table.values())))
            table.setdefault("sample_weight", np.ones(count, np.float32))
    names = None if class_names is None else class_names_of(class_names, "class_names")
    notes: tuple[str, ...] = ()
    if "label" in tables["train"]:
        names_by_split = {
            split: find_class_names(part) for split, part in parts.items()
        }
        names = _match_class_names(tables, names_by_split, names)
        notes = _lost_names_note(parts["train"]) if names is None else ()
        names = encode_labels(tables, names, "class_names")
    train = tables.pop("train")
    if "path" not in train:
        source: Source = ArraySource(
            train, tables, class_names=names, name="the arrays"
        )
        source.info = dataclasses.replace(
            source.info, notes=(*source.info.notes, *notes)
        )
        return source
    paths = {}
    columns = {}
    for split, table in {"train": train, **tables}.items():
        paths[split] = {"image": table["path"].tolist()}
        ids = (SPLITS.index(split) << 40) + np.arange(len(table["path"]))
        columns[split] = {"id": ids, "label": table["label"]}
    return FileSource(paths, columns, names)


def find_class_names(data: Any) -> tuple[str, ...] | None:
    """The class names that data contain, in the order of the classes.

    These are `class_names` of a dataset of Keras, `class_indices` of an iterator of
    Keras, the names of a ClassLabel of Hugging Face, or the columns of a one-hot pandas
    table of labels.
    """
    data = getattr(data, "value", data)
    if isinstance(data, tf.data.Dataset):
        data, may_change_labels = _find_named_dataset(data)
        if may_change_labels:
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
        label = _find_column((*_LABEL_COLUMNS, "labels"), data.column_names, "data")
        names = getattr(data.features[label], "names", None)
    if names is None or not len(names):
        return None
    return class_names_of(names, "class_names")


def _find_named_dataset(data: tf.data.Dataset) -> tuple[tf.data.Dataset, bool]:
    """Finds the dataset with class names from which `data` is derived.

    Returns `data` itself if there is none. Also returns whether a function in between,
    such as the one of `map`, may have changed the labels.
    """
    dataset = data
    may_change_labels = False
    while not hasattr(dataset, "class_names"):
        inputs = dataset._inputs()
        if len(inputs) != 1:
            return data, False
        may_change_labels |= bool(dataset._functions())
        (dataset,) = inputs
    return dataset, may_change_labels


def _lost_names_note(data: Any) -> tuple[str, ...]:
    """A note that class names are not used, because labels may have changed."""
    if not isinstance(data, tf.data.Dataset):
        return ()
    dataset, may_change_labels = _find_named_dataset(data)
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
    """Renumbers labels that are numbers, so that all splits number the same names.

    The splits may have the names in different orders. Returns the class names.
    """
    train_names = names_by_split["train"]
    new_names = train_names or names
    if names and train_names and set(train_names) <= set(names):
        new_names = names
    elif names and train_names and len(names) != len(train_names):
        raise UsageError(
            f"class_names has {len(names)} names; the data have {len(train_names)}"
        )
    for split, table in tables.items():
        old_names = names_by_split[split]
        if new_names and old_names and table["label"].dtype.kind != "U":
            table["label"] = renumber(table["label"], old_names, new_names, split)
    return names or train_names


def _read_table(data: Any, split: str) -> dict[str, np.ndarray]:
    """Reads all examples of a split into an array for each field."""
    if isinstance(data, tf.data.Dataset):
        return examples(split, *_concatenate(_dataset_batches(data), split))
    if isinstance(data, keras.utils.PyDataset):
        if data.num_batches is None:
            raise UsageError(f"the PyDataset of {split} has no length; define __len__")
        batches = (data[number] for number in range(data.num_batches))
        return examples(split, *_concatenate(batches, split))
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return examples(split, *data)
    if isinstance(data, Mapping) and "image" in data and "label" in data:
        return examples(split, data["image"], data["label"], data.get("sample_weight"))
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return _read_pandas(data, split)
    if hasattr(data, "features") and hasattr(data, "__len__"):  # not streamed
        return _read_hugging_face(data, split)
    raise UsageError(f"data of type {type(data).__name__} cannot be used; {EXPECTED}")


def _dataset_batches(data: tf.data.Dataset) -> Iterator[Any]:
    """Yields the batches of a dataset; batches single examples."""
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise UsageError(
            "the tf.data.Dataset never ends; remove repeat(), or add take(N)"
        )
    spec = data.element_spec
    if isinstance(spec, Mapping):
        names = _field_names(spec)  # not within map(), which would change the error
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
    """Whether the elements of a dataset are batches, not single examples."""
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
    has_equal_lengths = True
    is_one_hot = True
    for image, label in data.take(_SAMPLE).as_numpy_iterator():
        has_equal_lengths &= len(image) == len(label)
        is_one_hot = is_one_hot and _is_one_hot(label)
    # `batch` leaves the length of both open.
    has_open_lengths = x[0] is None and y[0] is None
    return has_equal_lengths and (has_open_lengths or not is_one_hot)


def _is_one_hot(label: np.ndarray) -> bool:
    if label.dtype.kind not in "biuf" or len(label) < 2:
        return False
    return sorted({*label.tolist()}) == [0, 1] and bool(label.sum() == 1)


def _field_names(row: Mapping[str, Any]) -> list[str]:
    """The keys of image, label and perhaps sample_weight."""
    keys = ("image", "x", *_LABEL_COLUMNS, "y", "sample_weight")
    names = [key for key in keys if key in row]
    if len(names) < 2:
        raise UsageError(
            f"the tf.data.Dataset has the fields {', '.join(row)}; {EXPECTED}"
        )
    return names


def _concatenate(batches: Iterable[Any], split: str) -> list[Any]:
    """Concatenates batches (x, y) or (x, y, sample_weight) in memory."""
    parts: list[tuple] = []
    size = 0
    free = psutil.virtual_memory().available
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


def _read_pandas(data: Any, split: str) -> dict[str, np.ndarray]:
    file_column = _find_column(_FILE_COLUMNS, data.columns, split)
    label_column = _find_column(_LABEL_COLUMNS, data.columns, split)
    rows = data.index.tolist()
    for column in (file_column, label_column):
        missing = [
            row
            for row, value in zip(rows, data[column].tolist(), strict=True)
            if is_missing(value)
        ]
        if missing:
            raise UsageError(
                f"{split}: {pluralize(len(missing), 'row')} without {column}, such as"
                f" row {missing[0]}; remove them with dropna(subset=[{column!r}])"
            )
    paths = data[file_column].tolist()
    files = [data_path.with_slashes(str(path)) for path in paths]
    missing = [at for at, file in enumerate(files) if not os.path.exists(file)]
    if missing:
        raise UsageError(
            f"{split}: {len(missing):,} of {len(files):,} files do not exist, such as"
            f" {paths[missing[0]]} in row {rows[missing[0]]}; paths are relative to the"
            " current directory"
        )
    labels = labels_of(data[label_column].to_numpy(), split)
    return {"label": labels, "path": np.array(files, object)}


def _read_hugging_face(data: Any, split: str) -> dict[str, np.ndarray]:
    image_column = _find_column(("image", "img"), data.column_names, split)
    label_column = _find_column((*_LABEL_COLUMNS, "labels"), data.column_names, split)
    images = []
    for picture in data[image_column]:
        if getattr(picture, "mode", "") == "P":
            picture = picture.convert("RGB")
        images.append(np.asarray(picture))
    return examples(split, images, data[label_column])


def _find_column(names: Sequence[str], columns: Iterable[str], split: str) -> str:
    matches = [column for column in columns if str(column).lower() in names]
    if len(matches) != 1:
        raise UsageError(
            f"{split}: one column must be named {' or '.join(names)}; it has "
            f"{', '.join(map(str, columns))}"
        )
    return matches[0]
