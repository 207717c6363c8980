"""The update rule on one device, where stock Keras is right: every option against Keras's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small import CLASSES
from update_rules import BATCH, STEPS, prepared, trained

from pipeline.config import registry
from pipeline.training.optim import gradient_update
from pipeline.utils.errors import UsageError


def stock_fit(model, batches, optimizer, loss, size=BATCH, **options):
    """Keras's own fit of a copy of the model from its first weights."""
    rows = list(batches.dataset.as_numpy_iterator())
    images = np.concatenate([row["image"] for row in rows]).astype(np.float32) / 255
    labels = np.concatenate([row["label"] for row in rows])
    model.compile(optimizer, loss, jit_compile=False)
    if options.pop("one_hot", False):
        labels = np.eye(CLASSES, dtype=np.float32)[labels]
    model.fit(images, labels, batch_size=size, shuffle=False, verbose=0, **options)


def copy_of(model):
    copy = keras.models.clone_model(keras.Model(model.inputs, model.outputs))
    copy.set_weights(model.get_weights())
    return copy


CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SGD = {"learning_rate": 0.1, "momentum": 0.9}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"clip_norm": 0.05}, {"global_clipnorm": 0.05}),
        ({"clip_variable_norm": 0.02}, {"clipnorm": 0.02}),
        ({"clip_value": 0.005}, {"clipvalue": 0.005}),
        ({"accumulate": 4}, {"gradient_accumulation_steps": 4}),
        (
            {"accumulate": 2, "clip_norm": 0.05},
            {"gradient_accumulation_steps": 2, "global_clipnorm": 0.05},
        ),
    ],
)
def test_clipping_and_accumulation_are_those_of_keras(ours, theirs):
    model, batches = prepared()
    start = model.get_weights()
    changed, _ = trained(**ours)
    plain, _ = trained()
    stock = copy_of(model)
    size = BATCH // ours.get("accumulate", 1)
    stock_fit(stock, batches, keras.optimizers.SGD(**SGD, **theirs), CROSS_ENTROPY, size)
    for one, other in zip(changed.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    moved = max(np.abs(a - b).max() for a, b in zip(start, changed.get_weights(), strict=True))
    assert moved > 1e-4
    if "accumulate" not in ours:
        acts = [
            np.abs(a - b).max()
            for a, b in zip(plain.get_weights(), changed.get_weights(), strict=True)
        ]
        assert max(acts) > 1e-3, "the clipping did nothing"


def test_weight_decay_is_keras_own_without_biases():
    model, batches = prepared()
    stock = copy_of(model)
    optimizer = keras.optimizers.SGD(**SGD, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    stock_fit(stock, batches, optimizer, CROSS_ENTROPY)
    decayed, _ = trained(weight_decay=0.1)
    for one, other in zip(decayed.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_adamw_decays_no_biases_by_default():
    with_bias, _ = trained(optimizer="adamw", optimizer_options={}, weight_decay=0.5)
    without, _ = trained(optimizer="adam", optimizer_options={})
    (first, *_), (second, *_) = with_bias.trainable_variables, without.trainable_variables
    assert np.abs(first.numpy()).sum() < 0.9 * np.abs(second.numpy()).sum()
    optimizer = with_bias.optimizer
    for variable in with_bias.trainable_variables:
        assert optimizer._use_weight_decay(variable) == (len(variable.shape) > 1)


def test_the_average_is_that_of_keras():
    model, batches = prepared()
    stock = copy_of(model)
    stock_fit(
        stock, batches, keras.optimizers.SGD(**SGD, use_ema=True, ema_momentum=0.8), CROSS_ENTROPY
    )
    averaged, _ = trained(ema=0.8)
    raw = averaged.get_weights()
    averaged.step.update.swap_ema()
    for one, other in zip(averaged.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    averaged.step.update.swap_ema()
    for one, other in zip(averaged.get_weights(), raw, strict=True):
        np.testing.assert_array_equal(one, other)


def test_label_smoothing_and_class_weights_are_those_of_keras():
    model, batches = prepared()
    smooth, weighted = copy_of(model), copy_of(model)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)
    stock_fit(smooth, batches, keras.optimizers.SGD(**SGD), loss, one_hot=True)
    factors = {0: 3.0, 1: 1.0, 2: 0.5}
    stock_fit(weighted, batches, keras.optimizers.SGD(**SGD), CROSS_ENTROPY, class_weight=factors)
    for stock, options in (
        (smooth, {"label_smoothing": 0.2}),
        (weighted, {"class_weight": {"a": 3.0, "c": 0.5}}),
    ):
        ours, _ = trained(**options)
        for one, other in zip(ours.get_weights(), stock.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, atol=2e-6)


def test_l2_is_that_of_keras():
    model, batches = prepared()
    stock = copy_of(model)
    for layer in stock.layers:
        if hasattr(layer, "kernel"):
            layer.kernel.regularizer = keras.regularizers.L2(0.05)
    stock_fit(stock, batches, keras.optimizers.SGD(**SGD), CROSS_ENTROPY)
    ours, _ = trained(l2=0.05)
    for one, other in zip(ours.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_a_rate_meant_for_another_batch_is_scaled():
    model, _ = prepared(learning_rate=0.1, learning_rate_batch_size=32)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 * BATCH / 32)


def test_adaptive_clipping_follows_the_paper():
    generator = np.random.default_rng(3)
    weights = [generator.normal(size=s).astype(np.float32) for s in ((3, 3, 2, 4), (5, 4), (4,))]
    weights[2][0] = 0.0
    gradients = [generator.normal(size=w.shape).astype(np.float32) for w in weights]
    clipped = gradient_update.adaptively(
        [tf.constant(g) for g in gradients],
        tf.constant(1.0),
        0.1,
        [tf.constant(w) for w in weights],
    )
    for weight, gradient, result in zip(weights, gradients, clipped, strict=True):
        for unit in range(weight.shape[-1]):
            length = np.linalg.norm(gradient[..., unit])
            bound = 0.1 * max(np.linalg.norm(weight[..., unit]), 1e-3)
            wanted = gradient[..., unit] * min(1.0, bound / length)
            np.testing.assert_allclose(result[..., unit], wanted, rtol=1e-5)


@pytest.mark.parametrize("engine", registry.names("engines"))
def test_frozen_layers_stay_until_they_are_released(engine):
    from pipeline.config import config
    from pipeline.training.callbacks.unfreeze import Unfreeze

    options = {"freeze": ("conv",), "freeze_epochs": 1, "epochs": 2}
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append([v.numpy() for v in self.model.layers[1].variables])

    train = config.Train(**options)
    model, batches = prepared(**options)
    start = [v.numpy() for v in model.layers[1].variables]
    assert model.frozen and not model.layers[1].trainable
    model.steps_per_execution = 3
    registry.load("engines", engine)(model, batches, None, [Unfreeze(train.freeze_epochs), Look()])
    np.testing.assert_array_equal(seen[0][0], start[0])
    assert (seen[1][0] != start[0]).any() and model.layers[1].trainable


def test_the_name_of_the_model_freezes_nothing():
    with pytest.raises(UsageError, match="no layer is named 'tiny'"):
        prepared(freeze=("tiny",))
    with pytest.raises(UsageError, match="nothing is left to train"):
        prepared(freeze=("conv", "dense", "logits"))


def test_an_unknown_layer_to_freeze_is_refused():
    with pytest.raises(UsageError, match="--train.freeze: no layer is named 'dens_'"):
        prepared(freeze=("dens_",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weight": {"d": 2.0}}, "--train.class-weight: unknown class 'd'"),
    ],
)
def test_what_the_task_cannot_do_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        prepared(**options)


def test_rules_of_a_foreign_optimizer_that_would_be_wrong_are_refused(tmp_path, monkeypatch):
    (tmp_path / "foreign.py").write_text(
        "import keras\n"
        "def accumulating(rate):\n"
        "    return keras.optimizers.SGD(rate, gradient_accumulation_steps=2)\n"
        "def averaging(rate):\n"
        "    return keras.optimizers.SGD(rate, use_ema=True)\n"
        "def scaling(rate):\n"
        "    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate))\n"
        "def multiplying(rate):\n"
        "    return keras.optimizers.SGD(rate, loss_scale_factor=1024.0)\n"
        "def nothing(rate):\n"
        "    return None\n"
        "one = keras.optimizers.SGD(0.1)\n"
        "one.build([keras.Variable([1.0])])\n"
        "def used(rate):\n"
        "    return one\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, message in {
        "accumulating": "use --train.accumulate",
        "averaging": "use --train.ema",
        "scaling": "loss scaling is built in",
        "multiplying": "loss scaling is built in; leave loss_scale_factor away",
        "nothing": "foreign.nothing gives no Keras optimizer but None",
        "used": "it has trained another model",
    }.items():
        with pytest.raises(UsageError, match=message):
            prepared(optimizer=f"foreign.{name}", optimizer_options={})


def test_weights_without_a_gradient_and_with_one_name(tmp_path, monkeypatch):
    """Keras allows both; the averages belong to the weights, not to their names."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "odd.py").write_text(
        "import keras\n"
        "class Odd(keras.layers.Layer):\n"
        "    def build(self, shape):\n"
        "        one = keras.initializers.Constant(1.0)\n"
        "        self.a = self.add_weight(name='w', initializer=one)\n"
        "        self.b = self.add_weight(name='w', initializer='zeros')\n"
        "        self.c = self.add_weight(name='unused')\n"
        "    def call(self, x):\n"
        "        return x * self.a + self.b\n"
        "def features(x):\n"
        "    return Odd()(keras.layers.Flatten()(x))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model, batches = prepared(model="own.odd.features", ema=0.5)
    registry.load("engines", "gradient_tape")(model, batches, None, [])
    raw = model.get_weights()
    model.step.update.swap_ema()
    averaged = model.get_weights()
    model.step.update.swap_ema()
    assert len(model.step.update.variables) == 9 + len(model.trainable_variables)
    assert averaged[0] != averaged[1] and averaged[2] == raw[2]
    for one, other in zip(raw, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_poisoned_batch_is_skipped_in_float32_too():
    model, batches = prepared(model="convnet")
    model.step.set_inputs(batches, None)
    (ticket, *_) = batches.dataset
    before = model.get_weights()
    poisoned = {**ticket, "weight": tf.constant([np.nan, *[1.0] * (BATCH - 1)], tf.float32)}
    model.step.train(model, poisoned)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.step.update.skipped == 1
    model.step.train(model, ticket)
    assert model.step.update.skipped == 1 and int(model.optimizer.iterations) == 1
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))


def test_float16_learns_and_counts_its_skips_in_the_log():
    from pipeline.training.callbacks.average_weights import AverageWeights

    logs = {}

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, values=None):
            logs.update(values)

    model, batches = prepared("mixed_float16")
    model.step.update.scale.assign(2.0**31)
    model.steps_per_execution = 8
    registry.load("engines", "model_fit")(model, batches, None, [AverageWeights(), Keep()])
    assert 0 < logs["skipped_steps"] <= STEPS
    assert logs["loss_scale"] == 2.0 ** (31 - logs["skipped_steps"])
    assert logs["skipped_steps"] + int(model.optimizer.iterations) == STEPS
