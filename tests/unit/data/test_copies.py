"""Copies are noted when decoded examples are loaded, whatever they are."""

import numpy as np

from pipeline.config import objects
from pipeline.config.sections import SourceConfig
from pipeline.data import dataset
from pipeline.data.array_source import ArraySource
from pipeline.recipes import tabular

COUNT = 30


def notes(columns, **options):
    """The notes on these training examples and, as a test split, the last three."""
    held_out = {name: values[-3:] for name, values in columns.items()}
    train = {name: values[:-3] for name, values in columns.items()}

    def source():
        return ArraySource(train, {"test": held_out}, **options)

    name = objects.name_of(source, "sources")
    config = tabular.data(SourceConfig(name=name)).changed(
        data={"validation": 0}, train={"patience": None}
    )
    loaded = dataset.load(config)
    decisions = loaded.decisions
    assert decisions[0].name == "task"
    lines = [str(decision) for decision in decisions if decision.name == "note"]
    return loaded, decisions[0], lines


def numbers(*shape):
    return np.random.default_rng(0).normal(size=(COUNT, *shape)).astype(np.float32)


def test_copies_of_series_with_numbers_to_predict():
    series, target = numbers(20, 2), numbers()
    series[6] = series[4]
    series[28] = series[5]
    loaded, task, lines = notes({"features": series, "target": target})
    assert str(task) == "number from features (from the fields features and target)"
    remedy = "(--clean.enabled --clean.drop-leakage excludes them)"
    assert lines == [
        f"duplicates: 2 examples, such as example 4 of /train and example 6 of /train"
        f" {remedy}",
        f"exact copies of examples in another split: 1 in test {remedy}",
    ]
    # The test is measured without the copy, and with it.
    assert loaded.splits["test"].column("features").tolist() == [
        *series[[27, 29]].tolist()
    ]
    raw = loaded.splits["test"].raw(np.arange(2))
    assert raw["target"].tolist() == target[[27, 29]].tolist()
    assert len(loaded.whole_test) == 3


def test_copies_of_series_in_two_classes():
    series = numbers(20, 2)
    series[6] = series[4]
    series[8] = series[3]
    labels = np.arange(COUNT) % 2
    labels[8] = 0
    columns = {"features": series, "label": labels}
    loaded, _, (line,) = notes(columns, class_names=("a", "b"))
    assert line.startswith(
        "duplicates: 2 examples, 1 of them in two classes, such as example 3 of"
    )
    assert loaded.whole_test is None


def test_several_inputs_are_copies_only_together():
    left, right = numbers(20, 2), numbers(3)
    left[6], right[6] = left[4], right[4]
    left[8] = left[3]
    columns = {"a/features": left, "b/features": right, "target": numbers()}
    _, task, (line,) = notes(columns)
    assert task.value == "number from a (features) and b (features)"
    assert line.startswith("duplicates: 1 example, such as example 4 of /train")


def test_short_features_are_not_compared():
    features = numbers(3)
    features[6] = features[4]
    assert notes({"features": features, "target": numbers()})[2] == []
