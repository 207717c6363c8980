"""The dtype policy of a user's network."""

import keras
import numpy as np
import pytest
import toy_problem

from pipeline.config.sections import ModelConfig
from pipeline.runtime.dtype_policy import policy_scope
from pipeline.training import model_builder
from pipeline.training.own_keras import network
from pipeline.utils.errors import UsageError


class Twice(keras.layers.Layer):
    """Has a layer inside that is not in its config."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = keras.layers.Dense(4)

    def call(self, inputs):
        return self.inner(self.inner(inputs))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs)


def own(policy):
    """Layers inside of layers, a Lambda, an int64 layer, and a head in float32."""
    with policy_scope(policy):
        inner = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(4)], name="inner"
        )
        return keras.Sequential(
            [
                keras.Input((4, 4)),
                keras.layers.TimeDistributed(keras.layers.Dense(4)),
                keras.layers.Bidirectional(keras.layers.GRU(2)),
                keras.layers.Lambda(lambda x: 2 * x),
                Twice(),
                inner,
                keras.layers.Dense(3, dtype="float32"),
            ]
        )


def policies(model):
    kinds = keras.Model | keras.layers.InputLayer
    layers = [x for x in model._flatten_layers() if not isinstance(x, kinds)]
    return [(type(layer).__name__, layer.dtype_policy.name) for layer in layers]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float32", "mixed_float16"])
def test_all_layers_compute_in_the_precision_of_the_run(policy):
    """Except for those in float32; the answers are those of the network with that
    policy.
    """
    model, expected = own("mixed_float16"), own(policy)
    expected.set_weights(model.get_weights())
    with policy_scope(policy):
        copy = network.rebuild(model, (4, 4))
    assert policies(copy) == policies(expected)
    assert {name for _, name in policies(copy)} == {policy, "float32"}
    values = np.random.default_rng(0).normal(size=(5, 4, 4)).astype("float32")
    np.testing.assert_array_equal(copy(values), expected(values))
    assert {name for _, name in policies(model)} == {"mixed_float16", "float32"}


def with_shape(input_shape):
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten()])


def whole_model(x):
    return keras.Sequential([keras.layers.Flatten()])


@pytest.mark.parametrize("function", [with_shape, whole_model])
def test_a_whole_model_needs_a_function_of_shape_and_classes(function):
    options = ModelConfig(name=function)
    with pytest.raises(
        UsageError, match=r"write a function \(input_shape, cl"
    ) as caught:
        model_builder.network(toy_problem.TASK, options, "float32")
    assert "\n" not in str(caught.value) and function.__name__ in str(caught.value)


def test_a_layer_in_another_precision_is_refused():
    layers = [keras.Input((4,)), keras.layers.Dense(3, dtype="float16", name="half")]
    model = keras.Sequential([*layers, keras.layers.Dense(3, dtype="mixed_bfloat16")])
    with policy_scope("mixed_bfloat16"):
        with pytest.raises(UsageError, match="half.*float16"):
            network.rebuild(model, (4,))
        subclassed = Subclassed()
        assert network.rebuild(subclassed, (4,)) is subclassed
        # An object, which cannot be built again in float32 for the export.
        with pytest.raises(UsageError, match="mixed_bfloat16.*float32"):
            network.from_object(subclassed, (4,), 3)
