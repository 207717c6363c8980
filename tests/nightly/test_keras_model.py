"""Networks with several inputs and outputs, and one's own losses and metrics."""

import keras
import numpy as np
import pytest
from interrupted_run import stop_after
from keras_model_cases import CASES, arguments_of

from pipeline import Client
from pipeline.fit import fit
from pipeline.utils.errors import Terminated

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
    names = run.task.user_outputs
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
    request = run.task.input.signatures()[0].request(examples)
    with Client(run.export) as client:
        served = client.predict(**request)
    trained = run.predict(**request)
    assert set(served) == set(run.task.user_outputs)
    for name, values in served.items():
        np.testing.assert_allclose(values, trained[name], rtol=1e-4, atol=1e-5)
