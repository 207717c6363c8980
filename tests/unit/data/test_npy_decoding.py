"""`.npy` files in a graph, against NumPy."""

import io

import numpy as np
import pytest
import tensorflow as tf

from pipeline.data.npy_decoding import decode_npy

RANDOM = np.random.default_rng(0)


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "i4", "i8", "u1", "i1"])
def test_every_dtype_is_decoded(dtype):
    array = RANDOM.integers(0, 100, (5, 3)).astype(dtype)
    decode = tf.function(lambda content: decode_npy(content, (5, 3)))
    np.testing.assert_array_equal(decode(tf.constant(npy(array))), array)


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3)])
def test_the_first_axis_is_cut_or_filled(shape):
    for length in (2, 4, 7):
        array = RANDOM.normal(size=(length, *shape[1:])).astype(np.float32)
        found = decode_npy(tf.constant(npy(array)), shape).numpy()
        assert found.shape == shape
        kept = min(length, shape[0])
        np.testing.assert_array_equal(found[:kept], array[:kept])
        assert not found[kept:].any()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an .npy file"),
        (b"garbage", "not an .npy file"),
        (npy(np.zeros((3, 4), np.float32)), "does not have the shape"),
        (npy(np.zeros((3, 2), np.complex64)), "must be one of"),
        (npy(np.asfortranarray(np.ones((3, 2), np.float32))), "not in C order"),
        (npy(np.zeros((3, 2), np.float32))[:-3], "truncated"),
    ],
)
def test_another_file_is_refused(content, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        decode_npy(tf.constant(content), (3, 2))
