"""Errors of compilation are told from other errors of the same type."""

import keras
import pytest
import tensorflow as tf

from pipeline.training.xla_support import ERRORS, why_not_compiled


def length_from_data(x):
    drawn = tf.random.stateless_uniform((), (1, 2)) + x[0]
    return tf.range(tf.cast(drawn, tf.int32))


def wrong_data(x):
    return tf.debugging.check_numerics(x / 0.0, "bad")


@pytest.mark.parametrize(
    ("function", "xla", "found"),
    [
        (lambda x: tf.strings.as_string(x), True, "AsString"),
        (length_from_data, True, "compile-time constant"),
        (wrong_data, False, ""),
    ],
)
def test_an_error_of_xla_is_named(function, xla, found):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(ERRORS) as caught:
        tf.function(function, jit_compile=xla)(tf.constant([2.0, 3.0]))
    reason = why_not_compiled(caught.value, model)
    assert found in reason and "\n" not in reason
    assert bool(reason) == xla
