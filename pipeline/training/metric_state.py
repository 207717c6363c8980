"""Running metrics within an epoch, saved and restored replica by replica."""

import base64
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf


def serialize(metrics: Sequence[keras.metrics.Metric]) -> list[list[str]]:
    """For each variable of the metrics, its bytes on each replica in base64: plain JSON.

    With several workers, the values are summed, and `restore` gives the sum to the first replica.
    """
    strategy, texts = tf.distribute.get_strategy(), []
    for variable in _variables(metrics):
        parts = [variable]
        if not _has_workers(strategy):
            parts = strategy.experimental_local_results(variable.value)
        texts.append([base64.b64encode(part.numpy().tobytes()).decode() for part in parts])
    return texts


def restore(metrics: Sequence[keras.metrics.Metric], texts: Sequence[Sequence[str]]) -> None:
    """Restores what `serialize` returned into the same metrics.

    If the number of replicas has changed, the first one gets the sum: the metrics over all replicas
    are the same up to rounding.
    """
    strategy = tf.distribute.get_strategy()
    for variable, saved in zip(_variables(metrics), texts, strict=True):
        dtype, shape = np.dtype(variable.dtype), tuple(variable.shape)
        values = [np.frombuffer(base64.b64decode(text), dtype).reshape(shape) for text in saved]
        replicas = strategy.experimental_local_results(variable.value)
        if len(replicas) != len(values) or _has_workers(strategy):
            zeros = np.zeros_like(values[0])
            is_chief = not _has_workers(strategy) or strategy.cluster_resolver.task_id in (0, None)
            total = np.sum(values, axis=0, dtype=dtype) if is_chief else zeros
            values = [total, *[zeros] * (len(replicas) - 1)]
        for replica, value in zip(replicas, values, strict=True):
            replica.assign(value)


def _variables(metrics: Sequence[keras.metrics.Metric]) -> list[keras.Variable]:
    return [variable for metric in metrics for variable in metric.variables]


def _has_workers(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
