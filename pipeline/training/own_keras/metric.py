"""Adapts users' metrics: Keras metrics, their classes and functions."""

import functools
import inspect
import re
from collections.abc import Callable, Container
from typing import Any

import keras
import numpy as np

from pipeline.config.functions import from_signature
from pipeline.contracts import Metadata
from pipeline.training.own_keras import arguments
from pipeline.training.own_keras.arguments import Arguments
from pipeline.training.own_keras.loss import function_name
from pipeline.utils.errors import UsageError, reason


def adapt(metric: Any) -> Callable[..., keras.metrics.Metric]:
    """Returns a registered metric for a Keras metric, its class, or a function.

    A function with one required argument is already a registered metric.
    """
    if not (
        inspect.isfunction(metric) and from_signature(metric).required_arguments == 1
    ):
        return functools.partial(from_object, metric)

    def build_metric(metadata: Metadata, **options: Any) -> keras.metrics.Metric:
        result = metric(metadata, **options)
        if isinstance(result, keras.metrics.Metric) and _is_of_keras(type(result)):
            return from_object(result, metadata)
        return result

    return build_metric


def from_object(metric: Any, metadata: Metadata, **options: Any) -> "OwnMetric":
    """Returns the metric as a metric of y and outputs of a task.

    Args:
        metric: A Keras metric or loss, its class, or a function `(y_true, y_pred)` that
            returns one value per example. It gets labels as Keras's metrics expect them
            (`arguments.choices`), and probabilities unless its `from_logits` is true.
        metadata: Metadata of the task, and `output_kind` of the user's network.
        options: Arguments of the class or function.

    Raises:
        UsageError: It is not a metric, does not suit the task, or ignores
            `sample_weight`, so that the padding of the last batch would count.
    """
    if inspect.isclass(metric):
        # Without an average, there is one value per class.
        if "average" in inspect.signature(metric).parameters:
            options = {"average": "macro", **options}
        metric = metric(**options)
        options = {}
    if isinstance(metric, keras.losses.Loss):
        return _of_loss(metric, metadata)
    if not isinstance(metric, keras.metrics.Metric):
        if not callable(metric):
            raise UsageError(
                "a metric must be a name, a Keras metric, or a function (y_true,"
                f" y_pred); got {type(metric).__name__}"
            )
        metric = keras.metrics.MeanMetricWrapper(
            metric, name=function_name(metric), **options
        )
    if type(metric) is keras.metrics.MeanMetricWrapper:
        return _of_function(metric, metadata)
    if type(metric) is keras.metrics.Accuracy:
        raise UsageError(
            "keras.metrics.Accuracy counts numbers that are equal, and probabilities"
            " never equal labels; use metrics=['accuracy']"
        )
    logits = bool(_config(metric).get("from_logits"))
    if getattr(metric, "threshold", 0.5) is None:  # compares classes with each other
        metadata = {**metadata, "output_kind": "none"}
    problem: UsageError | None = None
    for possible in arguments.choices(type(metric), metadata, logits):
        own_metric = OwnMetric(metric, possible)
        count = 8 if possible.classes != 8 else 9
        try:
            require_weights(own_metric, *possible.examples(count))
        except UsageError as error:
            problem = problem or error
        else:
            return own_metric
    raise problem or UsageError(f"the metric {metric.name} does not suit the task")


def _of_function(
    metric: keras.metrics.MeanMetricWrapper, metadata: Metadata
) -> "OwnMetric":
    function = functools.partial(metric._fn, **metric._fn_kwargs)
    keywords = {**getattr(metric._fn, "keywords", {}), **metric._fn_kwargs}
    possible = arguments.choices(
        None, metadata, logits=bool(keywords.get("from_logits"))
    )
    own_arguments = arguments.find_arguments(function, possible, metric.name, "metric")
    return OwnMetric(metric, own_arguments)


def _of_loss(loss: keras.losses.Loss, metadata: Metadata) -> "OwnMetric":
    """Returns the mean of a Keras loss, which Keras also accepts as a metric."""
    logits = bool(loss.get_config().get("from_logits"))
    possible = arguments.choices(type(loss), metadata, logits)
    own_arguments = arguments.find_arguments(loss.call, possible, loss.name, "metric")
    metric = keras.metrics.MeanMetricWrapper(loss.call, name=loss.name)
    return OwnMetric(metric, own_arguments)


def unique_name(name: str, taken: Container[str]) -> str:
    """Returns the name, if needed with a number as in Keras: `auc`, `auc_1`, ..."""
    result = name
    number = 0
    while result in taken:
        number += 1
        result = f"{name}_{number}"
    return result


def is_same(
    first: keras.metrics.Metric, second: keras.metrics.Metric, metadata: Metadata
) -> bool:
    """Whether two new metrics return the same number for random y and outputs."""
    y, outputs = arguments.choices(None, metadata, logits=True)[-1].examples(32)
    results = []
    for metric in (first, second):
        copy = type(metric).from_config(metric.get_config())
        copy.update_state(y, outputs)
        results.append(np.asarray(copy.result()))
    return np.allclose(results[0], results[1])


class OwnMetric(keras.metrics.Metric):
    """A Keras metric of y and outputs of a step.

    The metric is copied, so that its variables belong to the current strategy.
    """

    def __init__(
        self,
        metric: keras.metrics.Metric,
        own_arguments: Arguments,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name or _name(metric))
        self.metric = _copy(metric)
        self.own_arguments = own_arguments
        # Built now, because a trace on two replicas cannot build it.
        if not getattr(self.metric, "_built", True):
            is_binary = own_arguments.labels == "binary"
            shape = own_arguments.shape
            if own_arguments.labels == "binary map":
                shape = (*shape[:-1], 1)
            elif own_arguments.classes and own_arguments.labels != "map":
                shape = (1 if is_binary else own_arguments.classes,)
            count = len(inspect.signature(self.metric._build).parameters)
            self.metric._build(*[(None, *shape)] * count)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        y_true, y_pred = self.own_arguments(y_true, y_pred)
        self.metric.update_state(y_true, y_pred, sample_weight=sample_weight)

    def result(self) -> Any:
        return self.metric.result()

    def reset_state(self) -> None:
        self.metric.reset_state()

    def get_config(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "own_arguments": self.own_arguments,
            "name": self.name,
        }


def _is_of_keras(kind: type) -> bool:
    return kind.__module__.startswith("keras.")


def _config(metric: keras.metrics.Metric) -> dict[str, Any]:
    try:
        return metric.get_config()
    except (TypeError, NotImplementedError) as error:
        raise UsageError(
            f"the metric {metric.name} cannot be copied: {reason(error)}; define"
            " get_config"
        ) from error


def _copy(metric: keras.metrics.Metric) -> keras.metrics.Metric:
    # The config of a wrapper would need a registered function.
    if type(metric) is keras.metrics.MeanMetricWrapper:
        return type(metric)(metric._fn, name=metric.name, **metric._fn_kwargs)
    config = _config(metric)
    try:
        return type(metric).from_config(config)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise UsageError(
            f"the metric {metric.name} cannot be copied: {reason(error)}; define"
            " get_config"
        ) from error


def _name(metric: keras.metrics.Metric) -> str:
    """Returns the name without the number that Keras appends to a repeated name."""
    numbered = re.fullmatch(r"(.+)_\d+", metric.name)
    kind = type(metric).__name__.lower()
    if numbered and numbered[1].replace("_", "") == kind:
        return numbered[1]
    return metric.name


def require_weights(metric: OwnMetric, y: Any, outputs: Any) -> None:
    """Raises UsageError unless the result is one number that respects weights of 0.

    `y` and `outputs` are those of a few examples.
    """
    count = len(keras.tree.flatten(y)[0])
    kept = max(1, 5 * count // 8)
    weight = (np.arange(count) < kept).astype(np.float32)
    results = []
    for rows in (count, kept):
        fresh = type(metric)(metric.metric, metric.own_arguments)
        first = [_first(rows, values) for values in (y, outputs)]
        try:
            fresh.update_state(first[0], first[1], weight[:rows])
            results.append(np.asarray(fresh.result()))
        except Exception as error:  # of the user's metric
            raise UsageError(
                f"the metric {metric.name} does not suit the task: {reason(error)}"
            ) from error
    if results[0].ndim:
        raise UsageError(
            f"the metric {metric.name} must return one number; got {results[0].shape}"
        )
    if not np.allclose(results[0], results[1], equal_nan=True):
        raise UsageError(
            f"the metric {metric.name} ignores sample_weight, so that the padding of"
            " the last batch would count; pass sample_weight on in update_state"
        )


def _first(rows: int, values: Any) -> Any:
    """The first rows of an array and its mask, or of each array of a dictionary."""

    def first(array: Any) -> Any:
        part = array[:rows]
        mask = getattr(array, "_keras_mask", None)
        if mask is not None:
            part._keras_mask = mask[:rows]
        return part

    return keras.tree.map_structure(first, values)
