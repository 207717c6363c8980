"""Decodes `.npy` files with core operations of TensorFlow, in training as in serving.

The format: numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

import tensorflow as tf

_DTYPES = {
    "<f4": tf.float32,
    "<f8": tf.float64,
    "<i2": tf.int16,
    "<i4": tf.int32,
    "<i8": tf.int64,
    "|u1": tf.uint8,
    "|i1": tf.int8,
}


def decode_npy(content: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """The array in the bytes of a `.npy` file, float32 of this shape.

    Only the first axis may have another length: it is cut at its end, or filled with
    zeros. Raises InvalidArgumentError if the file is damaged, of another shape, or not
    of numbers in C order.
    """
    magic = tf.strings.substr(content, 0, 6)
    is_npy = tf.equal(magic, b"\x93NUMPY")
    checks = [tf.debugging.Assert(is_npy, ["not an .npy file"])]
    with tf.control_dependencies(checks):
        length = tf.io.decode_raw(tf.strings.substr(content, 8, 2), tf.uint16)[0]
    length = tf.cast(length, tf.int32)
    header = tf.strings.substr(content, 10, length)
    data = tf.strings.substr(content, 10 + length, tf.strings.length(content))
    is_c_order = tf.strings.regex_full_match(header, r"(?s).*'fortran_order': False.*")
    checks = [tf.debugging.Assert(is_c_order, ["the .npy file is not in C order"])]
    with tf.control_dependencies(checks):
        values = _decode_numbers(header, data)
    width = 1
    for size in shape[1:]:
        width *= size
    rows = tf.reshape(values, (-1, *shape[1:]))
    inner = ", ".join(str(size) for size in shape[1:])
    pattern = rf"(?s).*'shape': \(\d+,\s*{inner}\).*"
    fits = tf.strings.regex_full_match(header, pattern)
    message = f"the array does not have the shape {shape} after its first axis"
    with tf.control_dependencies([tf.debugging.Assert(fits, [message, header])]):
        rows = rows[: shape[0]]
    missing = shape[0] - tf.shape(rows)[0]
    padding = [[0, missing]] + [[0, 0]] * (len(shape) - 1)
    return tf.ensure_shape(tf.pad(rows, padding), shape)


def _decode_numbers(header: tf.Tensor, data: tf.Tensor) -> tf.Tensor:
    """The numbers of the file's dtype, float32 (n,)."""
    branches = {}
    for index, dtype in enumerate(_DTYPES.values()):
        branches[index] = lambda dtype=dtype: _decode_raw(data, dtype)
    matches = []
    for name in _DTYPES:
        pattern = f"(?s).*'descr': '{name.replace('|', '[|]')}'.*"
        matches.append(tf.strings.regex_full_match(header, pattern))
    is_known = tf.reduce_any(matches)
    message = f"the numbers of the .npy file must be one of {', '.join(_DTYPES)}"
    with tf.control_dependencies([tf.debugging.Assert(is_known, [message, header])]):
        index = tf.argmax(tf.cast(tf.stack(matches), tf.int32), output_type=tf.int32)
    return tf.switch_case(index, branches)


def _decode_raw(data: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    whole = tf.strings.length(data) % dtype.size
    check = tf.debugging.Assert(tf.equal(whole, 0), ["the .npy file is truncated"])
    with tf.control_dependencies([check]):
        values = tf.io.decode_raw(data, dtype)
    return tf.cast(values, tf.float32)
