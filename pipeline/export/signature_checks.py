"""The requirements of TensorFlow Serving and its clients on the signatures of a model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.serving.signatures import Field, signatures
from pipeline.utils.errors import Failure

_FLOAT, _STRING = np.dtype(np.float32), np.dtype(object)
# Types that REST cannot carry: half precision, and those that no client can send.
_UNSUPPORTED = (np.dtype(np.float16), np.dtype("V"))
# Classify and Regress requests contain tf.Examples and read fixed names
# (tensorflow_serving/servables/tensorflow/classifier.cc and regressor.cc).
_CALLS = {
    "classify": ({"inputs": _STRING}, {"classes": _STRING, "scores": _FLOAT}),
    "regress": ({"inputs": _STRING}, {"outputs": _FLOAT}),
}


def check(definitions: Mapping[str, Any], golden: Mapping[str, Any]) -> str:
    """Checks names, types and shapes of all signatures, and compares them with stored examples.

    Raises Failure if a server or client could not use a signature, or if the signature does not
    match the stored examples.
    """
    found = signatures(definitions)
    if "serving_default" not in found:
        raise Failure("the signature serving_default is missing")
    if [*found] != sorted(golden):
        raise Failure(f"the signatures are {[*found]}, the stored answers are of {sorted(golden)}")
    for name, signature in found.items():
        for side in ("inputs", "outputs"):
            fields, arrays = getattr(signature, side), golden[name].get(side, {})
            if set(fields) != set(arrays):
                raise Failure(f"{name}: {side} are {sorted(fields)}, stored are {sorted(arrays)}")
            for key, field in fields.items():
                _check_field(f"{name}: {key}", field, arrays[key])
        if name in _CALLS:
            sides = (signature.inputs, signature.outputs)
            types = tuple({key: field.dtype for key, field in side.items()} for side in sides)
            if types != _CALLS[name]:
                raise Failure(f"{name} must have the types {_CALLS[name]}; got {types}")
    return f"{len(found)} signatures: {', '.join(found)}"


def _check_field(title: str, field: Field, array: np.ndarray) -> None:
    if field.dtype in _UNSUPPORTED:
        raise Failure(f"{title} has a type that REST cannot carry")
    if not field.shape or field.shape[0] is not None:
        raise Failure(f"{title}: the first axis is not the batch: {field}")
    axes = zip(field.shape[1:], array.shape[1:], strict=False)
    fits = len(field.shape) == array.ndim and all(size in (None, stored) for size, stored in axes)
    if field.dtype != array.dtype or not fits:
        raise Failure(f"{title} is {field}, stored is {Field(array.dtype, array.shape)}")
