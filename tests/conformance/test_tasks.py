"""Every task: from examples of its kind to targets, losses, answers, metrics and
signatures.
"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from siblings import options_of

from pipeline.config import registry
from pipeline.contracts import Task
from pipeline.data import splits
from pipeline.utils.errors import UsageError

TASKS = registry.names("tasks")
SOURCES = ("digits", "diabetes")


@pytest.fixture(scope="module")
def problem():
    """Task -> (source, task) for the first data set of scikit-learn that suits it."""

    def found(name):
        for dataset in SOURCES:
            source = registry.call("sources", "scikit_learn", {"dataset": dataset})
            try:
                task = registry.call(
                    "tasks", name, options_of("tasks", name), source.info
                )
            except UsageError:
                continue
            return source, task
        raise AssertionError(f"no data set of scikit-learn suits {name}")

    return found


@pytest.fixture(params=TASKS)
def ready(request, problem):
    """(task with what it has learned, a decoded batch of 8)."""
    source, task = problem(request.param)
    metadata = {**task.metadata, **task.learn(splits.included(source)["train"])}
    # As a later process makes it, from the file in the run directory.
    again = registry.call("tasks", request.param, {}, json.loads(json.dumps(metadata)))
    decoded = [again.decode(example) for example in source.examples("train").take(8)]
    batch = {key: tf.stack([example[key] for example in decoded]) for key in decoded[0]}
    return again, {**batch, "weight": tf.ones([8]), "epoch": tf.zeros([8], tf.int64)}


@pytest.mark.parametrize("name", TASKS)
def test_a_source_of_another_kind_is_refused_in_one_line(name):
    refusals = []
    for dataset in SOURCES:
        info = registry.call("sources", "scikit_learn", {"dataset": dataset}).info
        try:
            registry.call("tasks", name, options_of("tasks", name), info)
        except UsageError as error:
            refusals.append(str(error))
    assert len(refusals) == len(SOURCES) - 1 and all(
        "\n" not in text for text in refusals
    )


def test_from_a_batch_to_losses_metrics_and_answers(ready):
    task, batch = ready
    metric_name, direction = task.selection_metric
    assert isinstance(task, Task) and direction in (-1, 1)
    symbolic = task.inputs()
    features = keras.layers.Flatten()(symbolic)
    model = keras.Model(symbolic, task.head(features, symbolic))
    prepared = task.prepare(batch)
    inputs, y, weight = task.target(prepared, tf.range(8, dtype=tf.int64))
    np.testing.assert_array_equal(weight, np.ones(8))
    outputs = model(inputs, training=False)
    losses = task.loss()(y, outputs)
    assert losses.shape == (8,) and losses.dtype == tf.float32
    assert np.isfinite(losses).all()
    for metric in task.metrics():
        metric.update_state(y, outputs, sample_weight=weight)
        assert np.isfinite(metric.result())
    answer = task.answer(outputs, prepared)
    assert answer and all(value.shape[0] == 8 for value in answer.values())
    truth = task.truth(y)
    np.testing.assert_array_equal(task.y(truth), y)
    more = {"truth": truth.numpy(), "loss": losses.numpy(), "outputs": outputs.numpy()}
    found = task.evaluate({**{k: v.numpy() for k, v in answer.items()}, **more})
    json.dumps(found)
    assert metric_name in {"loss", *found}
    assert all(isinstance(sentence, str) for sentence in task.limitations())


def test_signatures_take_the_requests(ready):
    task, batch = ready
    symbolic = task.inputs()
    model = keras.Model(symbolic, task.head(keras.layers.Flatten()(symbolic), symbolic))
    signatures = task.serve(model)
    requests = task.requests({key: value.numpy() for key, value in batch.items()})
    assert "serving_default" in signatures and set(requests) == set(signatures)
    for name, (function, specs) in signatures.items():
        traced = tf.function(function, input_signature=specs, autograph=False)
        arguments = {key: tf.constant(value) for key, value in requests[name].items()}
        answers = traced(*(arguments[spec.name] for spec in specs))
        assert all(value.shape[0] == 8 for value in answers.values()), name
