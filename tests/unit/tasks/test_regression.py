"""Regression against what it must equal: scikit-learn and NumPy; and bad input."""

import json

import diabetes_table
import numpy as np
import pytest
import tensorflow as tf
from diabetes_table import loaded, make
from random_evaluations import measure
from sklearn import metrics as reference

from pipeline.data import splits
from pipeline.data.array_source import ArraySource
from pipeline.fit import fit
from pipeline.report.target_report import report_of
from pipeline.utils.errors import UsageError

METADATA = {
    "feature_names": ["width", "height"],
    "mean": [1.0, -2.0],
    "deviation": [0.5, 4.0],
}


@pytest.fixture(scope="module")
def diabetes():
    return diabetes_table.diabetes()


def test_nothing_held_out_is_learned_from(diabetes):
    task, parts = diabetes
    seen = parts["train"].column("features").astype(np.float64)
    np.testing.assert_allclose(task.metadata["mean"], seen.mean(0))
    np.testing.assert_allclose(task.metadata["deviation"], seen.std(0))
    prepared = task.input.prepare({"features": tf.constant(seen, tf.float32)})[
        "features"
    ].numpy()
    np.testing.assert_allclose(prepared.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(prepared.std(0), 1, rtol=1e-5)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e9])
def test_a_constant_feature_does_no_harm(constant):
    features = np.column_stack([np.full(50, constant), np.arange(50.0)])
    source = ArraySource({"features": features, "target": features[:, 0]})
    learned = make(METADATA).learn(splits.included(source)["train"])
    assert learned["deviation"][0] == 1 and learned["deviation"][1] == pytest.approx(
        14.43, 1e-3
    )
    prepared = make({**METADATA, **learned}).input.prepare(
        {"features": features.astype(np.float32)}
    )
    assert np.isfinite(prepared["features"]).all()


def test_evaluation_equals_scikit_learn(tmp_path):
    generator = np.random.default_rng(0)
    truth, predicted = generator.normal(size=(2, 1200)).astype(np.float32)
    outputs = predicted[:, None]
    loss = (truth - predicted) ** 2
    found, table = measure(make(METADATA).target, outputs, {"target": truth}, loss)
    assert found["examples"] == 1200
    assert found["mse"] == pytest.approx(found["loss"], rel=1e-5)
    assert found["mse"] == pytest.approx(reference.mean_squared_error(truth, predicted))
    assert found["rmse"] == pytest.approx(
        reference.root_mean_squared_error(truth, predicted)
    )
    assert found["mae"] == pytest.approx(
        reference.mean_absolute_error(truth, predicted)
    )
    assert found["r2"] == pytest.approx(reference.r2_score(truth, predicted))
    assert json.loads(json.dumps(found)) == found
    alike, row = measure(
        make(METADATA).target, outputs[:1], {"target": truth[:1]}, loss[:1]
    )
    assert alike["r2"] is None and alike["examples"] == 1
    for metrics, columns in ((found, table), (alike, row)):
        ((name, figure),) = (
            report_of(make(METADATA).target).pictures(metrics, columns).items()
        )
        figure.savefig(tmp_path / name)


GOOD = np.linspace(0, 1, 40).reshape(20, 2)


@pytest.mark.parametrize(
    ("column", "position", "value", "message"),
    [
        ("features", (3, 1), np.nan, "train: feature '1' of example 3 is nan"),
        ("features", (5, 0), 1e39, "feature '0' of example 5 is inf in float32"),
        ("target", 6, np.nan, "train: the target of example 6 is nan"),
    ],
)
def test_numbers_that_are_none_are_named(column, position, value, message):
    columns = {"features": GOOD.copy(), "target": GOOD[:, 0].copy()}
    columns[column][position] = value
    with pytest.raises(UsageError, match=message) as caught:
        loaded(ArraySource(columns))
    assert "\n" not in str(caught.value)


# Key words of the message -> columns of another form.
COLUMNS = {
    r"target: .*one number.*\(2, 1\)": {
        "features": GOOD,
        "target": GOOD.reshape(20, 2, 1),
    },
    r"features: .*fixed shape.*\(\)": {"features": GOOD[:, 0], "target": GOOD[:, 0]},
    "no field 'target'.*--task": {"features": GOOD},
}


@pytest.mark.parametrize("message", COLUMNS)
def test_columns_of_another_form_are_refused(message):
    with pytest.raises(UsageError, match=message):
        make(ArraySource(COLUMNS[message]).info)


# Key words of the message -> changes of the recipe.
REFUSALS = {
    "needs images.*mlp": {"model": {"name": "convnet"}},
    "flip changes images": {"data": {"augment": {"flip": {}}}},
    "image_size.*regression": {"data": {"image_size": (8, 8)}},
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_does_not_fit_together_is_refused_in_one_line(workplace, message):
    with pytest.raises(UsageError, match=message) as caught:
        fit("regression_linear", **REFUSALS[message])
    assert "\n" not in str(caught.value) and not list(workplace.iterdir())
