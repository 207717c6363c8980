"""Signatures of a served model: their inputs and outputs, and checks of requests and
replies.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.utils import protobuf
from pipeline.utils.errors import UsageError, reason, suggest

Arrays = Mapping[str, np.ndarray]
"""Maps names to arrays of the signature's dtype, batch first; strings as bytes objects.
"""
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
        self.status, self.message = (
            status,
            reason(Exception(message.strip() or "no reason given")),
        )
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
    """Returns the signatures for clients from the `SignatureDef` messages of a
    SavedModel.
    """

    def fields(tensors: Mapping[str, Any]) -> dict[str, Field]:
        found = {}
        for name, tensor in sorted(tensors.items()):
            sizes = [axis.size for axis in tensor.tensor_shape.dim]
            shape = tuple(None if size < 0 else size for size in sizes)
            dtype = protobuf.DTYPES.get(tensor.dtype, np.dtype("V"))
            found[name] = Field(
                dtype, None if tensor.tensor_shape.unknown_rank else shape
            )
        return found

    return {
        name: Signature(fields(definition.inputs), fields(definition.outputs))
        for name, definition in sorted(definitions.items())
        if not name.startswith("__")  # used by the loader to restore the weights
    }


def of_specs(specs: Iterable[Any]) -> Signature:
    """The signature of a function that takes tensors of these specs; its outputs are
    left out.
    """
    fields = {
        s.name: Field(np.dtype(s.dtype.as_numpy_dtype), tuple(s.shape)) for s in specs
    }
    return Signature(fields, {})


def tensors(signature: Signature, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Converts values to arrays of the types that a signature takes; strings to bytes
    objects.

    Raises UsageError if a name is unknown or missing, or if a value does not fit its
    type. Passing pixels from 0 to 1 to a model that takes uint8 is a common
    training/serving skew.
    """
    for name in values:
        if name not in signature.inputs:
            raise UsageError(
                f"unknown input {name!r}; {suggest(name, signature.inputs)}"
            )
    for name, wanted in signature.inputs.items():
        if name not in values:
            raise UsageError(f"the input {name!r} is missing; it is {wanted}")
    return {
        name: tensor(name, value, signature.inputs[name])
        for name, value in values.items()
    }


def tensor(name: str, value: Any, wanted: Field) -> np.ndarray:
    """Converts one value to an array, as in `tensors`."""
    try:
        array = strings(value) if wanted.dtype == object else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must be {wanted}; {reason(error)}") from None
    kinds = array.dtype.kind, wanted.dtype.kind
    if wanted.dtype == object or (
        not array.size and kinds[1] != "V"
    ):  # an empty list has no type
        return array.astype(wanted.dtype)
    with np.errstate(over="ignore"):
        if kinds == ("f", "f"):  # losing digits is fine
            return array.astype(wanted.dtype)
        is_mask = kinds[0] == "b" and kinds[1] in "iu"  # not an image of 0 and 1
        if kinds[0] not in "biu" or kinds[1] not in "biuf" or is_mask:
            raise UsageError(f"{name} must be {wanted}; got {array.dtype.name}")
        converted = array.astype(wanted.dtype)
    if not np.array_equal(converted, array):
        raise UsageError(f"{name} must be {wanted}; some values are out of range")
    return converted


def strings(value: Any) -> np.ndarray:
    """Converts nested lists or an array of bytes or str to an array of bytes objects.

    NumPy's own bytes type would drop trailing zeros.
    """
    if hasattr(value, "__array__") and not isinstance(value, bytes | str):
        value = np.asarray(value).tolist()  # also from TensorFlow and pandas
    array = np.array(value, object)
    for index, one in enumerate(array.flat):
        if not isinstance(one, bytes | str):
            raise TypeError(f"got {type(one).__name__}")
        array.flat[index] = one.encode() if isinstance(one, str) else one
    return array


def answer(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Decodes strings in outputs to str, as REST does, unless their names end in
    `_bytes`.
    """
    text = np.vectorize(
        lambda one: one.decode(errors="backslashreplace"), otypes=[object]
    )
    return {
        name: (
            text(array)
            if array.dtype == object and not name.endswith("_bytes")
            else array
        )
        for name, array in outputs.items()
    }


def check(
    answer: Mapping[str, np.ndarray], expected: Mapping[str, Field], count: int
) -> None:
    """Checks that a reply has all outputs of the signature, and that their values are
    plausible.

    In outputs of exported models, probabilities are from 0 to 1, predictions are
    finite, `class` is the most probable class and `label` the first of `top_labels`.
    `count` is the number of examples in the request. Raises ValueError naming the
    output that is missing or wrong.
    """
    for name, field in expected.items():
        if name not in answer:
            raise ValueError(f"the output {name} is missing")
        values = answer[name]
        sizes = values.shape if field.shape is None else field.shape
        if name in _BATCHED and sizes:
            sizes = (count, *sizes[1:])
        fits = values.dtype == field.dtype and values.ndim == len(sizes)
        if not fits or any(
            n not in (None, m) for n, m in zip(sizes, values.shape, strict=True)
        ):
            found = Field(values.dtype, values.shape)
            raise ValueError(
                f"{name} must be {field} for {count} examples; got {found}"
            )
        if name in _PROBABILITIES:
            good = (values >= 0) & (values <= _MAX_PROBABILITY)
            _require(good, name, values, "not a probability")
        elif name in _FINITE:
            _require(np.isfinite(values), name, values, "not a finite number")
    if {"probabilities", "class", "label", "top_labels"} <= expected.keys():
        _check_class(answer)


def _check_class(answer: Mapping[str, np.ndarray]) -> None:
    probabilities, classes, labels = (
        answer[n] for n in ("probabilities", "class", "label")
    )
    best = probabilities == probabilities.max(
        axis=1, keepdims=True
    )  # several if they are equal
    chosen = np.arange(best.shape[1]) == classes[:, None]
    good = (best & chosen).any(axis=1)
    _require(good, "class", classes, "but another class is the most probable")
    first = answer["top_labels"][:, 0]
    _require(labels == first, "label", labels, "but top_labels begins with another")


def _require(good: np.ndarray, name: str, values: np.ndarray, problem: str) -> None:
    for index in np.argwhere(~good)[:1].tolist():
        raise ValueError(f"{name}{index} is {values[tuple(index)]!s}, {problem}")


def shortest(value: float | np.floating) -> float:
    """Returns a float32 as the float with the fewest digits: 0.1, not 0.10000000149."""
    return float(str(np.float32(value)))
