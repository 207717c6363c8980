"""The update rule on one device, where stock Keras is right: every option against
Keras's own.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from engine_epoch import STEPS, prepared

from pipeline.config import registry
from pipeline.config.sections import TrainConfig
from pipeline.layers.nested import leaf_layers
from pipeline.training.callbacks.log_learning_rate import LogLearningRate
from pipeline.training.callbacks.unfreeze import Unfreeze
from pipeline.training.optim import gradient_update
from pipeline.utils.errors import UsageError


def test_biases_are_excluded_from_the_decay():
    options = {"optimizer": "adamw", "optimizer_options": {}, "weight_decay": 0.5}
    model, _ = prepared(**options)
    for variable in model.trainable_variables:
        assert model.optimizer._use_weight_decay(variable) == (len(variable.shape) > 1)


def test_the_gradient_of_a_scaled_loss_is_unscaled_exactly():
    model, _ = prepared("mixed_float16")
    update = model.step.update
    weight = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        loss = update.scale_loss(2.0 * weight)
    (gradient,) = update.unscale([tape.gradient(loss, weight)])
    assert float(loss) == 6.0 * 2**15 and float(gradient) == 2.0


def test_the_loss_scale_doubles_after_good_steps_in_a_row(monkeypatch):
    """An overflow halves it, and the count begins again."""
    monkeypatch.setattr(gradient_update, "GROWTH_STEPS", 3)
    model, _ = prepared("mixed_float16")
    update = model.step.update
    weights = model.trainable_variables
    scales = []
    for gradient in (0.0, 0.0, np.inf, 0.0, 0.0, 0.0):
        gradients = [tf.fill(weight.shape, gradient) for weight in weights]
        update.apply(gradients, tf.constant(1.0), weights, update.snapshot())
        scales.append(float(update.scale.numpy()) / 2**14)
    assert scales == [2, 2, 1, 1, 1, 2]


def test_the_layers_of_a_nested_model_are_unfrozen_in_their_order():
    dense = [keras.layers.Dense(2, name=name) for name in "abc"]
    inner = keras.Sequential([keras.Input((4,)), *dense[:2]])
    outer = keras.Model(inner.inputs, dense[2](inner.outputs[0]))
    for nested in (inner, outer):
        network = keras.Sequential(
            [keras.Input((4,)), nested, keras.layers.Dense(1, name="d")]
        )
        names = [
            layer.name
            for layer in dict.fromkeys(leaf_layers(network))
            if layer.variables
        ]
        assert names == [*"abcd"[: len(nested.weights) // 2], "d"]


@pytest.mark.parametrize(
    "engine", ["gradient_tape", pytest.param("model_fit", marks=pytest.mark.long)]
)
def test_frozen_layers_do_not_change_until_they_are_released(engine):
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append([v.numpy() for v in self.model.layers[1].variables])

    model, batches = prepared(freeze=("conv",), freeze_epochs=1, epochs=2)
    start = [v.numpy() for v in model.layers[1].variables]
    assert model.frozen and not model.layers[1].trainable
    model.steps_per_execution = 3
    unfreeze = Unfreeze(TrainConfig(freeze=("conv",), freeze_epochs=1))
    registry.load("engines", engine)(model, batches, None, [unfreeze, Look()])
    np.testing.assert_array_equal(seen[0][0], start[0])
    assert (seen[1][0] != start[0]).any() and model.layers[1].trainable


OPTIMIZERS = """
import keras
import tensorflow as tf
def accumulating(rate):
    return keras.optimizers.SGD(rate, gradient_accumulation_steps=2)
def averaging(rate):
    return keras.optimizers.SGD(rate, use_ema=True)
def scaling(rate):
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate))
def nothing(rate):
    return None
class Untracked(keras.optimizers.SGD):
    def build(self, variables):
        super().build(variables)
        self.moments = [tf.Variable(0.0)]
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "foreign.accumulating"}, "use --train.accumulate"),
        ({"optimizer": "foreign.averaging"}, "use --train.ema"),
        ({"optimizer": "foreign.scaling"}, "loss scaling is built in"),
        ({"optimizer": "foreign.Untracked"}, "moments is a tf.Variable, which Keras"),
        ({"optimizer": "foreign.nothing"}, "nothing must return a Keras optimizer"),
        ({"freeze": ("dens_",)}, "--train.freeze: .*'dens_'; .*'dense"),
        ({"freeze": ("conv", "dense", "logits")}, "nothing is left to train"),
        ({"class_weight": {"d": 2.0}}, "--train.class-weight: unknown class 'd'"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(
    tmp_path, monkeypatch, options, message
):
    (tmp_path / "foreign.py").write_text(OPTIMIZERS)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        prepared(**options, optimizer_options={})
    assert "\n" not in str(caught.value)


def test_float16_learns_and_counts_its_skipped_steps_in_the_log():
    logs = {}

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, values=None):
            logs.update(values)

    model, batches = prepared("mixed_float16")
    model.step.update.scale.assign(2.0**31)
    model.steps_per_execution = 8
    registry.load("engines", "model_fit")(
        model, batches, None, [LogLearningRate(), Keep()]
    )
    assert 0 < logs["skipped_steps"] <= STEPS
    assert logs["loss_scale"] == 2.0 ** (31 - logs["skipped_steps"])
    assert logs["skipped_steps"] + int(model.optimizer.iterations) == STEPS
    assert model.step.update.step_stats.pop_bad_steps() is None, (
        "the loss scale explains them"
    )
