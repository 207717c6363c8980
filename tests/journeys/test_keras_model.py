"""Networks with several inputs and outputs, and one's own losses and metrics."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from interrupted_run import stop_after
from keras import layers
from keras_model_cases import CASES, arguments_of, rows, two_outputs

from pipeline import Client
from pipeline.fit import fit
from pipeline.utils.errors import Terminated, UsageError

QUICK = {"log": {"tensorboard": False}, "runtime": {"precision": "float32"}}


def run_of(case, engine="model_fit", **changes):
    train = {"engine": engine, "batch_size": 16}
    return fit(**arguments_of(case), epochs=3, train=train, **QUICK, **changes)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_model_of_any_kind_is_trained_resumed_exported_and_verified(workplace, case):
    whole = run_of(case, run_directory="runs/whole")
    assert whole.result["verification"]["passed"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Terminated):
        stop_after(patch, 4)
        run_of(case, "gradient_tape", run_directory="runs/stopped")
    resumed = run_of(
        case, "gradient_tape", run_directory="runs/stopped", export={"enabled": False}
    )
    pairs = zip(whole.network.get_weights(), resumed.network.get_weights(), strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)
    assert whole.test == resumed.test
    require_metrics_of_keras(whole, arguments_of(case))
    require_answers_of_the_export(whole)


def require_metrics_of_keras(run, arguments):
    """The test metrics are those of `keras.Model.evaluate` of the exported weights."""
    examples = run.splits["test"]
    x, y = (
        {
            name.split("/")[1]: values
            for name, values in examples.take(np.arange(len(examples))).items()
            if name.startswith(kind)
        }
        for kind in "xy"
    )
    if next(iter(run.task.metadata["inputs"].values()))["dtype"] == "string":
        x = {name: keras.ops.convert_to_tensor(texts_of(x[name])) for name in x}
    model = run.model
    names = run.task.own_outputs
    if "loss" not in arguments:
        compiled = arguments["model"]._compile_config.config
        arguments = {**arguments, **compiled}
    losses = arguments["loss"]
    weights = arguments.get("loss_weights")
    metrics = arguments.get("metrics")
    if len(names) > 1 and isinstance(losses, list):
        losses, weights = (
            dict(zip(names, values, strict=True)) for values in (losses, weights)
        )
        metrics = dict(zip(names, metrics, strict=True))
    if len(names) == 1:
        (y,) = y.values()
        model = keras.Model(model.inputs, keras.tree.flatten(model.output)[0])
    if len(model.inputs) == 1:
        (x,) = x.values()
    else:
        x = [x[tensor.name] for tensor in model.inputs]
    model.compile(loss=losses, loss_weights=weights, metrics=metrics)
    # In one batch, because Keras averages the losses of outputs over batches.
    expected = model.evaluate(
        x, y, verbose=0, return_dict=True, batch_size=len(examples)
    )
    for name, value in expected.items():
        assert run.test[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def texts_of(contents):
    length = contents.shape[-1]
    return [row.decode() for row in contents.view(f"S{length}")[:, 0]]


def require_answers_of_the_export(run):
    examples = run.splits["test"].take(np.arange(3))
    request = run.task.serving_inputs()[0].request(examples)
    with Client(run.export) as client:
        served = client.predict(**request)
    trained = run.predict(**request)
    assert set(served) == set(run.task.own_outputs)
    for name, values in served.items():
        np.testing.assert_allclose(values, trained[name], rtol=1e-4, atol=1e-5)


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
        two(model=one_input(price=4, kind=3), loss={"price": "bce", "kind": "mse"}),
        "the loss of 'price' does not fit: y is float32 of shape",
    ),
    "missing loss": (
        two(loss={"price": "mse"}, loss_weights=None, metrics=None),
        r"there is no loss for the output 'kind'; give loss=\{\"kind\": ...\}",
    ),
    "one loss": (two(loss="mse"), 'the outputs price and kind; give loss={"price"'),
    "one number": (
        two(loss=["mse", lambda y, p: keras.ops.mean(p)]),
        "the loss of 'kind' returns one number for the batch; return one for each",
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
        "the outputs price and kind, but y is one array; give y as a dictionary",
    ),
    "no y": (two(data=(X, None)), "y is None; give what the loss compares"),
    "ragged": (
        {"model": one_input((2,), a=1), "data": (ragged(), X[:40]), "loss": "mse"},
        r"x is a tf.RaggedTensor; pad it with x.to_tensor\(\)",
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
