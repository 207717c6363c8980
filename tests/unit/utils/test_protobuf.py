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
