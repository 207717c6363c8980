"""The requirements of TensorFlow Serving and its clients on the signatures of a model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.utils.errors import Failure
from pipeline.utils.protobuf import DTYPES, NUMBERS

FLOAT, STRING = NUMBERS[np.dtype(np.float32)], NUMBERS[np.dtype(object)]
_HALF = NUMBERS[np.dtype(np.float16)]  # REST cannot carry it
# Classify and Regress requests contain tf.Examples and read fixed names
# (tensorflow_serving/servables/tensorflow/classifier.cc and regressor.cc).
_CALLS = {
    "classify": ({"inputs": STRING}, {"classes": STRING, "scores": FLOAT}),
    "regress": ({"inputs": STRING}, {"outputs": FLOAT}),
}


def check(signatures: Mapping[str, Any], golden: Mapping[str, Any]) -> str:
    """Checks names, types and shapes of all signatures, and compares them with stored examples.

    Raises Failure if a server or client could not use a signature, or if the signature does not
    match the stored examples.
    """
    if "serving_default" not in signatures:
        raise Failure("the signature serving_default is missing")
    names = sorted(name for name in signatures if not name.startswith("__"))
    if names != sorted(golden):
        raise Failure(f"the signatures are {names}, the stored answers are of {sorted(golden)}")
    for name in names:
        definition = signatures[name]
        for side in ("inputs", "outputs"):
            tensors, arrays = getattr(definition, side), golden[name].get(side, {})
            if set(tensors) != set(arrays):
                raise Failure(f"{name}: {side} are {sorted(tensors)}, stored are {sorted(arrays)}")
            for key, tensor in tensors.items():
                _check_tensor(f"{name}: {key}", tensor, arrays[key])
        if name in _CALLS:
            sides = (definition.inputs, definition.outputs)
            types = tuple({key: tensor.dtype for key, tensor in side.items()} for side in sides)
            if types != _CALLS[name]:
                raise Failure(f"{name} must have the types {_CALLS[name]}; got {types}")
    return f"{len(names)} signatures: {', '.join(names)}"


def _check_tensor(title: str, tensor: Any, array: np.ndarray) -> None:
    shape = [axis.size for axis in tensor.tensor_shape.dim]
    if tensor.dtype not in DTYPES or tensor.dtype == _HALF:
        raise Failure(f"{title} has a type that REST cannot carry")
    if tensor.tensor_shape.unknown_rank or not shape or shape[0] != -1:
        raise Failure(f"{title}: the first axis is not the batch: {shape}")
    if DTYPES[tensor.dtype] != array.dtype:
        raise Failure(f"{title} has the type {DTYPES[tensor.dtype]}, stored is {array.dtype}")
    axes = zip(shape[1:], array.shape[1:], strict=False)
    if len(shape) != array.ndim or any(size not in (-1, stored) for size, stored in axes):
        raise Failure(f"{title} has the shape {shape}, stored is {list(array.shape)}")
