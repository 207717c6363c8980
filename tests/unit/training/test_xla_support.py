"""Errors of compilation are told from other errors of the same type."""

import threading

import keras
import pytest
import tensorflow as tf

from pipeline.training import xla_support
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


def test_a_long_compilation_is_said_once(monkeypatch):
    said = []
    is_said = threading.Event()

    def say(name, line):
        said.append((name, line))
        is_said.set()

    monkeypatch.setattr(xla_support, "say", say)
    monkeypatch.setattr(xla_support, "_LONG", 0.0)
    compiled = xla_support.with_notice(lambda _: is_said.wait(60), "outputs")
    assert compiled(0)
    monkeypatch.setattr(xla_support, "_LONG", 60.0)
    assert compiled(1)
    ((name, line),) = said
    assert name == "xla" and "compiling outputs takes more than a minute" in line
