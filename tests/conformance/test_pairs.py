"""Every input with every target: losses, metrics, predictions and signatures, for sources
whose fields have names that say nothing.
"""

import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from input_target_pairs import examples_of, model_of, task_of

from pipeline.config import registry
from pipeline.contracts import TrainingExamples
from pipeline.data.array_source import ArraySource
from pipeline.evaluation import evaluate
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.export import savedmodel
from pipeline.report import input_report
from pipeline.report.target_report import report_of
from pipeline.utils.errors import UsageError

INPUTS = registry.names("inputs")
TARGETS = registry.names("targets")
# Masks and boxes need a map, which only images have.
PAIRS = [
    pair
    for pair in itertools.product(INPUTS, TARGETS)
    if pair[1] not in ("mask", "boxes") or pair[0] == "image"
]
PAIRS += [("series", "ordinal")]  # outside the package
# Each input and each target once; the other pairs are nightly.
ORDINARY = [
    ("image", "classes"),
    ("features", "labels"),
    ("table", "number"),
    ("text", "number"),
    ("audio", "transcript"),
    ("image", "mask"),
    ("image", "boxes"),
    ("series", "ordinal"),
]
SIZE = 12


class Examples(TrainingExamples):
    """Arrays of raw training examples."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return SIZE

    @property
    def short_fields(self):
        return frozenset(self.columns)

    def column(self, name):
        return self.columns[name]

    def batches(self):
        for rows in (slice(0, 5), slice(5, None)):
            yield {name: values[rows] for name, values in self.columns.items()}


def test_each_input_and_each_target_is_in_an_ordinary_pair():
    assert {x for x, _ in ORDINARY} >= set(INPUTS)
    assert {y for _, y in ORDINARY} >= set(TARGETS)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(x, marks=[] if x in ORDINARY else pytest.mark.long) for x in PAIRS
    ],
    ids=["-".join(x) for x in PAIRS],
)
def pair(request):
    """(task with what it has learned, a decoded batch, a network)."""
    columns, names = examples_of(*request.param, SIZE)
    source = ArraySource(columns, class_names=names)
    task = task_of(source.info, *request.param)
    task = task.with_metadata(task.learn(Examples(columns)))
    # As a later process makes it, from the file in the run directory.
    metadata = json.loads(json.dumps(dict(task.metadata)))
    task = registry.call("tasks", "supervised", {}, metadata)
    decoded = [task.decode(example) for example in source.examples("train")]
    batch = {key: tf.stack([example[key] for example in decoded]) for key in decoded[0]}
    batch |= {"weight": tf.ones([SIZE]), "epoch": tf.zeros([SIZE], tf.int64)}
    symbolic = task.input.inputs()
    model = keras.Model(symbolic, task.head(model_of(symbolic, task), symbolic))
    return task, batch, model


def test_from_a_batch_to_losses_metrics_and_answers(pair):
    task, batch, model = pair
    metric_name, direction = task.target.selection_metric
    assert direction in (-1, 1)
    assert all(value.dtype != tf.string for value in batch.values())
    prepared = task.input.prepare(batch)
    inputs, y, weight = task.step_inputs(prepared, tf.range(SIZE, dtype=tf.int64))
    np.testing.assert_array_equal(weight, np.ones(SIZE))
    outputs = model(inputs, training=False)
    assert (
        task.target.output is None
        or tuple(outputs.shape[1:]) == task.target.output.shape
    )
    losses = task.target.loss()(y, outputs)
    assert losses.shape == (SIZE,) and losses.dtype == tf.float32
    alone = task.target.loss()(y[:1], outputs[:1])
    np.testing.assert_allclose(alone, losses[:1], rtol=1e-5)
    for metric in task.target.metrics():
        metric.update_state(y, outputs, sample_weight=weight)
        assert np.isfinite(metric.result())
    predictions = {**task.target.predict(outputs, prepared), "loss": losses}
    assert all(len(value) == SIZE for value in predictions.values())
    whole = evaluation_of(task.target).evaluator()
    whole.update(outputs, predictions, batch)
    metrics = whole.result()
    json.dumps(metrics)
    assert metric_name in metrics and metrics["examples"] == SIZE
    pieces = evaluation_of(task.target).evaluator()
    for rows in (slice(0, 7), slice(7, None)):
        pieces.update(*(part(values, rows) for values in (outputs, predictions, batch)))
    flat = keras.tree.flatten(metrics)
    for one, other in zip(flat, keras.tree.flatten(pieces.result()), strict=True):
        assert one == other or one == pytest.approx(other)
    table = evaluation_of(task.target).table(predictions, batch)
    assert all(len(column) == SIZE for column in table.values())
    readable = evaluation_of(task.target).readable(table)
    assert all(len(column.tolist()) == SIZE for column in readable.values())
    assert all(
        isinstance(line, str)
        for line in report_of(task.target).summary(metrics, "test")
    )
    assert all(isinstance(sentence, str) for sentence in task.limitations())
    for figure in report_of(task.target).pictures(metrics, table).values():
        figure.canvas.draw()


def test_a_subclass_of_a_user_would_be_accepted(pair):
    """`try_out` refuses nothing that a target of the package returns."""
    task, batch, model = pair
    evaluate.require_evaluation(model, task, batch)


def part(values, rows):
    return tf.nest.map_structure(lambda value: value[rows], values)


def test_an_example_is_drawn_with_its_answer(pair):
    from matplotlib.figure import Figure

    task, batch, model = pair
    inputs, _, _ = task.step_inputs(batch, batch["id"])
    predictions = task.target.predict(model(inputs), batch)
    figure = Figure()
    example = {name: value[0].numpy() for name, value in batch.items()}
    prediction = {name: value[0].numpy() for name, value in predictions.items()}
    axes = figure.subplots()
    input_report.report_of(task.input).draw(axes, example)
    report_of(task.target).draw(axes, example, prediction)
    figure.canvas.draw()
    assert axes.has_data() or axes.texts or axes.get_title()


def test_signatures_take_their_requests_and_refuse_others(pair):
    task, batch, model = pair
    columns = {name: value.numpy() for name, value in batch.items()}
    requests = savedmodel.make_requests(task, columns)
    assert next(iter(requests)) == "serving_default"
    inputs, _, _ = task.step_inputs(batch, batch["id"])
    expected = task.target.predict(model(inputs, training=False), batch)
    for serving_input in task.input.signatures():
        function = savedmodel.serving_function(task, model, serving_input)
        specs = list(serving_input.specs.values())
        traced = tf.function(function, input_signature=specs, autograph=False)
        request = requests[serving_input.name]
        arguments = [tf.constant(request[name]) for name in serving_input.specs]
        predictions = traced(*arguments)
        assert set(expected) <= set(predictions)
        if serving_input.name == "serving_default":
            for name, values in expected.items():
                if values.dtype.is_floating:
                    np.testing.assert_allclose(predictions[name], values, atol=1e-5)
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
            traced(*(argument[:0] for argument in arguments))


def test_an_export_is_measured_as_the_network(pair):
    """Without the loss if its predictions do not tell the outputs of the network."""
    task, batch, model = pair
    inputs, y, _ = task.step_inputs(batch, batch["id"])
    outputs = model(inputs, training=False)
    loss = task.target.loss()(y, outputs)
    default = task.input.signatures()[0]
    request = default.request({name: value.numpy() for name, value in batch.items()})
    served = task.serve(model, default.read(*map(tf.constant, request.values())))
    served = task.target.served_predictions(served, batch)
    told = task.target.outputs_of(served)
    found = tf.fill([SIZE], np.nan) if told is None else task.target.loss()(y, told)
    whole, exported = (
        evaluation_of(task.target).evaluator(),
        evaluation_of(task.target).evaluator(),
    )
    whole.update(outputs, {**task.target.predict(outputs, batch), "loss": loss}, batch)
    exported.update(told, {**served, "loss": found}, batch)
    expected, metrics = whole.result(), exported.result()
    assert told is None or np.isfinite(found).all()
    left_out = {"loss", "too_long"} if told is None else set()
    if np.max(loss) > 15:  # probabilities of 0 and 1 do not tell it exactly
        left_out |= {"loss"}
    assert expected.keys() - metrics.keys() <= left_out
    for name in metrics.keys() - left_out:
        pairs = zip(
            *map(keras.tree.flatten, (metrics[name], expected[name])), strict=True
        )
        for one, other in pairs:
            assert one == other or one == pytest.approx(other, abs=1e-4)


def test_the_keras_model_takes_raw_inputs(pair):
    task, batch, model = pair
    plain = task.standalone(model)
    columns = {name: value.numpy() for name, value in batch.items()}
    names = [tensor.name for tensor in plain.inputs]
    values = {name: columns[name] for name in names}
    predictions = plain(values if len(names) > 1 else values[names[0]])
    assert len(predictions) == SIZE and np.isfinite(predictions).all()


@pytest.mark.parametrize("name", INPUTS + TARGETS)
def test_a_missing_field_is_one_line(name):
    kind = "inputs" if name in INPUTS else "targets"
    source = ArraySource({"x": np.zeros((3, 2), np.float32)}, class_names=("a", "b"))
    with pytest.raises(UsageError, match="no field 'nothing'") as caught:
        registry.call(kind, name, {"field": "nothing"}, source.info)
    assert "\n" not in str(caught.value)
