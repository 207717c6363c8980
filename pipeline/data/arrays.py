"""Reads x, y and sample weights in memory as the fields of examples.

The rules, one line each, are the tables of docs/user_model.md.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

from pipeline.data.labels import is_missing, labels_of, text_of
from pipeline.utils.errors import NoLabels, UsageError, reason

EXPECTED = (
    "pass (x, y) or (x, y, sample_weight) arrays, of which x may be a dictionary of"
    " arrays, a tf.data.Dataset or keras.utils.PyDataset of such tuples, or a pandas"
    " table or a Hugging Face dataset with the columns image and label"
)
_INPUT_KEYS = ("image", "features", "text", "x")
_TARGET_KEYS = ("label", "class", "target", "labels", "mask", "y")
_INPUTS = ("image", "features", "text")
# Field of y -> name of the target that takes it.
_TARGETS = {"label": "classes", "labels": "labels", "target": "number", "mask": "mask"}
_ONE_TARGET = ("classes", "number", "mask")
_NUMERIC = "biuf"  # kinds of NumPy dtypes: booleans, integers and floats
_TEXTUAL = "OSUT"  # objects, bytes and strings
_LISTS = (list, tuple, set, np.ndarray)
_MAX_AXES = 4  # of features, the first one included
_MAX_CLASSES = 256  # of masks, which are uint8
_FEW_CLASSES = 20
_EXAMPLES_PER_CLASS = 10
_ODD_CLASSES = {"NA", "N/A", "#N/A", "None", "null", "NULL"}


@dataclasses.dataclass(frozen=True)
class Examples:
    """Arrays as the fields of examples, and what to say about them.

    `columns` maps each field, except for `id`, to an array (examples, ...). `kinds` are
    the arguments `input` and `target` of `examples` for the other splits.
    """

    columns: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()
    feature_names: tuple[str, ...] | None = None
    kinds: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    label_shape: tuple[int, ...] = ()
    """As in `Info`."""
    gray_axis: bool = False
    """As in `Info`."""


def examples(
    where: str,
    x: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    input: str | Mapping[str, str] | None = None,
    target: str | None = None,
    has_class_names: bool = False,
) -> Examples:
    """Checks and converts arrays to the fields of examples.

    Args:
        where: The name of the arrays in messages.
        x: Images, (n, height, width[, channels]); features, (n,) to (n, ..., ..., ...);
            texts, (n,); a pandas table of numbers; or a dictionary of them, of equal
            length.
        y: Classes, as for `labels_of`; several labels per example, as rows of 0 and 1
            (n, classes) or lists of strings; numbers to predict, (n,) or (n, numbers);
            or masks of images, (n, height, width[, 1]).
        sample_weight: At least 0, (n,).
        input: `image` or `features`, or `Examples.kinds` of another split; None or
            another name: recognized from rank and dtype.
        target: `classes`, `labels`, `number` or `mask`; None or another name:
            recognized.
        has_class_names: Whether the user names the classes, so that whole numbers are
            classes.

    Returns:
        The inputs, `image`, uint8, uint16 or float32 (n, height, width, channels),
        `features`, int64 or float32 (n, ...), or `text`, bytes objects (n,), with
        `NAME/` in front for a dictionary. The target: `label` and `labels`, in which
        `labels.encode_targets` replaces strings; `target`, float32; or `mask`, uint8
        (n, height, width). And perhaps `sample_weight`, float32.

    Raises:
        UsageError: The arrays have another form.
    """
    fields = {}
    notes = []
    kinds = {}
    for prefix, title, values in _parts_of("x", x, where):
        kind = input.get(prefix) if isinstance(input, Mapping) else input
        kinds[prefix], array, note = _input(values, title, where, kind)
        fields[prefix + kinds[prefix]] = array
        notes.append(note)
    images = [fields[name + kind] for name, kind in kinds.items() if kind == "image"]
    y_values = _target_array(y, where, target)
    _require_equal_lengths({**fields, "y": y_values}, where)
    sizes = {image.shape[1:3] for image in images}
    field, array, note = _target(y_values, where, target, sizes, has_class_names)
    fields[field] = array
    notes.append(note)
    if sample_weight is not None:
        fields["sample_weight"] = _weights(sample_weight, len(array), where)
    return Examples(
        fields,
        tuple(filter(None, notes)),
        _feature_names(x, "x", where) if "features" in fields else None,
        {"input": kinds, "target": _TARGETS[field]},
        y_values.shape[1:] if field == "label" else (),
        kinds.get("") == "image" and len(getattr(x, "shape", ())) == 3,
    )


def unchanged_fields(
    where: str, x: Any, y: Any, sample_weight: Any = None
) -> dict[str, np.ndarray]:
    """The fields of x and y as a network takes them: any number, shape and type.

    Args:
        where: The name of the arrays in messages.
        x: Numbers or strings, (n, ...), or a dictionary of them.
        y: Numbers (n, ...), or a dictionary of them.
        sample_weight: At least 0, (n,).

    Returns:
        `x` or `x/NAME`; `y` or `y/NAME`; perhaps `sample_weight`, float32. Floats are
        float32, booleans too; integers keep their type. Texts are uint8 (n, ..., bytes)
        under a name that ends with `/text`, filled with zeros.

    Raises:
        UsageError: An array has another form, or their lengths differ.
    """
    fields = {}
    for part, data in {"x": x, "y": y}.items():
        for name, title, values in _parts_of(part, data, where):
            field = f"{part}/{name}".rstrip("/")
            array = array_of(values, title, where)
            if part == "x" and _has_text(array):
                texts = np.array(_encode(array, title, where).tolist(), np.bytes_)
                array = texts.view(np.uint8).reshape(*array.shape, -1)
                field += "/text"
            array = _numbers(array, title, where)
            if array.dtype.kind == "f":
                array = _float32(array, title, where, must_be_finite=part == "x")
            fields[field] = _contiguous(array)
    _require_equal_lengths(fields, where)
    if sample_weight is not None:
        count = len(next(iter(fields.values())))
        fields["sample_weight"] = _weights(sample_weight, count, where)
    return fields


def match_fields(tables: Mapping[str, dict[str, np.ndarray]]) -> None:
    """Gives numbers the same dtype in all splits, and unchanged texts the same length.

    Weights of 1 are added, because Keras allows weights in train alone. Raises
    UsageError if the splits have other fields.
    """
    train = tables["train"]
    have_weights = any("sample_weight" in table for table in tables.values())
    for split, table in tables.items():
        if have_weights:
            count = len(next(iter(table.values())))
            table.setdefault("sample_weight", np.ones(count, np.float32))
        for field in sorted(table.keys() ^ train.keys()):
            raise UsageError(
                f"{split} and train must have the same x and y; only one of them has"
                f" {field}"
            )
    for field in train:
        is_unchanged = field.partition("/")[0] in ("x", "y")
        if not is_unchanged and field.rpartition("/")[2] != "features":
            continue
        columns = [table[field] for table in tables.values()]
        dtype = np.result_type(*(column.dtype for column in columns))
        for table in tables.values():
            column = table[field]
            if field.endswith("/text") and dtype == np.uint8:
                length = max(column.shape[-1] for column in columns)
                missing = length - column.shape[-1]
                column = np.pad(column, [(0, 0)] * (column.ndim - 1) + [(0, missing)])
            is_float = dtype.kind == "f"
            table[field] = column.astype(np.float32 if is_float else dtype, copy=False)


def _parts_of(part: str, values: Any, where: str) -> list[tuple[str, str, Any]]:
    """(prefix of the field, title, array) of an array or each array of a dictionary."""
    if not isinstance(values, Mapping):
        return [("", part, values)]
    for name in [*values] or [""]:
        if not isinstance(name, str) or not name or "/" in name:
            raise UsageError(
                f"{where}: {part} must be a dictionary {{name: array}} with names that"
                f" are strings, not empty, without '/'; got the name {name!r}"
            )
    return [(f"{name}/", f"{part}[{name!r}]", array) for name, array in values.items()]


def _require_equal_lengths(fields: Mapping[str, np.ndarray], where: str) -> None:
    lengths = {len(values) for values in fields.values()}
    if len(lengths) > 1 or 0 in lengths:
        shapes = ", ".join(f"{name} {values.shape}" for name, values in fields.items())
        raise UsageError(
            f"{where}: the lengths of x and y must be equal and at least 1; got"
            f" {shapes}; pass several inputs as a dictionary {{name: array}}"
        )


def _weights(sample_weight: Any, count: int, where: str) -> np.ndarray:
    values = array_of(sample_weight, "sample_weight", where)
    is_numeric = values.dtype.kind in "iuf" and values.shape == (count,)
    if not is_numeric or not (np.isfinite(values) & (values >= 0)).all():
        raise UsageError(
            f"{where}: sample_weight must be a finite number of at least 0 for each"
            f" example, of shape ({count},); got {values.dtype} of shape"
            f" {values.shape}; to weight outputs, use loss_weights"
        )
    return values.astype(np.float32)


# Data -> x, y and perhaps sample_weight.


def arrays_of(data: Any, where: str) -> Sequence[Any] | None:
    """x, y and perhaps sample_weight of all examples; None for other data.

    Args:
        data: A tuple or dictionary of arrays; or a `tf.data.Dataset` or `PyDataset` of
            batches of them. A `tf.data.Dataset` of which a part has no axis has single
            examples, which are batched.
        where: The name of the data in messages.

    Raises:
        UsageError: The data have no end, do not fit into memory, or have no y.
    """
    if isinstance(data, tf.data.Dataset):
        _require_end(data)
        return _concatenate(_batches_of(data), where)
    if isinstance(data, keras.utils.PyDataset):
        _require_end(data)
        batches = (data[number] for number in range(len(data)))
        return _concatenate(batches, where)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return data
    if isinstance(data, Mapping):
        return _columns_of(data, f"the dictionary of {where}")
    return None


def find_key(keys: Iterable[Any], names: Sequence[str], title: str) -> Any:
    """The only key that has one of these names, in upper or lower case."""
    keys = [*keys]
    matches = [key for key in keys if str(key).lower() in names]
    if len(matches) != 1:
        has_no_label = not matches and {"label", "labels"} & {*names}
        kind = NoLabels if has_no_label else UsageError
        raise kind(
            f"{title}: exactly one field or column must be named"
            f" {' or '.join(names)}; it has {', '.join(map(str, keys)) or 'none'}"
        )
    return matches[0]


def _columns_of(row: Mapping[str, Any], title: str) -> tuple[Any, ...]:
    """The input, the target and perhaps sample_weight."""
    keys = [find_key(row, names, title) for names in (_INPUT_KEYS, _TARGET_KEYS)]
    return tuple(row[key] for key in [*keys, *({"sample_weight"} & row.keys())])


def _require_end(data: Any) -> None:
    is_endless = not hasattr(data, "__len__")
    if isinstance(data, tf.data.Dataset):
        is_endless = data.cardinality() == tf.data.INFINITE_CARDINALITY
    if is_endless:
        raise UsageError(
            f"the {type(data).__name__} never ends; remove repeat(), add take(N), or"
            " define __len__"
        )


def _batches_of(data: tf.data.Dataset) -> Iterator[Any]:
    """Yields the batches of a dataset; batches single examples."""
    spec = data.element_spec
    is_named = isinstance(spec, Mapping)
    if is_named:
        spec = _columns_of(spec, "the tf.data.Dataset")
    if any(_shape(part).rank == 0 for part in tf.nest.flatten(spec)):
        data = data.batch(256)
    elif _may_be_example(spec):
        raise UsageError(
            f"the tf.data.Dataset has elements {spec}, which may be"
            " batches or single examples; call .batch(32), without drop_remainder"
        )
    try:
        for row in data:
            yield _columns_of(row, "") if is_named else row
    except tf.errors.OpError as error:
        raise UsageError(
            f"the tf.data.Dataset cannot be read: {reason(error)}"
        ) from None


def _may_be_example(spec: Any) -> bool:
    """Whether x and y may be two vectors, or an image and its mask, as well as a batch.

    `batch` leaves the length of the first axis open, and gives weights an axis.
    """
    if not isinstance(spec, tuple) or len(spec) != 2:
        return False
    for x, y in itertools.product(*map(tf.nest.flatten, spec)):
        shape = _shape(y)
        plane = shape[:-1] if shape.rank and shape[-1] == 1 else shape
        is_fixed = shape.is_fully_defined() and x.dtype != tf.string
        if is_fixed and _shape(x).rank in (1, 2, 3) and _shape(x)[:2] == plane:
            return True
    return False


def _shape(part: Any) -> tf.TensorShape:
    return getattr(part, "shape", tf.TensorShape(None))


def _concatenate(batches: Iterable[Any], where: str) -> list[Any]:
    """Concatenates batches (x, y) or (x, y, sample_weight) in memory."""
    columns: dict[tuple[str, str], list[Any]] = {}
    size = 0
    free = psutil.virtual_memory().available
    for batch in batches:
        if not isinstance(batch, tuple) or len(batch) not in (2, 3):
            raise NoLabels(f"{where}: a batch is {type(batch).__name__}; {EXPECTED}")
        lengths = []
        for part, data in zip(("x", "y", "sample_weight"), batch, strict=False):
            for name, title, values in _parts_of(part, data, where):
                if part != "y" or not isinstance(values, list):  # of labels
                    values = array_of(values, title, where)
                    size += values.nbytes
                columns.setdefault((part, name), []).append(values)
                lengths.append(len(values))
        if len(set(lengths)) > 1:
            raise UsageError(
                f"{where}: the parts of a batch have the lengths {lengths}; of single"
                " examples, call .batch(32); pass several inputs as a dictionary"
            )
        if 2 * size > free:
            raise UsageError(
                f"{where} does not fit into memory; write it into TFRecord files or"
                " class folders"
            )
    result: dict[str, Any] = {}
    for (part, name), parts in columns.items():
        joined = _join(parts, part, where)
        result[part] = {**result.get(part, {}), name[:-1]: joined} if name else joined
    if not result:
        raise UsageError(f"{where} is empty")
    return [*result.values()]


def _join(parts: Sequence[Any], title: str, where: str) -> Any:
    """Concatenates arrays, or lists of labels, which may differ in length."""
    if isinstance(parts[0], list):
        return [*itertools.chain(*parts)]
    try:
        return np.concatenate(parts)
    except ValueError as error:
        raise UsageError(
            f"{where}: {title} differs between batches: {reason(error)}"
        ) from None


# An array of any kind -> numbers or texts.


def is_table(values: Any) -> bool:
    """Whether values are a table or a column of pandas."""
    return hasattr(values, "iloc") and hasattr(values, "to_numpy")


def array_of(values: Any, title: str, where: str) -> np.ndarray:
    """Converts anything like an array, without copying arrays; at least one axis.

    Numbers of pandas are int64 or float64, NaN where one is missing; bfloat16 is
    float32. Raises UsageError for ragged and sparse values.
    """
    remedies = {  # attribute of a type -> how to convert it
        "to_tensor": f"pad it with {title}.to_tensor()",
        "dense_shape": f"pass tf.sparse.to_dense({title})",
        "toarray": f"pass {title}.toarray()",  # of SciPy
    }
    for attribute, remedy in remedies.items():
        if hasattr(values, attribute):
            raise UsageError(f"{where}: {title} is a {type(values).__name__}; {remedy}")
    try:
        array = _array_of(values)
    except ValueError:
        raise UsageError(
            f"{where}: the parts of {title} have different shapes; pad or resize them,"
            " or pass several inputs as a dictionary {name: array}"
        ) from None
    if array.dtype.kind == "V" and not array.dtype.names:  # such as bfloat16
        array = array.astype(np.float32)
    return array if array.ndim else array[None]


def _array_of(values: Any) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, list | tuple):
        has_text = isinstance(next(iter(values), None), str | bytes)
        return np.array(values, object if has_text else None)
    if not is_table(values):
        return np.asarray(values)
    kinds = {dtype.kind for dtype in _table_of(values).dtypes}
    if not kinds <= set(_NUMERIC) or kinds == {"b"}:
        return np.asarray(values)
    if kinds <= set("iu") and not values.isna().to_numpy().any():
        return values.to_numpy(np.int64)
    return values.to_numpy(np.float64, na_value=np.nan)


def _table_of(values: Any) -> Any:
    return values.to_frame() if values.ndim == 1 else values


def _feature_names(x: Any, title: str, where: str) -> tuple[str, ...] | None:
    """The names of the columns of pandas; UsageError unless they are numbers."""
    if not is_table(x):
        return None
    table = _table_of(x)
    names = [*map(str, table.columns)]
    for name, dtype in zip(names, table.dtypes, strict=True):
        if dtype.kind not in _NUMERIC or names.count(name) > 1:
            raise UsageError(
                f"{where}: the columns of {title} must be numbers with different names;"
                f" {name!r} is {dtype}: convert it, for example with"
                " pandas.get_dummies, rename it or drop it"
            )
    has_names = any(isinstance(column, str) for column in table.columns)
    return tuple(names) if has_names else None


def _has_text(values: np.ndarray) -> bool:
    is_textual = values.dtype.kind in _TEXTUAL
    return is_textual and any(isinstance(value, str | bytes) for value in values.flat)


def _numbers(values: np.ndarray, title: str, where: str) -> np.ndarray:
    """Checks that an array has numbers; booleans become float32."""
    if values.dtype.kind not in _NUMERIC:
        example = next(iter(values.flat), None)
        raise UsageError(
            f"{where}: {title} must hold numbers; got {values.dtype}"
            f" ({str(example)!r:.40}); pass one array, such as numpy.stack({title}), or"
            f" encode it, for example with {title}.astype('float32') or"
            " keras.layers.StringLookup"
        )
    return values.astype(np.float32) if values.dtype.kind == "b" else values


def _float32(
    values: np.ndarray,
    title: str,
    where: str,
    names: Sequence[str] | None = None,
    must_be_finite: bool = True,
) -> np.ndarray:
    """Converts numbers to float32.

    Raises UsageError naming the example and column of a number that is too large or, if
    `must_be_finite`, not finite.
    """
    with np.errstate(over="ignore"):  # the result is checked
        numbers = values.astype(np.float32, copy=False)
    if np.isfinite(numbers).all():
        return _contiguous(numbers)
    is_wrong = ~np.isfinite(numbers) & (must_be_finite | np.isfinite(values))
    for example, *position in np.argwhere(is_wrong).tolist():
        columns = [names[position[0]]] if names else position
        index = ", ".join(map(repr, [example, *columns]))
        raise UsageError(
            f"{where}: {title}[{index}] is {values[(example, *position)]}, but numbers"
            " must be finite, also as float32; scale them, replace this one, or remove"
            f" example {example}"
        )
    return _contiguous(numbers)


def _contiguous(values: np.ndarray) -> np.ndarray:
    return values if values.flags.c_contiguous else np.ascontiguousarray(values)


def _encode(texts: np.ndarray, title: str, where: str) -> np.ndarray:
    """Texts as bytes objects, (n,); UsageError if one is not a string."""
    values = texts.ravel().astype(object)
    for number, value in enumerate(values):
        if not isinstance(value, str | bytes):
            raise UsageError(
                f"{where}: {title} holds texts, but example {number} is"
                f" {type(value).__name__}; pass a string for each example"
            )
        if isinstance(value, str):
            values[number] = value.encode("utf-8", "surrogatepass")
    return values


# The rules of x.


def _input(
    x: Any, title: str, where: str, kind: str | None
) -> tuple[str, np.ndarray, str]:
    """The kind of an input, its array, and a note."""
    values = array_of(x, title, where)
    is_text = values.size == len(values) and values.dtype.kind in _TEXTUAL
    if is_text and isinstance(next(iter(values.flat), None), str | bytes):
        return "text", _encode(values, title, where), ""
    names = _feature_names(x, title, where)  # refuses a table of other columns
    values = _numbers(values, title, where)
    note = ""
    if kind not in _INPUTS:
        kind, note = _recognize_input(values, title)
    if kind == "image":
        return kind, _images(values, title, where), note
    return "features", _features(values, title, where, names), note


def _recognize_input(values: np.ndarray, title: str) -> tuple[str, str]:
    """`image` or `features`, and a note if rank and dtype are ambiguous."""
    if values.ndim != 3:
        return ("image" if values.ndim == 4 else "features"), ""
    if values.dtype in (np.uint8, np.uint16):
        return "image", ""
    start = f"{title} of shape {values.shape} is read as"
    if values.dtype.kind == "f" and values.shape[1] == values.shape[2]:
        return "image", (
            f"{start} gray images, because they are square; for features (time,"
            ' channels), write task={"input": "features"}'
        )
    return "features", (
        f"{start} features (time, channels); for gray images, write"
        f' task={{"input": "image"}}, or pass {title}.astype("uint8")'
    )


def _images(images: np.ndarray, title: str, where: str) -> np.ndarray:
    """Images, uint8, uint16 or float32 (n, height, width, channels)."""
    if images.dtype.kind == "f":
        images = _float32(images, title, where)
    is_pixels = images.dtype in (np.uint8, np.uint16, np.float32)
    if not is_pixels or images.ndim not in (3, 4) or not images.size:
        raise UsageError(
            f"{where}: images must be uint8, uint16 or float32 of shape (n, height,"
            f" width[, channels]); got {images.dtype} of shape {images.shape}; convert"
            f" them with {title}.astype('uint8'), or if they are not images, write"
            ' task={"input": "features"}'
        )
    return _contiguous(images[..., None] if images.ndim == 3 else images)


def _features(
    values: np.ndarray, title: str, where: str, names: Sequence[str] | None
) -> np.ndarray:
    """Features, int64 or float32 (n, ...), of at least one axis per example."""
    is_too_large = values.dtype == np.uint64 and (values > np.iinfo(np.int64).max).any()
    if values.ndim > _MAX_AXES or not values.size or is_too_large:
        raise UsageError(
            f"{where}: {title} is {values.dtype} of shape {values.shape}; features are"
            f" floats, or integers below 2**63, with 1 to {_MAX_AXES - 1} axes after"
            " the number of examples, none of length 0"
        )
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim == 2:
        values = np.asarray(values)  # short rows of a memory map are read at once
    if values.dtype.kind == "f":
        return _float32(values, title, where, names)
    return _contiguous(values.astype(np.int64, copy=False))


# The rules of y.


def _target_array(y: Any, where: str, kind: str | None) -> np.ndarray:
    """y as an array; several labels of an example are a tuple of strings.

    One string per example is a class, unless `kind` says that there may be several.
    """
    if isinstance(y, Mapping):
        raise UsageError(
            f"{where}: y is a dictionary ({', '.join(map(str, y))}); pass one array,"
            " because a model has one target"
        )
    if isinstance(y, tf.RaggedTensor):
        y = y.to_list()
    if not isinstance(y, list | tuple):
        y = array_of(y, "y", where)
    rows = y
    if isinstance(y, np.ndarray):
        rows = y.tolist() if y.dtype.kind in _TEXTUAL and y.ndim < 3 else []
    lists = [row for row in rows if isinstance(row, _LISTS)]
    has_text = any(isinstance(item, str | bytes) for row in lists for item in row)
    have_one = len(lists) == len(rows) and all(len(row) == 1 for row in lists)
    are_empty = bool(lists) and not any(map(len, lists))
    if (has_text and not have_one) or (kind == "labels" and (has_text or are_empty)):
        return _label_sets(rows, where, kind)
    values = array_of(y, "y", where)
    return np.asarray(values) if values.ndim < 3 else values  # not a memory map


def _label_sets(rows: Sequence[Any], where: str, kind: str | None) -> np.ndarray:
    """Tuples of strings, (n,)."""
    sets = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        labels = tuple(map(text_of, row)) if isinstance(row, _LISTS) else (None,)
        are_texts = all(isinstance(label, str) for label in labels)
        if not are_texts or any(map(is_missing, labels)) or kind in _ONE_TARGET:
            raise UsageError(
                f"{where}: several labels per example are lists of non-empty strings,"
                ' [] without labels, and need task={"target": "labels"}; example'
                f" {number} has {row!r:.40}"
            )
        sets[number] = labels
    return sets


def _target(
    values: np.ndarray,
    where: str,
    kind: str | None,
    image_sizes: set[tuple[int, int]],
    has_class_names: bool,
) -> tuple[str, np.ndarray, str]:
    """The field of y, its array and a note; a `kind` that is not a target is inferred.

    The fields are `label`, int64 or strings (n,); `labels`, uint8 (n, classes) or
    tuples of strings (n,); `target`, float32 (n,) or (n, numbers); or `mask`, uint8 (n,
    height, width).
    """
    if values.dtype == object and isinstance(values[0], tuple):
        return "labels", values, ""
    column = values
    while column.ndim > 1 and column.shape[-1] == 1:  # as in keras.datasets
        column = column[..., 0]
    note = ""
    if kind not in _TARGETS.values():
        is_plane = column.ndim > 2 or values.shape[1:3] in image_sizes
        kind = "mask"
        if not image_sizes or values.ndim not in (3, 4) or not is_plane:
            kind, note = _recognize_target(
                column, where, bool(image_sizes) or has_class_names
            )
    if kind == "mask":
        return "mask", _masks(values, where, image_sizes), note
    if kind == "classes":
        labels = labels_of(values, where)
        for name in sorted(_ODD_CLASSES.intersection(labels.tolist())):
            note = f"y has the class {name!r}; if it is no label, remove its examples"
        return "label", labels, note
    if kind == "labels":
        return "labels", _label_rows(values, where), note
    numbers = _floats_of_objects(column)
    if numbers.dtype.kind not in _NUMERIC or numbers.ndim > 2 or not numbers.size:
        raise UsageError(
            f"{where}: y is {values.dtype} of shape {values.shape}; pass numbers to"
            " predict (n,) or (n, numbers), classes (n,) or one-hot (n, classes),"
            " several labels as rows of 0 and 1 (n, classes), or for images masks (n,"
            ' height, width); strings are classes: task={"target": "classes"}'
        )
    return "target", _float32(numbers, "y", where), note


def _recognize_target(
    values: np.ndarray, where: str, has_classes: bool
) -> tuple[str, str]:
    """`classes`, `labels` or `number`, and a note if this is not obvious.

    `has_classes`: whole numbers are classes.
    """
    if values.dtype.kind in _TEXTUAL:
        return "classes", ""
    if values.dtype.kind not in _NUMERIC or values.ndim > 2 or not values.size:
        return "number", ""  # which is refused
    if values.ndim == 2:
        return _recognize_rows(values)
    is_whole = values.dtype.kind != "f" or not (np.floor(values) < values).any()
    if values.dtype.kind == "b" or (is_whole and has_classes):
        return "classes", ""
    if not is_whole:
        return "number", ""
    classes = np.unique(values)
    limit = max(_FEW_CLASSES, len(values) // _EXAMPLES_PER_CLASS)
    start = f"y has whole numbers from {classes[0]:.10g} to {classes[-1]:.10g}, which"
    if len(classes) <= limit and (classes == np.arange(len(classes))).all():
        return "classes", (
            f"{start} are read as classes; for numbers to predict, write"
            ' task={"target": "number"}'
        )
    return "number", (
        f"{start} are read as numbers to predict; for classes, number them 0, 1, ..."
        ' and write task={"target": "classes"}'
    )


def _recognize_rows(values: np.ndarray) -> tuple[str, str]:
    sums = values.sum(axis=1, dtype=np.float64)
    if ((values == 0) | (values == 1)).all():
        if (sums == 1).all():
            return "classes", ""
        row = np.argmax(sums != 1)
        return "labels", (
            f"y has rows of 0 and 1 that are not all one-hot (example {row} has"
            f" {int(sums[row])} of {values.shape[1]}), which are read as several labels"
            ' per example; for one class each, write task={"target": "classes"}'
        )
    if (values >= 0).all() and np.isclose(sums, 1, atol=1e-3).all():
        return "classes", ""  # soft labels, which are refused
    note = (
        f"y has rows of {values.shape[1]} whole numbers, which are read as numbers to"
        " predict; classes are one whole number or string per example"
    )
    return "number", note if (np.floor(values) == values).all() else ""


def _floats_of_objects(values: np.ndarray) -> np.ndarray:
    """Converts objects that are numbers; returns other values as they are."""
    if values.dtype == object and not _has_text(values):
        with contextlib.suppress(TypeError, ValueError):  # such as lists
            return values.astype(np.float64)
    return values


def _label_rows(values: np.ndarray, where: str) -> np.ndarray:
    """Rows of 0 and 1, uint8 (n, classes)."""
    rows = _floats_of_objects(values[:, None] if values.ndim == 1 else values)
    is_numeric = rows.dtype.kind in _NUMERIC and rows.ndim == 2
    is_wrong = (rows != 0) & (rows != 1)
    if not is_numeric or is_wrong.any():
        example = f", such as {rows[is_wrong][0]!s:.40}" if is_wrong.any() else ""
        raise UsageError(
            f"{where}: several labels per example must be rows of 0 and 1 of shape (n,"
            " classes), or a list of strings for each example; got"
            f" {rows.dtype} of shape {rows.shape}{example}"
        )
    return rows.astype(np.uint8)


def _masks(
    values: np.ndarray, where: str, image_sizes: set[tuple[int, int]]
) -> np.ndarray:
    """Masks, uint8 (n, height, width)."""
    masks = values[..., 0] if values.ndim == 4 and values.shape[3] == 1 else values
    is_numeric = masks.dtype.kind in _NUMERIC and masks.ndim == 3
    if not is_numeric or {masks.shape[1:]} != image_sizes:
        sizes = " and ".join(f"{height}x{width}" for height, width in image_sizes)
        raise UsageError(
            f"{where}: masks must be integers of shape (n, height, width) of the size"
            f" of the images ({sizes or 'x has none'}); got {values.dtype} of shape"
            f" {values.shape}; resize them without interpolation, and of one-hot masks,"
            " pass y.argmax(axis=-1)"
        )
    if masks.dtype == np.uint8:
        return masks
    for row, mask in enumerate(masks):
        is_class = (mask >= 0) & (mask < _MAX_CLASSES) & (np.floor(mask) == mask)
        for value in mask[~is_class]:
            raise UsageError(
                f"{where}: the mask of example {row} has {value}; masks must have a"
                f" class from 0 to {_MAX_CLASSES - 1} for each pixel"
            )
    return masks.astype(np.uint8)
