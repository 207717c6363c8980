"""Importance by permutation: only the column that the network reads has any."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from report_text import FAILED, text_of

from pipeline.config import registry
from pipeline.data.example_store import MemoryStore
from pipeline.data.splits import Split
from pipeline.evaluation import importance
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.report import page
from pipeline.report.evaluation import Evaluation
from pipeline.report.subject import Subject
from pipeline.training.train_step import SteppedModel

COUNT = 400
COLUMNS = [
    {"name": "age", "kind": "number", "mean": 1.5, "deviation": 2.0},
    {"name": "<fare>", "kind": "number", "has_gaps": True, "missing": 0.25},
    {"name": "color", "kind": "category", "vocabulary": ["red", "blue"]},
    {"name": "sold", "kind": "date", "order": "ymd"},
    {"name": "remark", "kind": "text"},
]
# The features are: age, fare, whether it is missing, three codes of the color, the date.
SCORES = {
    "age": lambda features, words: features[:, 0],
    "<fare>": lambda features, words: features[:, 2] - 0.5,
    "color": lambda features, words: features[:, 4] - 0.5,
    "sold": lambda features, words: features[:, 6],
    "remark": lambda features, words: ops.cast(words[:, 0, 0] % 2, "float32") - 0.5,
}


def task_of(target="classes", **metadata):
    metadata = {"input": "table", "target": target, "columns": COLUMNS, **metadata}
    return registry.load("tasks", "supervised")(metadata)


def rows():
    """Random decoded rows, one column independent of the other."""
    random = np.random.default_rng(0)
    numbers = random.normal(size=(COUNT, 2)) * 2
    numbers[random.random(COUNT) < 0.5, 1] = np.nan
    strings = np.empty((COUNT, 3), object)
    strings[:, 0] = random.choice([b"red", b"blue"], COUNT)
    strings[:, 1] = [
        f"{year}-03-01".encode() for year in random.integers(1980, 2020, COUNT)
    ]
    strings[:, 2] = [
        f"word{word} <b>".encode() for word in random.integers(0, 50, COUNT)
    ]
    raw = {"numbers": tf.constant(numbers), "strings": tf.constant(strings)}
    fields, _ = task_of(class_names=["no", "yes"]).input.decode(raw)
    examples = {name: value.numpy() for name, value in fields.items()}
    return {"id": np.arange(COUNT), **examples}


def network_of(task, score):
    """A network whose second logit is a score, and the first is 0."""
    inputs = task.input.inputs()
    value = score(inputs["features"], inputs["words"])
    outputs = ops.stack([0 * value, value], axis=1)
    return SteppedModel(inputs, outputs)


def labelled(task, network, examples):
    """The rows as a split, labelled as the network answers."""
    batch = task.input.prepare({name: tf.constant(v) for name, v in examples.items()})
    outputs = network(task.input.network_inputs(batch)).numpy()
    columns = {**examples, "label": outputs.argmax(axis=1).astype(np.int64)}
    return Split(MemoryStore(columns), np.arange(COUNT))


@pytest.mark.parametrize("name", SCORES)
def test_only_the_column_that_decides_is_important(name):
    task = task_of(class_names=["no", "yes"])
    network = network_of(task, SCORES[name])
    split = labelled(task, network, rows())
    result = importance.measure(network, task, split)
    first, *others = result.columns
    assert (result.metric, result.intact, result.examples) == ("accuracy", 1.0, COUNT)
    assert first.name == name and 0.35 < first.mean < 0.65
    assert 0 < first.deviation < 0.1
    assert len(others) == 4 and {other.mean for other in others} == {0.0}


def test_it_is_measured_again_the_same_and_not_if_it_takes_too_long():
    task = task_of(class_names=["no", "yes"])
    network = network_of(task, SCORES["age"])
    split = labelled(task, network, rows())
    first = importance.measure(network, task, split)
    assert importance.measure(network, task, split) == first
    assert importance.measure(network, task, split, max_seconds=0) is None


def test_numbers_lose_their_r2():
    task = task_of("number", target_shape=[])
    inputs = task.input.inputs()
    age = inputs["features"][:, :1]
    network = SteppedModel(inputs, age)
    examples = rows()
    target = examples["numbers"][:, 0] + np.float32(0.01)
    split = Split(MemoryStore({**examples, "target": target}), np.arange(COUNT))
    result = importance.measure(network, task, split)
    assert result.metric == "r2" and result.intact > 0.99
    assert result.columns[0].name == "age" and 1.5 < result.columns[0].mean < 2.5


def test_other_inputs_have_no_columns():
    metadata = {"class_names": ["a", "b"], "image_shape": [8, 8, 1]}
    task = registry.load("tasks", "image_classification")(metadata)
    assert importance.measure(None, task, None) is None


def evaluation_of_columns(network, task, split):
    outputs = tf.one_hot(split.column("label"), 2) * 4
    predictions = task.target.predict(outputs, {})
    batch = {"label": tf.constant(split.column("label"))}
    predictions = {**predictions, "loss": tf.zeros(COUNT)}
    evaluator = evaluation_of(task.target).evaluator()
    evaluator.update(outputs, predictions, batch)
    table = {
        "id": split.column("id"),
        **evaluation_of(task.target).table(predictions, batch),
    }

    def predict(examples):
        return {
            name: value.numpy()[examples["id"]] for name, value in predictions.items()
        }

    return Evaluation(
        "test",
        task,
        evaluator.result(),
        table,
        split,
        lambda id: f"line {id}",
        predict,
        network=network,
    )


def test_the_summary_and_the_report_show_the_columns(monkeypatch):
    monkeypatch.setattr("pipeline.evaluation.predictions._MAX_SECONDS", float("inf"))
    task = task_of(class_names=["no", "yes"])
    network = network_of(task, SCORES["<fare>"])
    evaluation = evaluation_of_columns(network, task, labelled(task, network, rows()))
    (line,) = [x for x in evaluation.text.splitlines() if x.startswith("importance ")]
    assert line.startswith("importance <fare> 0.") and ", age 0.000" in line
    content = page.render(Subject(evaluation))
    text = text_of(content)
    assert FAILED not in text
    assert "importance ± missing learned <fare> number 0." in text
    assert " 25.0% mean 0, deviation 1 age number 0.000 0.000 0.0% mean 1.5" in text
    assert "2 words, 0.0% unknown" in text
    assert "<fare>" not in content and "<b>" not in content


def test_an_evaluation_without_its_network_shows_what_was_learned():
    task = task_of(class_names=["no", "yes"])
    network = network_of(task, SCORES["age"])
    split = labelled(task, network, rows())
    evaluation = evaluation_of_columns(None, task, split)
    assert evaluation.importances is None and "importance" not in evaluation.text
    assert "column kind missing learned age number" in text_of(
        page.render(Subject(evaluation))
    )
