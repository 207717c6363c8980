"""Protobuf messages of TensorFlow and TensorFlow Serving, without the package
`tensorflow`.
"""

import contextlib
import importlib.util
import math
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# DataType of tensorflow/core/framework/types.proto: number, NumPy type, and the field
# of a TensorProto with such values. These are the types that REST can carry, and half
# precision.
_TYPES = (
    (1, np.float32, "float_val"),
    (2, np.float64, "double_val"),
    (3, np.int32, "int_val"),
    (4, np.uint8, "int_val"),
    (5, np.int16, "int_val"),
    (6, np.int8, "int_val"),
    (7, np.object_, "string_val"),
    (9, np.int64, "int64_val"),
    (10, np.bool_, "bool_val"),
    (17, np.uint16, "int_val"),
    (19, np.float16, "half_val"),
    (22, np.uint32, "uint32_val"),
    (23, np.uint64, "uint64_val"),
)
DTYPES = {number: np.dtype(dtype) for number, dtype, _ in _TYPES}
"""Number of a TensorFlow type -> NumPy dtype; object for strings."""
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
"""NumPy dtype -> number of the TensorFlow type."""
_VALUES = {number: field for number, _, field in _TYPES}


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """Imports of `..._pb2` modules in the block do not run `tensorflow/__init__.py`.

    An empty package stands in for TensorFlow meanwhile. Afterwards, `import tensorflow`
    imports the complete package as usual. If TensorFlow has been imported before, it is
    used.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    empty = types.ModuleType("tensorflow")
    empty.__path__ = [str(wheel())]
    sys.modules["tensorflow"] = empty
    try:
        yield
    finally:
        del sys.modules["tensorflow"]


def wheel() -> Path:
    """Returns the directory of the installed TensorFlow without importing it."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("TensorFlow is not installed", name="tensorflow")
    return Path(spec.origin).parent


def to_array(tensor: Any) -> np.ndarray:
    """Converts a `TensorProto` to an array; strings become bytes objects.

    The last value stands for all missing ones, zero if there are no values at all.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"a tensor has the unsupported type {tensor.dtype}")
    shape = [axis.size for axis in tensor.tensor_shape.dim]
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype).reshape(shape).copy()
    field = getattr(tensor, _VALUES[tensor.dtype])
    if not field:
        values = np.array([b"" if dtype.hasobject else 0], dtype)
    elif dtype == np.float16:  # stored as bits
        values = np.array(field, np.uint16).view(np.float16)
    else:
        values = np.empty(len(field), dtype)
        values[:] = field
    positions = np.minimum(np.arange(math.prod(shape)), len(values) - 1)
    return values[positions].reshape(shape)


def fill(tensor: Any, value: float) -> None:
    """Gives all elements of a `TensorProto` of numbers the same value."""
    tensor.ClearField("tensor_content")
    dtype = DTYPES[tensor.dtype]
    element = np.array(value, dtype)
    if dtype == np.float16:  # stored as bits
        element = element.view(np.uint16)
    getattr(tensor, _VALUES[tensor.dtype]).append(element.item())


def to_tensor(array: np.ndarray) -> Any:
    """Converts an array to a `TensorProto`; strings must be bytes objects."""
    with importable():
        from tensorflow.core.framework import tensor_pb2

    tensor = tensor_pb2.TensorProto(dtype=NUMBERS[array.dtype])
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if array.dtype == object:
        tensor.string_val.extend(array.flat)
    else:
        tensor.tensor_content = array.tobytes()
    return tensor
