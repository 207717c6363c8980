"""Each guard of a signature, in a graph as in an export."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.serving import request_guards as guards

ROWS = tf.constant([[0.0, 1.0], [0.5, 2.0]])
# Guard -> (arguments after the values, values that it accepts, values that it refuses,
# a part of the message).
GUARDS = {
    "batch": (guards.batch, ([None, 2],), ROWS, ROWS[:0], "the batch is empty"),
    "count": (guards.count, (tf.constant(2), "rows"), ROWS, ROWS[:1], "rows must have"),
    "files": (
        guards.files,
        (),
        tf.constant([b"a", b""]),
        tf.constant([b"a", b"b" * (guards.MAX_BYTES + 1)]),
        "more than",
    ),
    "within": (
        guards.within,
        ([0.0, 1.0], "x"),
        ROWS,
        ROWS * 2,
        "x must be from 0 to 1",
    ),
    "within, lower": (
        guards.within,
        ([0.0, 1.0], "x"),
        ROWS - 1,
        ROWS - 2,
        "from 0 to 1",
    ),
    "between": (
        guards.between,
        (0.0, 2.0, "x"),
        ROWS,
        ROWS + 0.1,
        "x must be from 0 to 2",
    ),
    "finite": (guards.finite, ("x",), ROWS, ROWS / 0, "x must be finite"),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_returns_good_values_and_refuses_others(name):
    guard, arguments, good, bad, message = GUARDS[name]
    spec = tf.TensorSpec([None, *good.shape[1:]], good.dtype)
    graph = tf.function(lambda values: guard(values, *arguments), [spec])
    np.testing.assert_array_equal(graph(good), good)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        graph(bad)


def test_values_of_another_shape_are_refused():
    spec = tf.TensorSpec(None, tf.float32)
    graph = tf.function(lambda values: guards.batch(values, (None, 2)), [spec])
    for values in (ROWS[0], ROWS[:, :1], ROWS[None]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
            graph(values)
