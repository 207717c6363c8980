"""The losses and metrics of the task `keras_model` in a file, for a later process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipeline.config.config import TrainConfig
from pipeline.config.own_outputs import OutputLosses, OutputMetric
from pipeline.training.own_keras import by_output
from pipeline.training.train_step import SteppedModel
from pipeline.utils import files, safe_io
from pipeline.utils.errors import UsageError


def write(path: Path, options: TrainConfig, outputs: tuple[str, ...]) -> None:
    """Writes the losses and metrics of these outputs as Keras serializes them.

    Raises TypeError or ValueError for one that Keras cannot serialize.
    """
    losses = getattr(options.loss, "value", options.loss)
    if not isinstance(losses, OutputLosses):
        losses = OutputLosses({outputs[0]: losses}, {})
    serialize = keras.saving.serialize_keras_object
    metrics = []
    for word in options.metrics:
        metric = getattr(word, "value", None) or OutputMetric(outputs[0], word)
        metrics.append(
            {
                "output": metric.output,
                "metric": serialize(metric.metric),
                "name": metric.name,
                "prefix": metric.prefix,
            }
        )
    values = {
        "losses": {name: serialize(loss) for name, loss in losses.losses.items()},
        "weights": dict(losses.weights),
        "metrics": metrics,
    }
    files.write_json(path, values)


def read(
    path: Path, model: SteppedModel
) -> tuple[Callable[[Any, Any], tf.Tensor] | None, list[keras.metrics.Metric]]:
    """The loss and the metrics of a network whose outputs have names.

    None and no metrics if the file is missing, or names a function or class that Keras
    cannot find, such as one of a notebook.
    """
    create = keras.saving.deserialize_keras_object
    try:
        values = safe_io.read_json(path)
        parts = {name: create(part) for name, part in values["losses"].items()}
        losses = OutputLosses(parts, values["weights"])
        metrics = []
        for row in values["metrics"]:
            metric = OutputMetric(**{**row, "metric": create(row["metric"])})
            metrics.append(by_output.metric(metric, model.output[metric.output]))
    except (OSError, LookupError, TypeError, ValueError, UsageError):
        return None, []
    return by_output.loss(losses, tuple(parts)), metrics
