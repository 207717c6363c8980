"""Networks with several inputs and outputs, and one's own losses and metrics."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from keras_model_cases import arguments_of, rows, two_outputs

from pipeline.evaluation import labelled_data
from pipeline.fit import fit
from pipeline.report.evaluation import Evaluation
from pipeline.report.run import Run
from pipeline.utils.errors import UsageError

QUICK = {"log": {"tensorboard": False}, "runtime": {"precision": "float32"}}


def two(**changes):
    return {**arguments_of(two_outputs), **changes}


def network(inputs, outputs):
    return keras.Model(inputs, outputs)


def one_input(shape=(8,), **named):
    """A network with outputs of these widths."""
    inputs = keras.Input(shape)
    outputs = [layers.Dense(width, name=name)(inputs) for name, width in named.items()]
    return keras.Model(inputs, outputs)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


def stateful():
    inputs = keras.Input(batch_shape=(16, 8, 1))
    states = layers.GRU(4, stateful=True, return_sequences=True)(inputs)
    return keras.Model(inputs, layers.Dense(1)(states))


def ragged():
    return tf.ragged.constant([[1.0], [1.0, 2.0]] * 20)


X, Y = rows()
SERIES = X[:, :, None]
BAD = {
    "shapes": (
        two(model=one_input(price=4, kind=3), loss={"price": "mse"}),
        "the loss mean_squared_error of 'price' does not fit: y is float32 of shape",
    ),
    "logits": (
        two(model=one_input(price=4, kind=3), loss={"price": "bce", "kind": "mse"}),
        "the output 'price': the loss expects probabilities, .*from_logits=True",
    ),
    "one loss": (two(loss="mse"), "the loss mean_squared_error of 'kind' does not fit"),
    "one number": (
        two(loss=["mse", lambda y, p: keras.ops.mean(p)]),
        "of 'kind' returns one number for the batch; it must return one value per",
    ),
    "reduction": (
        two(loss=["mse", keras.losses.MeanSquaredError(reduction="sum")]),
        "reduction='sum'.*remove reduction",
    ),
    "names of y": (
        two(data=(X, {"price": Y["price"], "sort": Y["kind"]})),
        "y has 'sort', but the model has the outputs price and kind",
    ),
    "names of x": (
        two(data=({"left": X, "right": X}, Y)),
        "the model has the inputs x, but x has left and right|name them alike",
    ),
    "y is one array": (
        two(data=(X, Y["price"])),
        "the outputs price and kind, but y is one array; pass y as a dictionary",
    ),
    "no y": (two(data=(X, None)), "y is None; pass what the loss compares"),
    "ragged": (
        {"model": one_input((2,), a=1), "data": (ragged(), X[:40]), "loss": "mse"},
        r"x is a RaggedTensor; pad it with x.to_tensor\(\)",
    ),
    "stateful": (
        {"model": stateful(), "data": (SERIES, SERIES), "loss": "mse"},
        "is stateful, but the examples of a batch do not continue",
    ),
    "own step": (
        {
            "model": OwnStep([keras.Input((8,)), layers.Dense(8)]),
            "data": (X, X),
            "loss": "mse",
        },
        "the model OwnStep overrides train_step, which is not called here",
    ),
    "class weight": (two(class_weight={0: 2.0}), "belongs to your own loss"),
    "smoothing": (
        two(train={"label_smoothing": 0.1}),
        "label_smoothing|belongs to your own loss",
    ),
    "metric": (
        two(metrics={"price": ["nonsense"]}),
        "unknown metric 'nonsense'",
    ),
    "metric of no output": (
        two(metrics={"prise": ["mae"]}),
        "metrics names the output 'prise'; did you mean 'price'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_one_line_before_training(workplace, case):
    arguments, message = BAD[case]
    with pytest.raises(UsageError, match=message) as caught:
        fit(**arguments, epochs=1, **QUICK)
    assert "\n" not in str(caught.value) and "--" not in str(caught.value)
    assert (
        not (workplace / "runs").exists() and not (workplace / "saved_models").exists()
    )


def test_a_later_process_predicts_and_measures_as_the_run(workplace):
    """With the losses and metrics of `fit`; without them if Keras does not find one."""
    run = fit(**two(), epochs=1, run_directory="run", **QUICK)
    loaded = Run.load("run")
    expected = run.predict(X[:3])
    for name, values in loaded.predict(X[:3]).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5)
    metrics = run.evaluate((X, Y)).metrics
    assert {"loss", "price_loss", "kind_accuracy"} < metrics.keys()
    assert loaded.evaluate((X, Y)).metrics == pytest.approx(metrics, abs=1e-5)
    exported = Evaluation.of(labelled_data.evaluate_export(run.export, (X, Y), None))
    assert exported.metrics == {"examples": len(X)} and "no loss" in exported.text
    text = Path("run/losses.json").read_text()
    Path("run/losses.json").write_text(text.replace("SparseCat", "MyCat"))
    without = Run.load("run").evaluate((X, Y))
    assert without.metrics == {"examples": len(X)} and "no loss" in without.text
