"""A user's losses and metrics in a file, for a later process."""

from pathlib import Path
from typing import Any

import keras

from pipeline.config.config import TrainConfig
from pipeline.contracts import Task
from pipeline.training import user_metrics, user_model
from pipeline.training.train_step import SteppedModel
from pipeline.training.user_loss import OutputLosses, UserLoss, of_outputs
from pipeline.training.user_metrics import OutputMetric
from pipeline.utils import files, safe_io
from pipeline.utils.errors import UsageError


def write(
    path: Path, options: TrainConfig, task: Task, from_logits: bool | None
) -> None:
    """Writes losses and metrics as Keras serializes them.

    `from_logits` says what the loss takes. Raises TypeError or ValueError for a loss or
    metric that Keras cannot serialize.
    """
    output = task.user_outputs[0]
    losses = getattr(options.loss, "value", options.loss)
    if losses is None:
        losses = OutputLosses({}, {})
    elif not isinstance(losses, OutputLosses):
        losses = OutputLosses({output: losses}, {})
    serialize = keras.saving.serialize_keras_object
    metrics = []
    for word in options.metrics:
        metric = getattr(word, "value", None) or word
        if not isinstance(metric, OutputMetric):
            metric = OutputMetric(output, metric)
        values = {"output": metric.output, "name": metric.name, "prefix": metric.prefix}
        metrics.append({**values, "metric": serialize(metric.metric)})
    content = {
        "losses": {name: serialize(loss) for name, loss in losses.losses.items()},
        "weights": dict(losses.weights),
        "metrics": metrics,
        "from_logits": from_logits,
    }
    files.write_json(path, content)


def from_logits(path: Path) -> bool | None:
    """Whether the loss takes logits; None if unknown, or if the file is missing."""
    try:
        return safe_io.read_json(path)["from_logits"]
    except (OSError, LookupError, TypeError, ValueError):
        return None


def restore(path: Path, model: SteppedModel) -> SteppedModel:
    """A network of a user with the stored loss and metrics.

    It is the same if the file is missing, or names a function or class unknown to
    Keras, such as one of a notebook.
    """
    task = model.task
    create = keras.saving.deserialize_keras_object
    try:
        values = safe_io.read_json(path)
        losses = {name: create(part) for name, part in values["losses"].items()}
        metrics = []
        for row in values["metrics"]:
            metric = OutputMetric(**{**row, "metric": create(row["metric"])})
            shape = tuple(model.output[metric.output].shape[1:])
            metrics.append(user_metrics.of_output(metric, task, shape))
        return model.with_losses(_loss(losses, values["weights"], task), metrics)
    except (OSError, LookupError, TypeError, ValueError, UsageError):
        return model


def _loss(losses: dict[str, Any], weights: dict[str, float], task: Task) -> Any:
    if task.user_outputs != (user_model.USER,):
        return of_outputs(OutputLosses(losses, weights), task)
    if not losses:
        return task.of_target(task.target.loss())
    return UserLoss(losses[user_model.USER]).of(task, user_model.USER)
