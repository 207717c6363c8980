"""What a target of a user returns is checked on a few examples before training."""

import numpy as np
import pytest
import tensorflow as tf
from ordinal_target import Ordinal
from toy_problem import TASK, machine, random_split, settings_of

from pipeline.contracts import Task
from pipeline.data import batching
from pipeline.evaluation import evaluate
from pipeline.evaluation.target_evaluation import (
    KerasEvaluator,
    TargetEvaluation,
    evaluation_of,
)
from pipeline.report.target_report import TargetReport, report_of
from pipeline.training.model_builder import build
from pipeline.utils.errors import UsageError

METADATA = {**TASK.metadata, "levels": ["a", "b", "c"], "target_field": "label"}


class Tried(Ordinal):
    def y(self, batch):
        return super().y({"level": batch["label"]})


class NoTensors(Tried):
    def predict(self, outputs, batch):
        return outputs


class Column(Tried):
    def loss(self):
        return lambda y, outputs: tf.reduce_mean((y - outputs) ** 2, 1, keepdims=True)


class Uncounted(KerasEvaluator):
    def result(self):
        return {"loss": 1.0}


class Uncounting(TargetEvaluation):
    def evaluator(self, model=None):
        return Uncounted(self.target)


class Whole(TargetEvaluation):
    def table(self, predictions, batch):
        return {"logits": predictions["logits"].numpy()}


class Certain(TargetEvaluation):
    def table(self, predictions, batch):
        return {"correct": np.ones(len(batch["id"]), bool)}


class Evaluating(Tried):
    def evaluator(self, model=None):
        return KerasEvaluator(self)


class Selecting(Tried):
    selection_metric = ("rank", -1)


class Twice(Tried):
    def metrics(self):
        return [*super().metrics(), *super().metrics()]


def with_evaluation(kind):
    return type("Named", (Tried,), {"evaluation": kind})


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (NoTensors, "NoTensors.predict must return a dictionary of tensors"),
        (Column, r"one number for each example, of shape \(batch,\); got \(8, 1\)"),
        (with_evaluation(Uncounting), "Uncounted.result lacks 'examples'"),
        (Evaluating, "Evaluating.evaluator is not called: .* evaluation = THAT_CLASS"),
        (
            Selecting,
            "KerasEvaluator.result lacks 'rank', the selection_metric",
        ),
        (Twice, "Twice.metrics: distance is taken"),
        (
            with_evaluation(TargetEvaluation(None)),
            "Named.evaluation must be a subclass",
        ),
        (with_evaluation(Whole), r"Whole.table: the column 'logits' .* got \(8, 2\)"),
        (with_evaluation(Certain), "the column 'correct', but not 'probability'"),
        (with_evaluation(TargetReport), "Named.evaluation must be a subclass of"),
    ],
)
def test_mistakes_of_a_target_are_found_before_training(target, message):
    task = Task(METADATA, TASK.input, target(METADATA))
    settings = settings_of()
    batches = batching.training(random_split(), settings.train, seed=0)
    with pytest.raises(UsageError, match=message):
        model = build(task, settings, machine(), batches)
        evaluate.try_out(model, task, batches)


def test_a_target_without_its_own_is_measured_by_its_metrics():
    target = Tried(METADATA)
    assert type(report_of(target)).__name__ == "OrdinalReport"
    evaluator = evaluation_of(target).evaluator()
    batch = {"label": tf.constant([0, 1, 2], tf.int64)}
    outputs = tf.constant([[-1.0, -1], [1, -1], [-1, -1]])
    for rows in (slice(0, 1), slice(1, 3)):
        part = {"label": batch["label"][rows]}
        losses = {"loss": tf.constant([0.0, 1.0, 5.0])[rows]}
        evaluator.update(outputs[rows], losses, part)
    assert evaluator.result() == {
        "examples": 3,
        "loss": 2.0,
        "distance": pytest.approx(2 / 3),
    }
