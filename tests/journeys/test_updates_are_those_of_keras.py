"""The update rule on one device, where stock Keras is right: every option against
Keras's own.
"""

import functools

import keras
import numpy as np
import pytest
from engine_epoch import BATCH, prepared, trained
from toy_problem import CLASSES

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


FOCAL = keras.losses.CategoricalFocalCrossentropy(from_logits=True)


SMOOTHED = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)


def sgd(**options):
    return keras.optimizers.SGD(0.1, momentum=0.9, **options)


@pytest.fixture(scope="module")
def start():
    """(model, images, labels) before any step, in the order of training."""
    model, batches = prepared()
    rows = list(batches.dataset(0))
    images = np.concatenate([row["image"] for row in rows]).astype(np.float32) / 255
    return model, images, np.concatenate([row["label"] for row in rows])


@pytest.fixture
def stock(start):
    """The weights after Keras's own `fit`, which begins with the same weights."""
    model, images, labels = start

    def fit(
        optimizer, loss=CROSS_ENTROPY, size=BATCH, change=lambda copy: None, **options
    ):
        copy = keras.models.clone_model(keras.Model(model.inputs, model.outputs))
        copy.set_weights(model.get_weights())
        change(copy)
        copy.compile(optimizer, loss, jit_compile=False)
        is_one_hot = loss is SMOOTHED or loss is FOCAL
        y = np.eye(CLASSES, dtype=np.float32)[labels] if is_one_hot else labels
        copy.fit(images, y, batch_size=size, shuffle=False, verbose=0, **options)
        return copy.get_weights()

    return fit


def require_close(one, other, atol=2e-6):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_allclose(left, right, atol=atol)


def moved(one, other):
    return max(np.abs(a - b).max() for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def plain():
    return trained()[0].get_weights()


def regularize(model):
    for layer in model.layers:
        if hasattr(layer, "kernel"):
            layer.kernel.regularizer = keras.regularizers.L2(0.05)


def decayed():
    optimizer = sgd(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


ACCUMULATED = {"gradient_accumulation_steps": 2, "global_clipnorm": 0.05}


nightly = functools.partial(pytest.param, marks=pytest.mark.long)


WEIGHTED = {"class_weight": {0: 3.0, 1: 1.0, 2: 0.5}}


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        nightly({"clip_variable_norm": 0.02}, lambda: sgd(clipnorm=0.02), {}),
        nightly({"clip_value": 0.005}, lambda: sgd(clipvalue=0.005), {}),
        nightly(
            {"accumulate": 2, "clip_norm": 0.05},
            lambda: sgd(**ACCUMULATED),
            {"size": BATCH // 2},
        ),
        nightly(
            {"l2": 0.05, "label_smoothing": 0.2},
            sgd,
            {"change": regularize, "loss": SMOOTHED},
        ),
        (
            {"weight_decay": 0.1, "class_weight": {"a": 3.0, "c": 0.5}},
            decayed,
            WEIGHTED,
        ),
        nightly(
            {
                "loss": "categorical_focal_crossentropy",
                "class_weight": {"a": 3.0, "c": 0.5},
            },
            sgd,
            {"loss": FOCAL, **WEIGHTED},
        ),
    ],
)
def test_options_are_those_of_keras(stock, plain, ours, theirs, options):
    found = trained(**ours)[0].get_weights()
    require_close(found, stock(theirs(), **options))
    assert moved(found, plain) > 1e-3, "the options did nothing"


def test_the_average_of_the_weights_forgets_the_first_ones(stock):
    """Its momentum is at most (n - 1) / (n + 8) in step n."""
    averaged, _ = trained(ema=0.8)
    raw = averaged.get_weights()
    averaged.step.update.swap_ema()
    copies, steps = [], []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: steps.append(copies[0].get_weights())
    )
    stock(sgd(), change=copies.append, callbacks=[record])
    expected = steps[0]
    for n, weights in enumerate(steps[1:], 2):
        momentum = min(0.8, (n - 1) / (n + 8))
        expected = [
            momentum * average + (1 - momentum) * weight
            for average, weight in zip(expected, weights, strict=True)
        ]
    require_close(averaged.get_weights(), expected)
    averaged.step.update.swap_ema()
    require_close(averaged.get_weights(), raw, atol=0)
