"""Every schedule: a pure, serialisable function of the step that starts at the given
rate.
"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from registered_functions import load

from pipeline.config import registry

SCHEDULES = registry.names("schedules")


@pytest.mark.parametrize("steps", [1, 7, 390])
@pytest.mark.parametrize("name", SCHEDULES)
def test_never_above_the_given_rate_and_finite_after_the_end(name, steps):
    schedule = load("schedules", name)(0.3, steps)
    found = np.array([float(schedule(step)) for step in range(min(steps, 40))])
    assert found[0] == pytest.approx(0.3)
    assert (found > 0).all() and found.max() <= 0.3 * (1 + 1e-6)
    # Keras asks once more after the last step.
    assert 0 <= float(schedule(steps)) <= 0.3 * (1 + 1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_step_has_one_rate_however_it_is_computed(name):
    """Eager, in a graph, under XLA, for a Keras variable, and after a way
    through JSON.
    """
    warmup = (
        {"warmup": 0.1} if "warmup" in registry.find("schedules", name).options else {}
    )
    schedule = load("schedules", name)(0.3, 40, **warmup)
    text = json.dumps(keras.optimizers.schedules.serialize(schedule))
    again = keras.optimizers.schedules.deserialize(json.loads(text))
    graph = tf.function(lambda step: schedule(step), autograph=False)
    compiled = tf.function(
        lambda step: schedule(step), autograph=False, jit_compile=True
    )
    optimizer = keras.optimizers.SGD(again)
    for step in (0, 3, 4, 8, 21, 22, 39):
        optimizer.iterations.assign(step)
        number = tf.constant(step, tf.int64)
        found = [
            schedule(step),
            graph(number),
            compiled(number),
            optimizer.learning_rate,
        ]
        assert all(value.dtype == tf.float32 for value in found)
        np.testing.assert_allclose(
            [float(value) for value in found], float(found[0]), rtol=2e-6
        )
