"""Sources of data in memory: arrays, datasets of TensorFlow and Keras, and tables."""

import dataclasses
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

from pipeline.contracts import Source
from pipeline.data import file_search, file_types, unchanged_arrays
from pipeline.data.array_inputs import SHORTEST_SIDE, array_of
from pipeline.data.array_source import (
    ArraySource,
    Examples,
    examples,
    match_fields,
)
from pipeline.data.file_list import FileList
from pipeline.data.file_source import FileSource
from pipeline.data.labels import (
    class_names_of,
    encode_targets,
    is_missing,
    labels_of,
    renumber,
    reorder,
)
from pipeline.data.split_names import SPLITS
from pipeline.utils.console import pluralize
from pipeline.utils.errors import NoLabels, UsageError, reason

EXPECTED = (
    "give (x, y) or (x, y, sample_weight) arrays, of which x may be a dictionary of"
    " arrays, a tf.data.Dataset or keras.utils.PyDataset of such tuples, or a pandas"
    " table or a Hugging Face dataset with the columns image and label"
)
_FILE_COLUMNS = ("image", "path", "file", "filename", "file_name")
_LABEL_COLUMNS = ("label", "class", "target")
_INPUT_KEYS = ("image", "features", "text", "x")
_TARGET_KEYS = (*_LABEL_COLUMNS, "labels", "mask", "y")
_SAMPLE = 8  # elements of a dataset


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
) -> Source:
    """A source of data in memory; the id of an example is its position.

    `data` has x and y as for `array_source.examples`. Without `validation_data`, a part
    of it is held out. Without `class_names`, in a form of `labels.class_names_of`, the
    names come from the data (`find_class_names`), or else are the labels themselves.
    Without `input` (`image`, `features`) and `target` (`classes`, `labels`, `number`,
    `mask`), the arrays of train decide, and a note says what was assumed. Raises
    UsageError if the data have another form, no end, or do not fit into memory.
    """
    arguments = {"train": data, "validation": validation_data, "test": test_data}
    parts = {split: getattr(part, "value", part) for split, part in arguments.items()}
    parts = {split: part for split, part in parts.items() if part is not None}
    names = None if class_names is None else class_names_of(class_names, "class_names")
    has_names = names is not None or find_class_names(parts["train"]) is not None
    if target == "arrays":
        return _unchanged(parts)
    options = {"input": input, "target": target, "has_class_names": has_names}
    train = _read_table(parts["train"], "train", options)
    options |= train.kinds()
    tables = {"train": train.columns}
    for split in ("validation", "test"):
        if split not in parts:
            continue
        table = _read_table(parts[split], split, options)
        _require_same_names(table.feature_names, train.feature_names, split)
        tables[split] = table.columns
    _match_weights(tables)
    match_fields(tables)
    notes = train.notes
    if "label" in train.columns or "labels" in train.columns:
        names_by_split = {
            split: find_class_names(part) for split, part in parts.items()
        }
        names = _match_class_names(tables, names_by_split, names)
        notes += _lost_names_note(parts["train"]) if names is None else ()
    names = encode_targets(tables, names, "class_names")
    if "path" in train.columns:
        return _image_files(tables, names)
    source = ArraySource(
        tables.pop("train"),
        tables,
        class_names=names,
        feature_names=train.feature_names,
        name="the arrays",
    )
    notes = (*source.info.notes, *notes)
    source.info = dataclasses.replace(source.info, notes=notes)
    return source


def _unchanged(parts: Mapping[str, Any]) -> Source:
    """A source of x and y as they are."""
    tables = {}
    for split, data in parts.items():
        arrays = _read_arrays(data, split)
        if arrays is None:
            raise UsageError(
                f"data of type {type(data).__name__} cannot be used: give (x, y) or"
                " (x, y, sample_weight), of which x and y may be dictionaries of"
                " arrays, or a tf.data.Dataset or keras.utils.PyDataset of them"
            )
        tables[split] = unchanged_arrays.fields_of(split, *arrays)
    _match_weights(tables)
    unchanged_arrays.match(tables)
    return ArraySource(tables.pop("train"), tables, name="the arrays")


def _image_files(
    tables: Mapping[str, dict[str, np.ndarray]], names: tuple[str, ...] | None
) -> Source:
    files = {}
    columns = {}
    for split, fields in tables.items():
        files[split] = {"image": FileList.of(fields["path"].tolist())}
        ids = (SPLITS.index(split) << 40) + np.arange(len(fields["path"]))
        columns[split] = {"id": ids, "label": fields["label"]}
    return FileSource(files, columns, names)


def _match_weights(tables: Mapping[str, dict[str, np.ndarray]]) -> None:
    """Adds weights of 1, because Keras allows weights in train alone."""
    if not any("sample_weight" in table for table in tables.values()):
        return
    for table in tables.values():
        count = len(next(iter(table.values())))
        table.setdefault("sample_weight", np.ones(count, np.float32))


def _require_same_names(
    names: tuple[str, ...] | None, train_names: tuple[str, ...] | None, split: str
) -> None:
    """Raises UsageError if the columns of two tables of features differ."""
    if names is None or train_names is None or names == train_names:
        return
    if sorted(names) == sorted(train_names):
        raise UsageError(
            f"{split}: the columns of x are in another order than in train; give"
            " x[x_train.columns]"
        )
    unknown_names = [name for name in names if name not in train_names]
    missing = [name for name in train_names if name not in names]
    difference = f"lacks the column {missing[0]!r}" if missing else ""
    if unknown_names:
        difference = f"has a column {unknown_names[0]!r}, unknown in train"
    raise UsageError(f"{split}: x {difference}; give the same columns in all splits")


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
    for split, table in tables.items():
        old_names = names_by_split[split]
        if not new_names or not old_names:
            continue
        if "label" in table and table["label"].dtype.kind != "U":
            table["label"] = renumber(table["label"], old_names, new_names, split)
        if "labels" in table and table["labels"].dtype != object:
            table["labels"] = reorder(table["labels"], old_names, new_names, split)
    return names or train_names


def _read_table(data: Any, split: str, options: Mapping[str, Any]) -> Examples:
    """Reads all examples of a split; `options` are those of `array_source.examples`."""
    arrays = _read_arrays(data, split)
    if arrays is not None:
        return examples(split, *arrays, **options)
    column = _column_of_values(data)
    if column:
        names = data.columns if hasattr(data, "iloc") else data.column_names
        label = _find_column((*_LABEL_COLUMNS, "labels"), names, split)
        return examples(split, list(data[column]), data[label], **options)
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return Examples(_read_pandas(data, split))
    if hasattr(data, "features") and hasattr(data, "__len__"):  # not streamed
        return _read_hugging_face(data, split, options)
    raise UsageError(f"data of type {type(data).__name__} cannot be used; {EXPECTED}")


def _column_of_values(data: Any) -> str:
    """The column of texts of a table of pandas or Hugging Face; empty if there is none,
    or one of images.
    """
    names = getattr(data, "column_names", None)
    if names is None and hasattr(data, "iloc"):
        names = data.columns
    if names is None or isinstance(data, tf.data.Dataset):
        return ""
    if not {str(name).lower() for name in names}.isdisjoint((*_FILE_COLUMNS, "img")):
        return ""
    for columns in file_types.value_columns().values():
        matches = [name for name in names if str(name).lower() in columns]
        if len(matches) == 1:
            return matches[0]
    return ""


def _read_arrays(data: Any, split: str) -> Sequence[Any] | None:
    """x, y and perhaps sample_weight of all examples; None for tables of files."""
    if isinstance(data, tf.data.Dataset):
        return _concatenate(_dataset_batches(data), split)
    if isinstance(data, keras.utils.PyDataset):
        if data.num_batches is None:
            raise UsageError(f"the PyDataset of {split} has no length; define __len__")
        batches = (data[number] for number in range(data.num_batches))
        return _concatenate(batches, split)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return data
    if isinstance(data, Mapping):
        names = _field_names(data, f"the dictionary of {split}")
        return [data[name] for name in names]
    return None


def _dataset_batches(data: tf.data.Dataset) -> Iterator[Any]:
    """Yields the batches of a dataset; batches single examples."""
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise UsageError(
            "the tf.data.Dataset never ends; remove repeat(), or add take(N)"
        )
    spec = data.element_spec
    if isinstance(spec, Mapping):
        # not within map(), which would change the error
        names = _field_names(spec, "the tf.data.Dataset")
        data = data.map(lambda row: tuple(row[name] for name in names))
        spec = data.element_spec
    if isinstance(spec, tf.TensorSpec):
        raise NoLabels(f"the tf.data.Dataset has no labels; {EXPECTED}")
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise UsageError(f"the tf.data.Dataset has elements {spec}; {EXPECTED}")
    for part in (*_parts(spec[0]), *_parts(spec[1]), *spec[2:]):
        _require_dense(part, spec)
    try:
        batches = data if _is_batched(data) else data.batch(256)
        yield from batches.as_numpy_iterator()
    except tf.errors.OpError as error:
        raise UsageError(
            f"the tf.data.Dataset cannot be read: {reason(error)}"
        ) from None


def _require_dense(part: Any, spec: Any) -> None:
    """Raises UsageError unless a part of an element is one tensor with a known rank."""
    if isinstance(part, tf.RaggedTensorSpec):
        raise UsageError(
            "the tf.data.Dataset has a tf.RaggedTensor; pad it with to_tensor() in"
            " map()"
        )
    if isinstance(part, tf.SparseTensorSpec):
        raise UsageError(
            "the tf.data.Dataset has a tf.SparseTensor; use tf.sparse.to_dense in map()"
        )
    if not isinstance(part, tf.TensorSpec):
        raise UsageError(f"the tf.data.Dataset has elements {spec}; {EXPECTED}")
    if part.shape.rank is None:
        raise UsageError("the shapes of the tf.data.Dataset are unknown; use set_shape")


def _is_batched(data: tf.data.Dataset) -> bool:
    """Whether the elements of a dataset are batches, not single examples."""
    x, y, *weight = data.element_spec
    if weight:
        return weight[0].shape.rank > 0
    if isinstance(y, Mapping):
        return all(part.shape.rank > 0 for part in (*_parts(x), *_parts(y)))
    inputs = [part.shape for part in _parts(x)]
    shapes = [*inputs, y.shape]
    if any(shape.rank == 0 for shape in shapes):
        return False
    if any(shape.rank > 3 for shape in shapes):
        return True
    lengths = {shape[0] for shape in shapes}
    if len(lengths - {None}) > 1:
        return False
    # `batch` leaves the length of all parts open.
    has_open_lengths = lengths == {None}
    rank = max(shape.rank for shape in inputs)
    if y.shape.rank == 3:
        is_plane = y.shape[2] == 1 and y.shape[1] != 1  # a mask (height, width, 1)
        return not is_plane
    if y.shape.rank == 1 and rank == 1:
        # Numbers (n,) with answers (n,); or a vector of features (m,) with a one-hot
        # label or several numbers (k,).
        return has_open_lengths and _Elements(data).have_equal_lengths
    if y.shape.rank == 1:
        # Features (n, m) or gray images (n, height, width) with labels (n,); or a gray
        # image (height, width) or an image (height, width, channels) with a one-hot
        # label (classes,).
        elements = _Elements(data)
        return elements.have_equal_lengths and (
            has_open_lengths or not elements.are_one_hot
        )
    if rank == 1:
        return True
    # Features (n, m) or (n, time, channels) with rows (n, k); or an image (height,
    # width[, channels]) with a mask (height, width).
    has_whole_y = y.dtype.is_integer or y.dtype.is_bool
    if not has_whole_y and rank == 2:
        return True
    if has_open_lengths and y.shape[1] is not None:
        return True
    return not _Elements(data).have_equal_planes


class _Elements:
    """What the first elements (x, y) of a dataset have in common."""

    def __init__(self, data: tf.data.Dataset) -> None:
        self.have_equal_lengths = True
        """Whether x and y have the same length."""
        self.have_equal_planes = True
        """Whether an image has the first two axes of y, whose rows are not one-hot."""
        self.are_one_hot = True
        """Whether y is a one-hot vector."""
        for x, y in data.take(_SAMPLE).as_numpy_iterator():
            parts = _parts(x)
            rows = y if y.ndim > 1 else y[None]
            is_one_hot = all(map(_is_one_hot, rows))
            has_plane = any(
                part.shape[:2] == y.shape and _may_be_image(part) for part in parts
            )
            self.have_equal_lengths &= all(len(part) == len(y) for part in parts)
            self.have_equal_planes &= has_plane and not is_one_hot
            self.are_one_hot &= is_one_hot


def _may_be_image(pixels: np.ndarray) -> bool:
    """Whether an array may be an image, not a batch of vectors of features."""
    is_small = min(pixels.shape[:2]) < SHORTEST_SIDE
    return pixels.ndim == 3 or pixels.dtype.kind == "u" or not is_small


def _parts(x: Any) -> list[Any]:
    """The arrays of x or y, which may be a dictionary."""
    return [*x.values()] if isinstance(x, Mapping) else [x]


def _is_one_hot(label: np.ndarray) -> bool:
    if label.dtype.kind not in "biuf" or len(label) < 2:
        return False
    return sorted({*label.tolist()}) == [0, 1] and bool(label.sum() == 1)


def _field_names(row: Mapping[str, Any], title: str) -> list[str]:
    """The keys of the input, the target and perhaps sample_weight."""
    inputs = [key for key in _INPUT_KEYS if key in row]
    targets = [key for key in _TARGET_KEYS if key in row]
    if not inputs or not targets:
        raise UsageError(f"{title} has the fields {', '.join(row)}; {EXPECTED}")
    for keys, part in ((inputs, "input"), (targets, "target")):
        if len(keys) > 1:
            raise UsageError(
                f"{title} has several fields that could be the {part}:"
                f" {', '.join(keys)}; remove all but one"
            )
    return [*inputs, *targets, *(key for key in ("sample_weight",) if key in row)]


def _concatenate(batches: Iterable[Any], split: str) -> list[Any]:
    """Concatenates batches (x, y) or (x, y, sample_weight) in memory."""
    parts: list[list[Any]] = []
    size = 0
    free = psutil.virtual_memory().available
    for batch in batches:
        if not isinstance(batch, tuple) or len(batch) not in (2, 3):
            raise UsageError(f"{split}: a batch is {type(batch).__name__}; {EXPECTED}")
        x, y, *weight = batch
        arrays = _arrays_of(x, "x", split)
        # Lists of labels may differ in length.
        truth = y if isinstance(y, list | tuple) else _arrays_of(y, "y", split)
        weights = [array_of(values, "sample_weight", split) for values in weight]
        parts.append([arrays, truth, *weights])
        for array in (*_parts(arrays), *_parts(truth), *weights):
            size += getattr(array, "nbytes", 0)
        if 2 * size > free:
            raise UsageError(
                f"{split} does not fit into memory; write it into TFRecord files or"
                " class folders"
            )
    if not parts:
        raise UsageError(f"{split} is empty")
    try:
        return [_join(column) for column in zip(*parts, strict=True)]
    except (KeyError, ValueError) as error:
        raise UsageError(f"{split}: the batches differ: {reason(error)}") from None


def _arrays_of(values: Any, name: str, split: str) -> Any:
    """An array, or a dictionary of arrays."""
    if not isinstance(values, Mapping):
        return array_of(values, name, split)
    return {key: array_of(values[key], f"{name}[{key!r}]", split) for key in values}


def _join(parts: Sequence[Any]) -> Any:
    """Concatenates arrays, lists, or dictionaries of arrays."""
    if isinstance(parts[0], Mapping):
        return {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0]
        }
    if all(isinstance(part, list | tuple) for part in parts):
        return [*itertools.chain(*parts)]
    return np.concatenate(parts)


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
    files = [file_search.with_slashes(str(path)) for path in paths]
    missing = [at for at, file in enumerate(files) if not os.path.exists(file)]
    if missing:
        raise UsageError(
            f"{split}: {len(missing):,} of {len(files):,} files do not exist, such as"
            f" {paths[missing[0]]} in row {rows[missing[0]]}; paths are relative to the"
            " current directory"
        )
    labels = labels_of(data[label_column].to_numpy(), split)
    return {"label": labels, "path": np.array(files, object)}


def _read_hugging_face(data: Any, split: str, options: Mapping[str, Any]) -> Examples:
    image_column = _find_column(("image", "img"), data.column_names, split)
    label_column = _find_column((*_LABEL_COLUMNS, "labels"), data.column_names, split)
    images = []
    for picture in data[image_column]:
        if getattr(picture, "mode", "") == "P":
            picture = picture.convert("RGB")
        images.append(np.asarray(picture))
    options = {**options, "input": options["input"] or "image"}
    return examples(split, images, data[label_column], **options)


def _find_column(names: Sequence[str], columns: Iterable[str], split: str) -> str:
    matches = [column for column in columns if str(column).lower() in names]
    if len(matches) != 1:
        raise UsageError(
            f"{split}: one column must be named {' or '.join(names)}; it has "
            f"{', '.join(map(str, columns))}"
        )
    return matches[0]
