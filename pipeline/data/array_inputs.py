"""Recognizes what x holds: images, features, or several inputs by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.data.labels import text_of
from pipeline.utils.errors import UsageError

NUMERIC = "biuf"
"""Kinds of NumPy dtypes: booleans, integers and floats."""
KINDS = ("image", "features", "text")
"""What an array may hold: the last part of its field."""
SHORTEST_SIDE = 8
"""Of arrays of floats that are read as images without an axis for channels."""
_LONGEST_RATIO = 4  # of the sides of images
_MOST_AXES = 4  # of features, the first one included


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The fields of x, and what to say about them."""

    fields: dict[str, np.ndarray]
    """`image`, `features` or `text`; or `NAME/image` and so on of a dictionary."""
    notes: tuple[str, ...] = ()
    feature_names: tuple[str, ...] | None = None

    def image_sizes(self) -> set[tuple[int, int]]:
        """The (height, width) of the images; empty without images."""
        sizes = set()
        for field, values in self.fields.items():
            if kind_of(field) == "image":
                sizes.add(values.shape[1:3])
        return sizes


def kind_of(field: str) -> str:
    """The last part of a field: `image` of `left/image`."""
    return field.rpartition("/")[2]


def inputs_of(
    x: Any,
    where: str,
    kinds: str | Mapping[str, str] | None,
    y_shape: tuple[int, ...],
) -> Inputs:
    """Checks and converts x to the fields of examples.

    Args:
        x: An array, a table of numbers, or a dictionary of them.
        where: The name of the data in messages.
        kinds: `image` or `features`, for each name or for all; None: recognized.
        y_shape: The shape of y, which has as many examples.

    Returns:
        `image`, uint8, uint16 or float32 (n, height, width, channels); `features`,
        int64 or float32 (n, ...) with 1 to 3 axes per example.
    """
    if not isinstance(x, Mapping):
        return _input(x, "", where, kinds, y_shape)
    if not x:
        raise UsageError(f"{where}: x is an empty dictionary; give {{name: array}}")
    fields: dict[str, np.ndarray] = {}
    notes: tuple[str, ...] = ()
    for name, values in x.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise UsageError(
                f"{where}: x has an input named {name!r}; rename it to a string that"
                " is not empty and has no '/'"
            )
        part = _input(values, name, where, kinds, y_shape)
        fields |= part.fields
        notes += part.notes
    return Inputs(fields, notes)


def _input(
    x: Any,
    name: str,
    where: str,
    kinds: str | Mapping[str, str] | None,
    y_shape: tuple[int, ...],
) -> Inputs:
    title = f"x[{name!r}]" if name else "x"
    kind = kinds.get(name) if isinstance(kinds, Mapping) else kinds
    feature_names = None
    texts = _texts_of(x, title, where)
    if texts is not None:
        _require_length(x, texts.shape, y_shape, title, where)
        return Inputs({f"{name}/text" if name else "text": texts})
    if is_table(x):
        values, feature_names = _table_of(x, title, where)
    else:
        values = array_of(x, title, where)
    _require_length(x, values.shape, y_shape, title, where)
    values = numbers_of(values, title, where)
    notes: tuple[str, ...] = ()
    if kind not in ("image", "features"):
        kind, notes = _recognize(values, title)
    if kind == "image":
        values = images_of(values, where, title)
        feature_names = None
    else:
        values = _features_of(values, title, where, feature_names)
    field = f"{name}/{kind}" if name else kind
    return Inputs({field: values}, notes, feature_names)


def _texts_of(x: Any, title: str, where: str) -> np.ndarray | None:
    """Texts as bytes objects, (n,); None if x has no strings.

    Raises UsageError naming the first example that is no string.
    """
    if hasattr(x, "columns"):
        return None
    if is_table(x):
        x = x.to_numpy(object)
    elif isinstance(x, tf.Tensor) and x.dtype == tf.string:
        x = x.numpy()
    if isinstance(x, list | tuple) and x and isinstance(x[0], str | bytes):
        values = np.empty(len(x), object)
        values[:] = x
    elif getattr(getattr(x, "dtype", None), "kind", "") in ("O", "S", "U", "T"):
        values = np.asarray(x)
        if values.ndim == 2 and values.shape[-1] == 1:
            values = values.reshape(len(values))
    else:
        return None
    if values.ndim != 1 or not values.size:
        return None
    if not isinstance(text_of(values[:1].tolist()[0]), str):
        return None
    texts = np.empty(len(values), object)
    for number, value in enumerate(values.tolist()):
        if not isinstance(value, str | bytes):
            raise UsageError(
                f"{where}: {title} holds texts, but example {number} is"
                f" {type(value).__name__}; give a string for each example"
            )
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass")
        texts[number] = value
    return texts


def _require_length(
    x: Any, shape: tuple[int, ...], y_shape: tuple[int, ...], title: str, where: str
) -> None:
    """Raises UsageError unless x and y have the same number of examples."""
    if shape[0] == y_shape[0] > 0:
        return
    remedy = ""
    if isinstance(x, list | tuple) and y_shape[:1] in map(_length, x):
        remedy = "; give several inputs as a dictionary {name: array}"
    raise UsageError(
        f"{where}: the lengths of {title} and y must be equal and at least 1; got"
        f" shapes {shape} and {y_shape}{remedy}"
    )


def _length(values: Any) -> tuple[int, ...]:
    return np.shape(values)[:1]


def is_table(values: Any) -> bool:
    """Whether values are a table or a column of pandas."""
    return hasattr(values, "iloc") and hasattr(values, "to_numpy")


def array_of(values: Any, title: str, where: str) -> np.ndarray:
    """Converts anything like an array, without copying arrays; at least one axis.

    Raises UsageError for ragged and sparse values.
    """
    if isinstance(values, tf.RaggedTensor):
        raise UsageError(
            f"{where}: {title} is a tf.RaggedTensor; pad it with {title}.to_tensor()"
        )
    if isinstance(values, tf.SparseTensor):
        raise UsageError(
            f"{where}: {title} is a tf.SparseTensor; give tf.sparse.to_dense({title})"
        )
    if hasattr(values, "toarray"):  # of SciPy
        raise UsageError(f"{where}: {title} is a sparse matrix; give {title}.toarray()")
    if isinstance(values, list | tuple):
        _require_equal_shapes(values, title, where)
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
    except ValueError:
        raise UsageError(
            f"{where}: the examples of {title} have different shapes; pad or resize"
            " them"
        ) from None
    return array if array.ndim else array[None]


def _require_equal_shapes(parts: Any, title: str, where: str) -> None:
    try:
        shapes = {np.shape(part) for part in parts}
    except ValueError:  # a part has parts of different shapes
        raise UsageError(
            f"{where}: the examples of {title} have different shapes; pad or resize"
            " them"
        ) from None
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes)
        raise UsageError(
            f"{where}: {title} must be one array; got {len(parts)} of different shapes,"
            f" such as {first} and {second}; pad or resize them, or give several inputs"
            " as a dictionary {name: array}"
        )


def _table_of(
    table: Any, title: str, where: str
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """The numbers of a table or column of pandas, and the names of its columns."""
    if table.ndim == 1:
        table = table.to_frame()
    for column, dtype in zip(table.columns, table.dtypes, strict=True):
        if dtype.kind not in NUMERIC:
            raise UsageError(
                f"{where}: the column {column!r} of {title} has the dtype {dtype};"
                " features must be numbers: convert it, for example with"
                " pandas.get_dummies, or drop it"
            )
    names = tuple(map(str, table.columns))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(
            f"{where}: {title} has two columns named {twice!r}; rename one"
        )
    has_names = any(isinstance(column, str) for column in table.columns)
    return numbers_of_table(table), names if has_names else None


def numbers_of_table(table: Any) -> np.ndarray:
    """The numbers of a table of numeric columns, NaN where a value is missing."""
    kinds = {dtype.kind for dtype in table.dtypes}
    is_whole = kinds <= set("iu") and not table.isna().to_numpy().any()
    if is_whole:
        return table.to_numpy(np.int64)
    return table.to_numpy(np.float64, na_value=np.nan)


def numbers_of(values: np.ndarray, title: str, where: str) -> np.ndarray:
    """Checks that an array has numbers; booleans become float32."""
    if values.dtype.kind == "V" and not values.dtype.names:  # such as bfloat16
        values = values.astype(np.float32)
    if values.dtype.kind == "b":
        return values.astype(np.float32)
    if values.dtype.kind in NUMERIC:
        return values
    text = first_text(values)
    if text is not None:
        raise UsageError(
            f"{where}: {title} holds text ({text!r:.40}), and text is not supported as"
            " an input; give numbers"
        )
    if values.dtype.kind == "O":
        example = type(values.flat[0]).__name__ if values.size else "nothing"
        raise UsageError(
            f"{where}: {title} holds objects ({example}); give one array of numbers,"
            f" such as numpy.stack({title}), or {title}.astype('float32')"
        )
    if values.dtype.kind == "c":
        raise UsageError(
            f"{where}: {title} holds complex numbers; give their parts as"
            f" numpy.stack([{title}.real, {title}.imag], -1)"
        )
    raise UsageError(
        f"{where}: {title} must hold numbers; got {values.dtype}; convert it, for"
        " example with astype('float32')"
    )


def first_text(values: np.ndarray) -> str | None:
    """The first string in an array; None if it has none."""
    if values.dtype.kind not in "OSUT":
        return None
    texts = (value for value in values.flat if isinstance(value, str | bytes))
    text = text_of(next(texts, None))
    return None if text is None else str(text)


def _recognize(values: np.ndarray, title: str) -> tuple[str, tuple[str, ...]]:
    """Whether numbers are `image` or `features`, and a note if this is not obvious."""
    if values.ndim == 4:
        return "image", ()
    if values.ndim != 3 or values.dtype in (np.uint8, np.uint16):
        return ("image" if values.ndim == 3 else "features"), ()
    sides = values.shape[1:]
    looks_like_image = min(sides) >= SHORTEST_SIDE and max(
        sides
    ) <= _LONGEST_RATIO * min(sides)
    start = f"{title} of shape {values.shape} is read as"
    if values.dtype.kind in "iu":
        note = (
            f"{start} features, because it holds {values.dtype}; for gray images, give"
            f" {title}.astype('uint8')"
        )
        return "features", (note,) if looks_like_image else ()
    if looks_like_image:
        note = (
            f"{start} gray images of {sides[0]} x {sides[1]} pixels; for features"
            ' (time, channels), write task={"input": "features"}'
        )
        return "image", (note,)
    note = (
        f"{start} features, {sides[0]} steps of {sides[1]} channels; for gray images,"
        ' write task={"input": "image"}'
    )
    return "features", (note,)


def images_of(images: np.ndarray, where: str, title: str = "x") -> np.ndarray:
    """Checks images, and adds an axis for the channels."""
    if images.ndim not in (3, 4):
        raise UsageError(
            f"{where}: images must have shape (n, height, width[, channels]); got"
            f" {images.dtype} of shape {images.shape}"
        )
    shaped = images[..., None] if images.ndim == 3 else images
    if shaped.dtype.kind == "f":
        shaped = _as_float32(shaped)
    if shaped.dtype not in (np.uint8, np.uint16, np.float32) or not shaped.size:
        remedy = ""
        if shaped.size:
            remedy = (
                f"; convert them with {title}.astype('uint8'), or if they are not"
                ' images, write task={"input": "features"}'
            )
        raise UsageError(
            f"{where}: images must be uint8, uint16 or float32 of shape (n, height,"
            f" width[, channels]); got {images.dtype} of shape {images.shape}{remedy}"
        )
    if shaped.dtype == np.float32 and not np.isfinite(shaped).all():
        raise UsageError(f"{where}: images must be finite; got NaN or infinity")
    return shaped if shaped.flags.c_contiguous else np.ascontiguousarray(shaped)


def _features_of(
    values: np.ndarray, title: str, where: str, names: tuple[str, ...] | None
) -> np.ndarray:
    """Checks features, and adds an axis to one number per example."""
    if values.ndim > _MOST_AXES or not values.size:
        raise UsageError(
            f"{where}: {title} has shape {values.shape}; images have shape (n, height,"
            f" width[, channels]), and features 1 to {_MOST_AXES - 1} axes after the"
            " number of examples, none of length 0"
        )
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim == 2:
        values = np.asarray(values)  # short rows of a memory map are read at once
    if values.dtype.kind == "f":
        return floats_of(values, title, where, names)
    if values.dtype == np.uint64 and values.max() > np.iinfo(np.int64).max:
        raise UsageError(
            f"{where}: {title} has integers above 2**63 - 1; give"
            f" {title}.astype('float32')"
        )
    return _contiguous(values.astype(np.int64, copy=False))


def floats_of(
    values: np.ndarray, title: str, where: str, names: tuple[str, ...] | None = None
) -> np.ndarray:
    """Converts numbers to float32.

    Raises UsageError if one is not finite, naming the example and the column.
    """
    numbers = _as_float32(values)
    if np.isfinite(numbers).all():
        return _contiguous(numbers)
    example, *position = np.argwhere(~np.isfinite(numbers))[0].tolist()
    value = values[(example, *position)]
    column = ""
    if len(position) == 1:
        column = f", column {position[0]}"
    elif position:
        column = f", position {tuple(position)}"
    if names and len(position) == 1:
        column = f", column {names[position[0]]!r}"
    if np.isfinite(value):
        remedy = "which is too large for float32; scale it"
    else:
        remedy = "which is not a number to learn from; replace it or remove the example"
    raise UsageError(
        f"{where}: {title} has {value} in example {example}{column}, {remedy}"
    )


def _as_float32(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # the result is checked
        return values.astype(np.float32, copy=False)


def _contiguous(values: np.ndarray) -> np.ndarray:
    return values if values.flags.c_contiguous else np.ascontiguousarray(values)
