"""Runs a model on all examples of a split, and computes metrics and calibration."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Batches, Example, Metadata, Task
from pipeline.data.splits import Split
from pipeline.training.distributed import name_undecodable_examples
from pipeline.training.own_keras.metric import unique_name
from pipeline.training.train_step import SteppedModel, forward
from pipeline.utils.tf_data import with_options

Forward = Callable[[Task, Any, Example], tuple[Any, Any, tf.Tensor]]
"""(task, model, decoded batch) -> (y, outputs, weight), as `train_step.forward`."""


def answers(
    model: SteppedModel, task: Task, batches: Batches, forward: Forward = forward
) -> dict[str, np.ndarray]:
    """Computes the answers to all examples, in the order of the split.

    Returns the columns of `Task.answer`, and `loss`, float32 (examples,); `truth` (from
    `Task.truth`); `id`, int64 (examples,); and the network's `outputs`, (examples,
    ...), if they are a single tensor.
    """
    dataset = batches.dataset(0)
    specs = dataset.element_spec
    answer = _answer_function(model, task, batches, forward, specs)
    with name_undecodable_examples(batches, 0, batches.last_step):
        parts = [answer(batch) for batch in with_options(dataset)]
    columns = {
        name: np.concatenate([part[name].numpy() for part in parts])
        for name in parts[0]
    }
    is_example = columns.pop("weight") > 0  # not padding
    return {name: column[is_example] for name, column in columns.items()}


def _answer_function(
    model: SteppedModel,
    task: Task,
    batches: Batches,
    forward: Forward,
    specs: dict[str, tf.TensorSpec],
) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Traces the network once for all splits with equal batches, as this is slow."""
    any_size = {
        name: tf.TensorSpec((None, *spec.shape[1:]), spec.dtype)
        for name, spec in specs.items()
    }
    key = ("answers", task, batches.device_cache, *any_size.items())
    # Inference copies have no step.
    compiled = model.step.compiled if model.step else {}
    if key in compiled:
        return compiled[key]
    loss = model.step.loss if model.step else task.loss()

    def answer(batch: Any) -> dict[str, tf.Tensor]:
        batch = batches.gather(batch)
        y, outputs, weight = forward(task, model, batch)
        columns = task.answer(outputs, batch)
        if isinstance(outputs, tf.Tensor):
            columns = {**columns, "outputs": outputs}
        return {
            **columns,
            "loss": loss(y, outputs),
            "truth": task.truth(y),
            "id": batch["id"],
            "weight": weight,
        }

    compiled[key] = tf.function(answer).get_concrete_function(any_size)
    return compiled[key]


def evaluate(model: SteppedModel, task: Task, batches: Batches) -> dict[str, Any]:
    """Computes the metrics of a split as plain JSON values."""
    return compute_metrics(model, task, answers(model, task, batches))


def compute_metrics(
    model: SteppedModel, task: Task, columns: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Computes the metrics of the task and of `train.metrics` as plain JSON values."""
    metrics = task.evaluate(columns)
    for metric in model.step.added_metrics if model.step else ():
        # A copy, because the original belongs to a strategy.
        fresh = type(metric).from_config(metric.get_config())
        fresh.update_state(task.y(columns["truth"]), columns["outputs"])
        metrics[unique_name(metric.name, metrics)] = np.asarray(fresh.result()).tolist()
    return metrics


def calibration(model: SteppedModel, task: Task, held_out: Batches) -> Metadata:
    """Calibrates the task on examples that the model was not trained on."""
    columns = answers(model, task, held_out)
    if "outputs" not in columns:
        return {}
    return task.calibrate(columns["outputs"], columns["truth"])


class _Fields(dict):
    """A batch of all examples of a split, which reads a field at its first use."""

    def __init__(self, examples: Split) -> None:
        super().__init__(
            weight=tf.ones(len(examples)), epoch=tf.zeros(len(examples), tf.int64)
        )
        self._examples = examples

    def __missing__(self, name: str) -> tf.Tensor:
        if name not in self._examples.store.specs:
            raise KeyError(name)
        return tf.constant(self._examples.column(name))


def update_answers(
    task: Task, columns: dict[str, np.ndarray], examples: Split
) -> dict[str, np.ndarray]:
    """Replaces the answers in the columns by the answers of a calibrated task."""
    if "outputs" not in columns:
        return columns
    answer = task.answer(tf.constant(columns["outputs"]), _Fields(examples))
    return {**columns, **{name: np.asarray(values) for name, values in answer.items()}}


def apply_calibration(task: Task, calibration: Metadata) -> Task:
    """Returns the task with calibrated answers, from the result of `calibration`."""
    return type(task)({**task.metadata, **calibration}) if calibration else task
