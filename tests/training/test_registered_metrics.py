"""The metrics of the registry, against NumPy, and on their way through a run."""

import json

import numpy as np
import pytest
from small import TASK
from update_rules import prepared

from pipeline.config import registry
from pipeline.fit import fit
from pipeline.utils.errors import UsageError

NAMES = ("top_3_accuracy", "macro_recall")
METRICS = {"top_k_accuracy": {"k": 3}, "macro_recall": {}}


def digits(generator, count=100, classes=10):
    """(labels, logits) of which class 9 has no example."""
    labels = generator.integers(0, classes - 1, count)
    return labels, generator.normal(size=(count, classes)).astype(np.float32)


def top_k(labels, logits, k):
    best = np.argsort(-logits, axis=1)[:, :k]
    return (best == labels[:, None]).any(axis=1).mean()


def macro_recall(labels, logits):
    right = logits.argmax(axis=1) == labels
    return np.mean([right[labels == label].mean() for label in np.unique(labels)])


@pytest.mark.parametrize("is_mixed", [False, True])
def test_metrics_are_those_of_numpy_and_padding_counts_in_none(is_mixed):
    metadata = {"class_names": [str(n) for n in range(10)]}
    labels, logits = digits(np.random.default_rng(5))
    weight = np.ones(100, np.float32)
    weight[80:] = 0  # padding
    y = 0.7 * np.eye(10)[labels] + 0.3 * np.eye(10)[(labels + 1) % 10] if is_mixed else labels
    kept = labels[:80], logits[:80]
    wanted = {"top_3_accuracy": top_k(*kept, 3), "macro_recall": macro_recall(*kept)}
    for name, options in METRICS.items():
        metric = registry.load("metrics", name)(metadata, **options)
        for part in (slice(64), slice(64, None)):
            metric.update_state(y[part], logits[part], sample_weight=weight[part])
        assert float(metric.result()) == pytest.approx(wanted[metric.name], rel=1e-5)
        again = type(metric).from_config(metric.get_config())
        again.update_state(y[:80], logits[:80])
        assert again.name == metric.name
        assert float(again.result()) == pytest.approx(wanted[metric.name], rel=1e-5)
        metric.reset_state()
        assert float(metric.result()) == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two epochs of digits with both metrics."""
    folder = tmp_path_factory.mktemp("metrics")
    return fit(
        "digits",
        run_directory=folder / "run",
        data={"limit": 300},
        model={"name": "tiny"},
        train={"epochs": 2, "metrics": METRICS},
        export={"enabled": False},
        log={"progress": False},
    )


def test_they_are_in_the_log_of_each_epoch(run):
    lines = [json.loads(line) for line in (run.directory / "log.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    for name in (*NAMES, *(f"val_{name}" for name in NAMES)):
        values = [line[name] for line in lines]
        assert run.history[name] == pytest.approx(values)
        assert all(0 < value <= 1 for value in values)
    assert lines[-1]["top_3_accuracy"] > lines[-1]["accuracy"]


def test_those_of_validation_and_test_are_numpys(run):
    """The history was padded and in batches; the result comes from all answers at once."""
    for split in ("validation", "test"):
        part = run.splits[split]
        columns = part.take(np.arange(len(part)))
        logits = run.model(run.task.prepare({"image": columns["image"]})["image"], training=False)
        answers = columns["label"], logits.numpy()
        found = json.loads((run.directory / "result.json").read_text())[split]
        wanted = {"top_3_accuracy": top_k(*answers, 3), "macro_recall": macro_recall(*answers)}
        for name, value in wanted.items():
            assert found[name] == pytest.approx(value, rel=1e-5)
            if split == "validation":
                assert run.history[f"val_{name}"][-1] == pytest.approx(value, rel=1e-5)
            else:
                assert run.test[name] == found[name]


@pytest.mark.parametrize("name", ["top_k_accuracy", "macro_recall"])
def test_a_metric_of_classes_is_refused_where_there_are_none(name):
    with pytest.raises(UsageError, match=f"--train.metrics: {name} is for classification only"):
        registry.load("metrics", name)({"feature_names": ["x"]})


def test_k_is_below_the_number_of_classes():
    with pytest.raises(UsageError, match="top_k_accuracy k=3 is always 1 with 3 classes"):
        registry.load("metrics", "top_k_accuracy")(TASK.metadata, k=3)


def test_what_is_no_metric_is_refused(tmp_path, monkeypatch):
    (tmp_path / "own_metrics.py").write_text("def nothing(metadata):\n    return 'accuracy'\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="own_metrics.nothing returns 'accuracy', not a Keras"):
        prepared(metrics={"own_metrics.nothing": {}})
