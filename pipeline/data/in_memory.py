"""Data that users hand over: arrays, datasets of TensorFlow and Keras, tables of files."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

from pipeline.contracts import Source
from pipeline.data.columns import ArraySource, ImageFiles, examples
from pipeline.data.labels import distinct, labels_of, numbered
from pipeline.data.split_names import SPLITS
from pipeline.utils.errors import UsageError, reason

EXPECTED = (
    "give (x, y) or (x, y, sample_weight) arrays, a tf.data.Dataset or keras.utils.PyDataset of "
    "such tuples, or a pandas table or a Hugging Face dataset with the columns image and label"
)
_FILES = ("image", "path", "file", "filename", "file_name")
_LABELS = ("label", "class", "target")


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

    `data` has images (n, height, width[, channels]) and labels, whole numbers or strings (n,), or
    one-hot; or float32 features (n, features) and numbers to predict. Without `validation_data`, a
    part of it is held out. Without `class_names`, those of the ClassLabel or the labels themselves
    are used. Raises UsageError if the data have another form, no end, or do not fit into memory.
    """
    parts = {"train": data, "validation": validation_data, "test": test_data}
    if class_names is None and hasattr(data, "features"):
        found = (getattr(feature, "names", None) for feature in data.features.values())
        class_names = next(filter(None, found), None)
    tables = {
        split: _table(getattr(part, "value", part), split)
        for split, part in parts.items()
        if part is not None
    }
    names = None if class_names is None else distinct(class_names, "class_names")
    if "label" in tables["train"]:
        names = numbered(tables, names, "class_names")
    train = tables.pop("train")
    if "path" not in train:
        return ArraySource(train, tables, class_names=names, name="the arrays")
    paths, columns = {}, {}
    for split, table in {"train": train, **tables}.items():
        paths[split] = table["path"].tolist()
        ids = (SPLITS.index(split) << 40) + np.arange(len(paths[split]))
        columns[split] = {"id": ids, "label": table["label"]}
    return ImageFiles(paths, columns, names)


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
        raise UsageError("the tf.data.Dataset never ends; remove repeat(), or add take(N)")
    spec = data.element_spec
    if isinstance(spec, Mapping):
        data = data.map(lambda row: tuple(row[n] for n in _fields(row)))
        spec = data.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3) or isinstance(spec[0], tuple | dict):
        raise UsageError(f"the tf.data.Dataset has elements {spec}; {EXPECTED}")
    x, y = spec[:2]
    if x.shape.rank is None or y.shape.rank is None:
        raise UsageError("the shapes of the tf.data.Dataset are unknown; use set_shape")
    color = x.shape.rank == 3 and x.shape[-1] in (1, 3)  # else a batch of gray images
    single = y.shape.rank == 0 or (y.shape.rank == 1 and (color or x.shape.rank == 1))
    try:
        yield from (data.batch(256) if single else data).as_numpy_iterator()
    except tf.errors.OpError as error:
        raise UsageError(f"the tf.data.Dataset cannot be read: {reason(error)}") from None


def _fields(row: Mapping[str, Any]) -> list[str]:
    """The keys of image, label and perhaps sample_weight."""
    wanted = (("image", "x"), (*_LABELS, "y"), ("sample_weight",))
    found = [name for names in wanted for name in names if name in row]
    if len(found) < 2:
        raise UsageError(f"the tf.data.Dataset has the fields {', '.join(row)}; {EXPECTED}")
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
                f"{split} does not fit into memory; write it into TFRecord files or class folders"
            )
    if not parts:
        raise UsageError(f"{split} is empty")
    try:
        return [np.concatenate(column) for column in zip(*parts, strict=True)]
    except ValueError as error:
        raise UsageError(f"{split}: the batches differ: {reason(error)}") from None


def _of_pandas(data: Any, split: str) -> dict[str, np.ndarray]:
    name = _column(_FILES, data.columns, split)
    labels = data[_column(_LABELS, data.columns, split)].to_numpy()
    return {"label": labels_of(labels, split), "path": data[name].to_numpy(str)}


def _of_hugging_face(data: Any, split: str) -> dict[str, np.ndarray]:
    image = _column(("image", "img"), data.column_names, split)
    label = _column((*_LABELS, "labels"), data.column_names, split)
    labels = np.array(data[label])
    if names := getattr(data.features[label], "names", None):
        if labels.min() < 0:
            raise UsageError(f"{split}: examples have no label (-1); remove them with filter()")
        labels = np.array(names)[labels]  # the numbers of another dataset may differ
    pictures = [
        np.asarray(p.convert("RGB") if getattr(p, "mode", "") == "P" else p) for p in data[image]
    ]
    return examples(split, pictures, labels)


def _column(wanted: Sequence[str], columns: Iterable[str], split: str) -> str:
    found = [name for name in columns if str(name).lower() in wanted]
    if len(found) != 1:
        raise UsageError(
            f"{split}: one column must be named {' or '.join(wanted)}; it has "
            f"{', '.join(map(str, columns))}"
        )
    return found[0]
