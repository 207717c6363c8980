"""Protobuf tensors to NumPy and back, compared with TensorFlow's own conversion."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.utils import protobuf


@pytest.mark.parametrize("dtype", protobuf.DTYPES.values(), ids=str)
def test_tensors_of_every_type_match_tensorflow(dtype):
    array = np.array([[1, 0, 1], [0, 0, 1]], dtype)
    if dtype.hasobject:
        array = np.array([[b"a", b"", b"\0"], [b"", b"xyz\0", b"\xff"]], object)
    for values in (array, array[:0], array[0, 0]):
        for tensor in (
            tf.make_tensor_proto(values, dtype),
            protobuf.to_tensor(np.asarray(values, dtype)),
        ):
            found = protobuf.to_array(tensor)
            assert (found.dtype, found.shape) == (dtype, np.shape(values))
            np.testing.assert_array_equal(found, tf.make_ndarray(tensor))


@pytest.mark.parametrize(
    "defect",
    [
        "type",
        "short",
        "negative",
    ],
)
def test_malformed_tensors_are_refused(defect):
    tensor = tf.make_tensor_proto(np.arange(4, dtype=np.uint8))
    if defect == "type":
        tensor.dtype = tf.bfloat16.as_datatype_enum
    elif defect == "short":
        tensor.tensor_content = tensor.tensor_content[:3]
    else:
        tensor.tensor_content = b""
        tensor.int_val.extend(range(9 if defect == "many" else 1))
        tensor.tensor_shape.dim[0].size = {"negative": -1, "huge": 2**60}.get(defect, 4)
        tensor.tensor_shape.unknown_rank = defect == "rank"
    with pytest.raises(ValueError, match=r"tensor|reshape"):
        protobuf.to_array(tensor)
