"""Running metrics in the middle of an epoch, taken out and put back, replica by replica."""

import base64
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def serialize(metrics: Sequence[keras.metrics.Metric]) -> list[list[str]]:
    """For each variable of the metrics its bytes on each replica of this process, in base64.

    Several workers add theirs up, and the first replica has it all. Plain JSON.
    """
    return [[_text(part) for part in _parts(variable)] for variable in _variables(metrics)]


def restore(metrics: Sequence[keras.metrics.Metric], texts: Sequence[Sequence[str]]) -> None:
    """Puts what `serialize` returned back into the same metrics.

    Under another number of replicas the first one gets the sum: what all together then say is the
    same up to rounding.
    """
    strategy = tf.distribute.get_strategy()
    for variable, each in zip(_variables(metrics), texts, strict=True):
        dtype, shape = np.dtype(variable.dtype), tuple(variable.shape)
        values = [np.frombuffer(base64.b64decode(text), dtype).reshape(shape) for text in each]
        own = strategy.experimental_local_results(variable.value)
        if len(own) != len(values) or _across_workers(strategy):
            nothing = np.zeros_like(values[0])
            first = not _across_workers(strategy) or _is_chief(strategy)
            total = np.sum(values, axis=0, dtype=dtype) if first else nothing
            values = [total, *[nothing] * (len(own) - 1)]
        for part, value in zip(own, values, strict=True):
            part.assign(value)


def require_plain(texts: Any) -> None:
    """Raises TypeError or ValueError unless this is None or as `serialize` makes it."""
    for each in () if texts is None else _listed(texts):
        if not _listed(each):
            raise ValueError("no replica of a variable")
        for text in each:
            base64.b64decode(text, validate=True)


def require_history(history: Any, epochs: int) -> None:
    """Raises TypeError or ValueError unless these are values of each epoch, by names of metrics."""
    if not isinstance(history, dict) or (epochs and "loss" not in history):
        raise ValueError("no history of the loss")
    for name, values in history.items():
        # A name is any text of a user's task, but never a way to another folder.
        if not name.isprintable() or not name or ".." in name.split("/") or name.startswith("/"):
            raise ValueError("no name of a metric")
        if len(_listed(values)) != epochs:
            raise ValueError("a history of other epochs")
        if not all(isinstance(value, int | float | None) for value in values):
            raise TypeError("no number")


def _listed(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise TypeError("no list")
    return values


def _variables(metrics: Sequence[keras.metrics.Metric]) -> list[keras.Variable]:
    return [variable for metric in metrics for variable in metric.variables]


def _parts(variable: keras.Variable) -> list[np.ndarray]:
    strategy = tf.distribute.get_strategy()
    if _across_workers(strategy):
        return [np.asarray(variable.numpy())]
    return [part.numpy() for part in strategy.experimental_local_results(variable.value)]


def _across_workers(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def _is_chief(strategy: tf.distribute.Strategy) -> bool:
    return strategy.cluster_resolver.task_id in (0, None)


def _text(values: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
