"""Metrics that users hand over: Keras metrics, their classes, functions `(y_true, y_pred)`."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.functions import declared
from pipeline.contracts import Metadata
from pipeline.tasks._metrics import binary, is_mixed, labels
from pipeline.utils.errors import UsageError, reason


def adapt(found: Any) -> Callable[..., keras.metrics.Metric]:
    """A registered metric for a Keras metric, its class, or a function of one or two arguments."""
    if inspect.isfunction(found) and declared(found).required == 1:
        return found
    return functools.partial(from_object, found)


def from_object(metric: Any, metadata: Metadata, **options: Any) -> "OwnMetric":
    """The metric on the answers of a task.

    `metric` is a Keras metric, its class (with `options`), or a function `(y_true, y_pred)` of one
    value per example. Raises UsageError if it is not a metric, or if it ignores `sample_weight`, so
    that the padding of the last batch would count.
    """
    if inspect.isclass(metric):
        if "average" in inspect.signature(metric).parameters:  # else one value per class
            options = {"average": "macro", **options}
        metric = metric(**options)
    elif inspect.isfunction(metric):
        metric = keras.metrics.MeanMetricWrapper(metric, name=metric.__name__)
    if not isinstance(metric, keras.metrics.Metric):
        raise UsageError(
            "a metric must be a name, a Keras metric, or a function (y_true, y_pred); got "
            f"{type(metric).__name__}"
        )
    found = OwnMetric(metric, len(metadata.get("class_names", ())))
    _require_weights(found)
    return found


class OwnMetric(keras.metrics.Metric):
    """A Keras metric that gets probabilities, and labels one-hot unless it is a sparse one.

    The metric is copied, so that its variables belong to the present strategy. In a regression,
    `classes` is 0, and it gets y and the outputs as they are.
    """

    def __init__(self, metric: keras.metrics.Metric, classes: int) -> None:
        super().__init__(name=_name(metric))
        try:
            self.metric = _copied(metric)
        except (TypeError, NotImplementedError) as error:
            raise UsageError(
                f"the metric {metric.name} cannot be copied: {reason(error)}; define get_config"
            ) from error
        self.classes = classes
        if not getattr(self.metric, "_built", True):  # now: a trace on two replicas cannot
            shape = (None, max(classes, 1))
            self.metric._build(*[shape] * len(inspect.signature(self.metric._build).parameters))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        kind = type(self.metric).__name__
        if self.classes and kind.startswith("Binary"):
            y_true, y_pred = binary(y_true, y_pred, False)
        elif self.classes:
            y_pred = tf.nn.softmax(tf.cast(y_pred, tf.float32))
            if kind.startswith(("Sparse", "MeanMetricWrapper")):
                y_true = labels(y_true)
            elif not is_mixed(y_true):
                y_true = tf.one_hot(y_true, self.classes)
        self.metric.update_state(y_true, y_pred, sample_weight=sample_weight)

    def result(self) -> Any:
        return self.metric.result()

    def reset_state(self) -> None:
        self.metric.reset_state()

    def get_config(self) -> dict[str, Any]:
        return {"metric": self.metric, "classes": self.classes}


def _copied(metric: keras.metrics.Metric) -> keras.metrics.Metric:
    if type(metric) is keras.metrics.MeanMetricWrapper:  # its config needs a registered function
        return type(metric)(metric._fn, name=metric.name, **metric._fn_kwargs)
    return type(metric).from_config(metric.get_config())


def _name(metric: keras.metrics.Metric) -> str:
    """Its name without the number that Keras appends in a process that has several of them."""
    found = re.fullmatch(r"(.+)_\d+", metric.name)
    kind = type(metric).__name__.lower()
    return found[1] if found and found[1].replace("_", "") == kind else metric.name


def _require_weights(metric: OwnMetric) -> None:
    """Raises UsageError if examples of weight 0 change the result, or it is not one number."""
    random, width = np.random.default_rng(0), max(metric.classes, 1)
    outputs = random.normal(size=(8, width)).astype(np.float32)
    y = random.integers(0, width, 8) if metric.classes else random.normal(size=(8, 1))
    weight = np.array([1, 1, 1, 1, 1, 0, 0, 0], np.float32)
    results = []
    for count in (8, 5):
        fresh = OwnMetric(metric.metric, metric.classes)
        try:
            fresh.update_state(y[:count], outputs[:count], sample_weight=weight[:count])
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise UsageError(
                f"the metric {metric.name} does not suit the task: {reason(error)}"
            ) from error
        results.append(np.asarray(fresh.result()))
    if results[0].ndim:
        raise UsageError(f"the metric {metric.name} must return one number; got {results[0].shape}")
    if not np.allclose(results[0], results[1], equal_nan=True):
        raise UsageError(
            f"the metric {metric.name} ignores sample_weight, so that the padding of the last "
            "batch would count; pass sample_weight on in update_state"
        )
