"""Signatures of a served model: converts requests, and checks replies."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.utils import protobuf
from pipeline.utils.errors import UsageError, reason, suggest

Arrays = Mapping[str, np.ndarray]
"""Arrays by name, batch first, of the signature's dtype; strings as bytes objects."""
INVALID_ARGUMENT = "INVALID_ARGUMENT"
_MAX_PROBABILITY = 1 + 2**-10  # half precision may be rounded to more than 1
# Outputs of exported models that have one row per example.
_PROBABILITIES = ("probabilities", "top_scores")
_FINITE = ("prediction",)
_BATCHED = (*_PROBABILITIES, *_FINITE, "class", "label", "top_labels")


class ServingError(UsageError):
    """A request failed, or its reply is invalid.

    Attributes:
        status: Name of the status code, as in gRPC; `INVALID_ARGUMENT` for an invalid
            request.
        message: The server's message, in one line.
    """

    def __init__(self, model: str, status: str, message: str) -> None:
        self.status = status
        self.message = reason(Exception(message.strip() or "no reason given"))
        super().__init__(f"{model}: {status}: {self.message}")


@dataclasses.dataclass(frozen=True)
class Field:
    """Data type and shape of an input or output."""

    dtype: np.dtype
    """NumPy dtype; object for strings, void for types that a client cannot send."""
    shape: tuple[int | None, ...] | None
    """Length of each axis, None for any length, such as the batch; None for an unknown
    rank.
    """

    def __str__(self) -> str:
        name = "string" if self.dtype == object else self.dtype.name
        if self.shape is None:
            return name
        return f"{name} [{', '.join('?' if n is None else str(n) for n in self.shape)}]"


@dataclasses.dataclass(frozen=True)
class Signature:
    """Inputs and outputs of one signature, by name."""

    inputs: Mapping[str, Field]
    outputs: Mapping[str, Field]


@contextlib.contextmanager
def reading_reply(model: str) -> Iterator[None]:
    """Converts any exception raised while a reply is read to a ServingError."""
    try:
        yield
    except Exception as error:  # replies of other programs fail in many ways
        message = f"not a valid reply from TensorFlow Serving: {reason(error)}"
        raise ServingError(model, "UNKNOWN", message) from None


def signatures(definitions: Mapping[str, Any]) -> dict[str, Signature]:
    """Converts `SignatureDef` messages to the signatures that clients call."""
    served = {}
    for name, definition in sorted(definitions.items()):
        if not name.startswith("__"):  # the loader restores the weights with these
            inputs = _fields(definition.inputs)
            served[name] = Signature(inputs, _fields(definition.outputs))
    return served


def _fields(tensors: Mapping[str, Any]) -> dict[str, Field]:
    """Converts `TensorInfo` messages."""
    fields = {}
    for name, tensor in sorted(tensors.items()):
        shape = None
        if not tensor.tensor_shape.unknown_rank:
            sizes = [axis.size for axis in tensor.tensor_shape.dim]
            shape = tuple(None if size < 0 else size for size in sizes)
        dtype = protobuf.DTYPES.get(tensor.dtype, np.dtype("V"))
        fields[name] = Field(dtype, shape)
    return fields


def of_specs(specs: Iterable[Any]) -> Signature:
    """Makes the signature, without outputs, of a function of tensors of these specs."""
    fields = {}
    for spec in specs:
        dtype = np.dtype(spec.dtype.as_numpy_dtype)
        fields[spec.name] = Field(dtype, tuple(spec.shape))
    return Signature(fields, {})


def tensors(signature: Signature, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Converts values to arrays of the types of a signature; strings to bytes objects.

    Raises UsageError if a name is unknown or missing, or if a value does not fit its
    type, such as pixels from 0 to 1 for a model that takes uint8, a common
    training/serving skew.
    """
    for name in values:
        if name not in signature.inputs:
            raise UsageError(
                f"unknown input {name!r}; {suggest(name, signature.inputs)}"
            )
    for name, field in signature.inputs.items():
        if name not in values:
            raise UsageError(f"the input {name!r} is missing; it is {field}")
    arrays = {}
    for name, value in values.items():
        field = signature.inputs[name]
        arrays[name] = tensor(name, value, field)
        if field.shape and not arrays[name].ndim:
            raise UsageError(f"{name} must be {field}, a batch; got a single value")
    return arrays


def tensor(name: str, value: Any, field: Field) -> np.ndarray:
    """Converts a value to an array, as in `tensors`."""
    try:
        array = strings(value) if field.dtype == object else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must be {field}; {reason(error)}") from None
    old = array.dtype.kind
    new = field.dtype.kind
    is_empty = not array.size and new != "V"  # an empty list has no type
    if field.dtype == object or is_empty:
        return array.astype(field.dtype)
    with np.errstate(over="ignore"):
        if old == new == "f":  # losing digits is fine
            return array.astype(field.dtype)
        is_mask = old == "b" and new in "iu"  # not an image of 0 and 1
        if old not in "biu" or new not in "biuf" or is_mask:
            raise UsageError(f"{name} must be {field}; got {array.dtype.name}")
        converted = array.astype(field.dtype)
    if not np.array_equal(converted, array):
        raise UsageError(f"{name} must be {field}; some values are out of range")
    return converted


def strings(value: Any) -> np.ndarray:
    """Converts nested lists or an array of bytes or str to an array of bytes objects.

    NumPy's own bytes type would drop trailing zeros.
    """
    if hasattr(value, "__array__") and not isinstance(value, bytes | str):
        value = np.asarray(value).tolist()  # also from TensorFlow and pandas
    array = np.array(value, object)
    for index, text in enumerate(array.flat):
        if not isinstance(text, bytes | str):
            raise TypeError(f"got {type(text).__name__}")
        array.flat[index] = text.encode() if isinstance(text, str) else text
    return array


def to_prediction(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Decodes strings to str, as REST does, unless the name ends in `_bytes`."""
    decode = np.vectorize(_decode, otypes=[object])
    decoded = dict(outputs)
    for name, array in outputs.items():
        if array.dtype == object and not name.endswith("_bytes"):
            decoded[name] = decode(array)
    return decoded


def _decode(text: bytes) -> str:
    return text.decode(errors="backslashreplace")


def check(
    prediction: Mapping[str, np.ndarray], expected: Mapping[str, Field], count: int
) -> None:
    """Checks that a reply has all outputs, with plausible values.

    In outputs of exported models, probabilities are from 0 to 1, predictions are
    finite, `class` is the most probable class, and `label` the first of `top_labels` or
    empty.
    `count` is the number of examples in the request. Raises ValueError naming the
    output that is missing or wrong.
    """
    for name, field in expected.items():
        if name not in prediction:
            raise ValueError(f"the output {name} is missing")
        values = prediction[name]
        sizes = values.shape if field.shape is None else field.shape
        if name in _BATCHED and sizes:
            sizes = (count, *sizes[1:])
        pairs = zip(sizes, values.shape, strict=False)
        fits = values.ndim == len(sizes) and all(n in (None, m) for n, m in pairs)
        if values.dtype != field.dtype or not fits:
            actual = Field(values.dtype, values.shape)
            raise ValueError(
                f"{name} must be {field} for {count} examples; got {actual}"
            )
        if name in _PROBABILITIES:
            good = (values >= 0) & (values <= _MAX_PROBABILITY)
            _require(good, name, values, "not a probability")
        elif name in _FINITE:
            _require(np.isfinite(values), name, values, "not a finite number")
    if {"probabilities", "class", "label", "top_labels"} <= expected.keys():
        _check_class(prediction)


def _check_class(prediction: Mapping[str, np.ndarray]) -> None:
    probabilities = prediction["probabilities"]
    classes = prediction["class"]
    labels = prediction["label"]
    # Several classes if their probabilities are equal.
    is_best = probabilities == probabilities.max(axis=1, keepdims=True)
    is_prediction = np.arange(is_best.shape[1]) == classes[:, None]
    good = (is_best & is_prediction).any(axis=1)
    _require(good, "class", classes, "but another class is the most probable")
    first = prediction["top_labels"][:, 0]
    # A model that abstains answers with an empty label.
    good = (labels == first) | ~labels.astype(bool)
    _require(good, "label", labels, "but top_labels begins with another")


def _require(good: np.ndarray, name: str, values: np.ndarray, problem: str) -> None:
    for index in np.argwhere(~good)[:1].tolist():
        raise ValueError(f"{name}{index} is {values[tuple(index)]!s}, {problem}")


def shortest(value: float | np.floating) -> float:
    """Returns a float32 as the float with the fewest digits: 0.1, not 0.10000000149."""
    return float(str(np.float32(value)))
