"""What a served model takes, answers and says of itself, whoever serves it and however."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.utils.errors import UsageError, reason, suggest
from pipeline.utils.protobuf import DTYPES

INVALID_ARGUMENT = "INVALID_ARGUMENT"
# google/rpc/code.proto
CODES = (
    "OK", "CANCELLED", "UNKNOWN", INVALID_ARGUMENT, "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""Names of the status codes 0, 1, ..."""


STRANGE = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError),
)
"""What reading a reply of another shape raises."""
_MOST = 1 + 2**-10  # of a probability: half precision may round above 1
_OURS = ("probabilities", "class", "label", "top_labels", "top_scores", "prediction")


class Unreadable(ValueError):
    """A value of a reply is not of its output's type; the message names both."""


class ServingError(UsageError):
    """A model did not answer.

    Attributes:
        status: Name of the code, one of `CODES`: `INVALID_ARGUMENT` where the request is wrong.
        message: What the server said, in one line.
    """

    def __init__(self, model: str, status: str, message: str) -> None:
        self.status, self.message = status, reason(Exception(message.strip() or "no reason given"))
        super().__init__(f"{model}: {status}: {self.message}")


@dataclasses.dataclass(frozen=True)
class Field:
    """Type and shape of one input or output."""

    dtype: np.dtype
    """Object for strings, void for what no client can carry."""
    shape: tuple[int | None, ...] | None
    """None for an axis of any length, the batch; None as a whole where the rank is unknown."""

    def __str__(self) -> str:
        name = "string" if self.dtype == object else self.dtype.name
        if self.shape is None:
            return name
        return f"{name} [{', '.join('?' if n is None else str(n) for n in self.shape)}]"


@dataclasses.dataclass(frozen=True)
class Signature:
    """What one endpoint takes and answers, by name."""

    inputs: Mapping[str, Field]
    outputs: Mapping[str, Field]


@dataclasses.dataclass(frozen=True)
class Version:
    """How one version of a model is."""

    number: int
    state: str
    """START, LOADING, AVAILABLE, UNLOADING or END."""
    error: str = ""
    """Why it could not be loaded."""


def field(dtype: np.dtype | None, sizes: Iterable[int] | None) -> Field:
    """A size below 0 is any; a dtype of None is one that no client can carry."""
    shape = None if sizes is None else tuple(None if size < 0 else size for size in sizes)
    return Field(np.dtype("V") if dtype is None else dtype, shape)


def signatures(definitions: Mapping[str, Any]) -> dict[str, Signature]:
    """Those for clients among the `SignatureDef` messages of a SavedModel."""

    def fields(tensors: Mapping[str, Any]) -> dict[str, Field]:
        found = {}
        for name, tensor in sorted(tensors.items()):
            shape = tensor.tensor_shape
            sizes = None if shape.unknown_rank else [axis.size for axis in shape.dim]
            found[name] = field(DTYPES.get(tensor.dtype), sizes)
        return found

    return {
        name: Signature(fields(definition.inputs), fields(definition.outputs))
        for name, definition in sorted(definitions.items())
        if not name.startswith("__")  # how the loader restores the weights
    }


def tensors(signature: Signature, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Values as arrays of the types that a signature takes.

    Args:
        signature: Names and types.
        values: Input name -> array or nested lists; strings as bytes or str.

    Returns:
        Input name -> array; strings as arrays of bytes objects.

    Raises:
        UsageError: A name is unknown or missing, or values would change with their type. Pixels
            from 0 to 1 for a model that takes uint8 are the usual skew between training and use.
    """
    for name in values:
        if name not in signature.inputs:
            raise UsageError(f"there is no input {name!r}; {suggest(name, signature.inputs)}")
    for name, wanted in signature.inputs.items():
        if name not in values:
            raise UsageError(f"the input {name!r} is missing; it is {wanted}")
    return {name: _tensor(name, value, signature.inputs[name]) for name, value in values.items()}


def _tensor(name: str, value: Any, wanted: Field) -> np.ndarray:
    try:
        if wanted.dtype == object:
            return strings(value)
        array = np.asarray(value)
    except UnicodeEncodeError:
        raise UsageError(f"{name} must be {wanted}; a text is no Unicode") from None
    except ValueError:
        raise UsageError(f"{name} must be {wanted}; its lists differ in length") from None
    except TypeError as error:
        raise UsageError(f"{name} must be {wanted}, received {error}") from None
    if not array.size and wanted.dtype.kind != "V":  # an empty list has no type
        return array.astype(wanted.dtype)
    if array.dtype.kind == "f" and wanted.dtype.kind == "f":  # fewer digits will do
        with np.errstate(over="ignore"):
            return array.astype(wanted.dtype)
    truth = array.dtype.kind == "b" and wanted.dtype.kind in "iu"  # a mask is no picture of 0 and 1
    if array.dtype.kind in "biu" and wanted.dtype.kind in "biuf" and not truth:
        converted = array.astype(wanted.dtype)
        if np.array_equal(converted, array):
            return converted
        raise UsageError(f"{name} must be {wanted}; some values are out of its range")
    raise UsageError(f"{name} must be {wanted}, received {array.dtype.name}")


def strings(value: Any) -> np.ndarray:
    """Nested lists, or an array, of bytes or str as an array of bytes objects.

    NumPy's own type for bytes would drop zeros at their end.

    Raises:
        ValueError: Lists beside each other differ in length.
        TypeError: Something is no string; its message says what.
    """
    if hasattr(value, "__array__") and not isinstance(value, bytes | str):
        value = np.asarray(value)  # also of TensorFlow and pandas
    flat, shape = [value.tolist() if isinstance(value, np.ndarray) else value], []
    while flat and isinstance(flat[0], list | tuple):
        shape.append(len(flat[0]))
        if any(not isinstance(one, list | tuple) or len(one) != shape[-1] for one in flat):
            raise ValueError("lists differ in length")
        flat = [one for part in flat for one in part]
    array = np.empty(len(flat), object)
    for at, one in enumerate(flat):
        if not isinstance(one, bytes | str):
            raise TypeError(type(one).__name__)
        array[at] = one.encode() if isinstance(one, str) else one
    return array.reshape(shape)


def answer(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs as a person wants them: strings as str.

    Those whose name ends in `_bytes` stay bytes, as in the server's REST interface.
    """

    def text(array: np.ndarray) -> np.ndarray:
        texts = np.empty(array.size, object)
        texts[:] = [one.decode(errors="backslashreplace") for one in array.flat]
        return texts.reshape(array.shape)

    return {
        name: text(array) if array.dtype == object and not name.endswith("_bytes") else array
        for name, array in outputs.items()
    }


def check(answer: Mapping[str, np.ndarray], promised: Mapping[str, Field], count: int) -> None:
    """That a reply can be right.

    Every output of the signature is there, in its type. Of those that this package exports,
    `probabilities` and `top_scores` are from 0 to 1, `prediction` is finite, `class` is the most
    probable class and `label` the first of `top_labels`.

    Args:
        answer: Output name -> array, as from `answer`.
        promised: The outputs of the signature.
        count: Examples that were sent.

    Raises:
        ValueError: It names the output and the value.
    """
    for name, field in promised.items():
        if name not in answer:
            raise ValueError(f"the reply lacks the output {name}")
        values = answer[name]
        rank = values.ndim if field.shape is None else len(field.shape)
        fits = values.dtype == field.dtype and values.ndim == rank
        if name in _OURS and values.ndim:
            fits &= len(values) == count and values.size > 0
        if not fits:
            found = Field(values.dtype, values.shape)
            raise ValueError(f"{name} is {found} for {count} examples, not {field}")
        if name in ("probabilities", "top_scores") and values.dtype.kind == "f":
            _require(name, values, (values >= 0) & (values <= _MOST), "a probability")
        elif name == "prediction" and values.dtype.kind == "f":
            _require(name, values, np.isfinite(values), "a finite number")
    if {"probabilities", "class", "label"} <= promised.keys():
        _check_class(answer)


def _require(name: str, values: np.ndarray, good: np.ndarray, meant: str) -> None:
    for at in np.argwhere(~good)[:1].tolist():
        raise ValueError(f"{name}{at} is {values[tuple(at)]!s}, not {meant}")


def _check_class(answer: Mapping[str, np.ndarray]) -> None:
    probabilities, classes, labels = (answer[n] for n in ("probabilities", "class", "label"))
    if (probabilities.ndim, classes.ndim, classes.dtype.kind, labels.ndim) != (2, 1, "i", 1):
        return  # of a model that this package did not export
    best = probabilities.argmax(axis=1)
    there = (classes >= 0) & (classes < probabilities.shape[1])
    rows, chosen = np.arange(len(classes)), np.where(there, classes, 0)
    good = there & (probabilities[rows, chosen] == probabilities[rows, best])  # equal ones will do
    for at in np.flatnonzero(~good)[:1]:
        raise ValueError(f"class[{at}] is {classes[at]}, but the most probable class is {best[at]}")
    top = answer.get("top_labels", labels)
    first = top[:, 0] if top.ndim == 2 else labels
    for at in np.flatnonzero(labels != first)[:1]:
        raise ValueError(f"label[{at}] is {labels[at]!r}, but top_labels begin with {first[at]!r}")


def check_pairs(answer: Sequence[Sequence[tuple[str, float]]], count: int) -> None:
    """That an answer to `classify` can be right: (label, probability) pairs of each example.

    Raises:
        ValueError: It names the label and the value.
    """
    if len(answer) != count:
        raise ValueError(f"the reply has {len(answer)} answers to {count} examples")
    for at, pairs in enumerate(answer):
        for label, score in pairs:
            if not (isinstance(label, str) and 0 <= score <= _MOST):
                raise ValueError(f"scores[{at}] of {label!r} is {score}, not a probability")


def features(example: Mapping[str, Any]) -> dict[str, list[bytes] | list[int] | list[float]]:
    """The features of one `tf.Example`, each a list of bytes, whole numbers, or floats.

    Args:
        example: Feature name -> bytes, str, number, or a list or array of them.

    Raises:
        UsageError: A value is something else.
    """
    if not isinstance(example, Mapping):
        kind = type(example).__name__
        raise UsageError(f"an example must be a dict, feature name -> value, received {kind}")
    found: dict[str, Any] = {}
    for name, value in example.items():
        if isinstance(value, np.ndarray | np.generic):
            value = np.asarray(value).ravel().tolist()
        values = list(value) if isinstance(value, list | tuple) else [value]
        if all(isinstance(one, bytes | str) for one in values):
            try:
                found[name] = [one.encode() if isinstance(one, str) else one for one in values]
            except UnicodeEncodeError:
                raise UsageError(f"the feature {name!r} has a text that is no Unicode") from None
        elif all(isinstance(one, int) for one in values):
            if not all(-(2**63) <= one < 2**63 for one in values):
                raise UsageError(f"the feature {name!r} has a number of more than 64 bits")
            found[name] = list(map(int, values))
        elif all(isinstance(one, int | float) for one in values):
            try:
                found[name] = list(map(float, values))
            except OverflowError:
                raise UsageError(f"the feature {name!r} has a number beyond all floats") from None
        else:
            raise UsageError(f"the feature {name!r} must be bytes, text or numbers")
    if not all(isinstance(n, str) and n == n.encode(errors="ignore").decode() for n in found):
        raise UsageError(f"names of features must be texts, received {list(found)!r:.100}")
    return found


def shortest(value: float | np.floating) -> float:
    """A float32 as the number with the fewest digits that stands for it: 0.1, not 0.100000001."""
    return float(str(np.float32(value)))
