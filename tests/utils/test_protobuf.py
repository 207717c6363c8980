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


def test_the_last_value_stands_for_all_missing_values():
    tensor = tf.make_tensor_proto(0.25, shape=(2, 2))
    assert list(tensor.float_val) == [0.25]
    np.testing.assert_array_equal(protobuf.to_array(tensor), np.full((2, 2), 0.25, np.float32))
    del tensor.float_val[:]
    np.testing.assert_array_equal(protobuf.to_array(tensor), np.zeros((2, 2), np.float32))


@pytest.mark.parametrize("defect", ["type", "short"])
def test_malformed_tensors_are_refused(defect):
    tensor = tf.make_tensor_proto(np.arange(4, dtype=np.uint8))
    if defect == "type":
        tensor.dtype = tf.bfloat16.as_datatype_enum
    else:
        tensor.tensor_content = tensor.tensor_content[:3]
    with pytest.raises(ValueError, match=r"tensor|reshape"):
        protobuf.to_array(tensor)
