"""What TensorFlow Serving and its clients ask of the signatures of a model."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from pipeline.utils.errors import Failure
from pipeline.utils.protobuf import NUMBERS

FLOAT, STRING = 1, 7  # of tensorflow/core/framework/types.proto
# What REST can carry: float, double, (u)int8 to 64, string, bool. No half precision.
_REST_TYPES = {FLOAT, 2, 3, 4, 5, 6, STRING, 9, 10, 17, 22, 23}
# Names that Keras counts up from run to run, or gives where it knows none: no interface.
_UNSTABLE = re.compile(r"keras_tensor(_\d+)?|args_\d+|output_\d+")
# The Classify and Regress calls send tf.Examples and read fixed names
# (tensorflow_serving/servables/tensorflow/classifier.cc and regressor.cc).
_METHODS = {f"tensorflow/serving/{name}" for name in ("predict", "classify", "regress")}
_CALLS = {
    "classify": ({"inputs": STRING}, {"classes": STRING, "scores": FLOAT}),
    "regress": ({"inputs": STRING}, {"outputs": FLOAT}),
}


def check(signatures: Any, stored: Collection[str]) -> str:
    """Names, types and first axes of all signatures.

    Args:
        signatures: Name -> SignatureDef.
        stored: Names of the signatures whose answers are stored.

    Raises:
        Failure: A server or a client could not use one of them.
    """
    if "serving_default" not in signatures:
        raise Failure("there is no signature serving_default")
    ours = {name for name in signatures if not name.startswith("__")}
    for signature in sorted(ours ^ set(stored)):
        raise Failure(f"the signature {signature} has no stored answers, or they no signature")
    for signature in sorted(ours):
        definition = signatures[signature]
        if not definition.inputs or not definition.outputs:
            raise Failure(f"{signature} has no inputs, or no outputs")
        for name, tensor in [*definition.inputs.items(), *definition.outputs.items()]:
            _check_tensor(signature, name, tensor)
        if signature in _CALLS:
            _check_call(signature, definition)
    return f"{len(ours)} signatures: {', '.join(sorted(ours))}"


def check_examples(signatures: Any, golden: Mapping[str, Any]) -> None:
    """That stored examples have the types and shapes which the signatures tell clients of.

    Args:
        signatures: Name -> SignatureDef.
        golden: Name -> `inputs` and `outputs`: name -> array, strings as objects.

    Raises:
        Failure: A client that believes the signature would ask or read another thing.
    """
    for signature, sides in golden.items():
        definition = signatures[signature]
        if definition.method_name not in _METHODS:
            raise Failure(f"{signature}: servers have no method {definition.method_name!r}")
        for told, arrays in (
            (definition.inputs, sides["inputs"]),
            (definition.outputs, sides["outputs"]),
        ):
            if set(told) != set(arrays):
                raise Failure(f"{signature} tells of {sorted(told)}, stored are {sorted(arrays)}")
            for name, array in arrays.items():
                _check_example(f"{signature}: {name}", told[name], array)


def _check_example(name: str, told: Any, array: np.ndarray) -> None:
    if told.dtype != NUMBERS.get(array.dtype):
        raise Failure(f"{name} is told to be of the type {told.dtype}, but is {array.dtype}")
    sizes = [axis.size for axis in told.tensor_shape.dim]
    fits = len(sizes) == array.ndim and all(
        size in (-1, there) for size, there in zip(sizes, array.shape, strict=True)
    )
    if not fits:
        raise Failure(f"{name} is told to be {sizes}, but is {list(array.shape)}")


def _check_tensor(signature: str, name: str, tensor: Any) -> None:
    shape = [axis.size for axis in tensor.tensor_shape.dim]
    if _UNSTABLE.fullmatch(name):
        raise Failure(f"{signature}: {name!r} is a name that changes; clients need a lasting one")
    if tensor.dtype not in _REST_TYPES:
        raise Failure(f"{signature}: {name} has a type that REST cannot carry")
    if tensor.tensor_shape.unknown_rank or not shape or shape[0] != -1:
        raise Failure(f"{signature}: the first axis of {name} is not the batch: {shape}")


def _check_call(signature: str, definition: Any) -> None:
    sides = zip((definition.inputs, definition.outputs), _CALLS[signature], strict=True)
    for found, wanted in sides:
        types = {name: tensor.dtype for name, tensor in found.items()}
        if types != wanted:
            raise Failure(
                f"{signature} must take and give {', '.join(wanted)} in the types of that call, "
                f"not {', '.join(types)}"
            )
