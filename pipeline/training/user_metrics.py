"""A user's metrics, called as `keras.Model.fit` calls them (Keras 3.15)."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Container
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.functions import from_signature
from pipeline.contracts import ExpectedArguments, Metadata, Task
from pipeline.training import user_loss
from pipeline.training.keras_config import missing_arguments
from pipeline.training.user_loss import UserLoss
from pipeline.utils.console import join_words
from pipeline.utils.errors import UsageError, reason


@dataclasses.dataclass(frozen=True)
class OutputMetric:
    """A metric of an output: a name, a Keras metric or loss, or a function."""

    output: str
    metric: Any
    name: str | None = None
    """None: the name of the metric."""
    prefix: str = ""


class UserMetric(keras.metrics.Metric):
    """A metric of y and outputs of a step; masked positions do not count.

    The user's metric is copied, so that its variables belong to the current strategy,
    unless it cannot be copied.
    """

    def __init__(
        self,
        metric: keras.metrics.Metric,
        task: Task,
        takes: ExpectedArguments,
        shape: tuple[int | None, ...],
        name: str,
    ) -> None:
        super().__init__(name=name)
        self._metric = _copy(metric)
        # Keras callbacks read from this whether higher is better.
        self._direction = getattr(metric, "_direction", None)
        self._config = {"metric": metric, "task": task, "takes": takes, "shape": shape}
        self._task = task
        self._takes = takes
        # Built now: tracing on two replicas cannot create its variables.
        if not getattr(self._metric, "_built", True):
            count = len(inspect.signature(self._metric._build).parameters)
            self._metric._build(*[(None, *shape)] * count)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        truth, prediction = self._task.user_arguments(y_true, y_pred, self._takes)
        mask = getattr(prediction, "_keras_mask", None)
        if mask is not None and sample_weight is not None:
            while len(sample_weight.shape) < len(mask.shape):
                sample_weight = sample_weight[..., None]
            sample_weight *= tf.ones(tf.shape(mask))
        if isinstance(self._metric, keras.metrics.IoU) and sample_weight is not None:
            # It counts pixels, each with a whole number as its weight.
            pixels = tf.ones(tf.shape(prediction)[:-1], tf.int32)
            weight = tf.cast(sample_weight, tf.int32)
            sample_weight = pixels * weight[:, None, None]
        self._metric.update_state(truth, prediction, sample_weight=sample_weight)

    def result(self) -> Any:
        return self._metric.result()

    def reset_state(self) -> None:
        self._metric.reset_state()

    def get_config(self) -> dict[str, Any]:
        return {**self._config, "name": self.name}


class UserLossMetric(keras.metrics.Mean):
    """The mean of a user's loss over the examples."""

    def __init__(self, loss: UserLoss, task: Task, output: str, name: str) -> None:
        super().__init__(name=name)
        self._losses = loss.of(task, output)
        self._config = {"loss": loss, "task": task, "output": output}

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(self._losses(y_true, y_pred), sample_weight=sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {**self._config, "name": self.name}


def create(
    metric: Any,
    task: Task,
    shape: tuple[int | None, ...],
    options: dict[str, Any] | None = None,
    *,
    output: str = "",
    name: str | None = None,
) -> keras.metrics.Metric:
    """Returns a user's metric as a metric of y and outputs of a step.

    Args:
        metric: A Keras metric or loss, its class or name, or a function (y_true,
            y_pred) that returns one value per example.
        task: The task.
        shape: The shape of the output for an example.
        options: Arguments of the class or function.
        output: The name of the output, if the user's network has several.
        name: Replaces the name of the metric.

    Raises:
        UsageError: It is not a metric, or cannot be copied.
    """
    if isinstance(metric, str):
        name = name or metric
        metric = _of_word(metric)
    options = options or {}
    if inspect.isclass(metric):
        # Without an average, there is one value per class.
        if "average" in inspect.signature(metric).parameters:
            options = {"average": "macro", **options}
        metric = metric(**options)
    if isinstance(metric, keras.losses.Loss | UserLoss):
        loss = metric if isinstance(metric, UserLoss) else UserLoss(metric)
        return UserLossMetric(loss, task, output, name or loss.name)
    if not isinstance(metric, keras.metrics.Metric):
        if not callable(metric):
            raise UsageError(
                "a metric must be a name, a Keras metric, or a function (y_true,"
                f" y_pred); got {type(metric).__name__}"
            )
        metric = keras.metrics.MeanMetricWrapper(
            metric, name=user_loss.name_of(metric), **options
        )
    if type(metric) is keras.metrics.Accuracy:
        raise UsageError(
            "keras.metrics.Accuracy counts numbers that are equal, and probabilities"
            " never equal labels; use metrics=['accuracy']"
        )
    function = getattr(metric, "_fn", metric)
    arguments = getattr(metric, "_fn_kwargs", {})
    logits = arguments.get("from_logits", user_loss.from_logits_of(function))
    labels = user_loss.labels_of(function)
    _require_classes(metric, function, task, shape)
    takes = ExpectedArguments(labels, bool(logits), output)
    return UserMetric(metric, task, takes, shape, name or _name(metric))


def _require_classes(
    metric: keras.metrics.Metric, function: Any, task: Task, shape: tuple[Any, ...]
) -> None:
    """Raises UsageError for a metric that compares classes, if there is one output.

    Keras would take the argmax of a single number, which is always 0.
    """
    expected = task.target.output
    has_classes = expected is not None and expected.activation == "softmax"
    if shape[-1:] != (1,) or not has_classes:
        return
    names = [getattr(function, "__name__", ""), type(metric).__name__]
    plain = " ".join(names).replace("_", "").lower()
    is_accuracy = "categoricalaccuracy" in plain
    if is_accuracy or getattr(metric, "threshold", 0.5) is None:
        remedy = "threshold=0.5" if not is_accuracy else "keras.metrics.BinaryAccuracy"
        raise UsageError(
            f"the metric {metric.name} compares classes, but the model has one output;"
            f" use {remedy}"
        )


def of_output(
    metric: OutputMetric, task: Task, shape: tuple[int | None, ...]
) -> keras.metrics.Metric:
    """The metric of an output, which has this shape for an example."""
    name, output = metric.name, metric.output
    result = create(metric.metric, task, shape, output=output, name=name)
    result.name = f"{metric.prefix}{result.name}"
    return result


def adapt(metric: Any) -> Callable[..., Any]:
    """Returns a registered metric for a Keras metric, its class, or a function.

    A function with one required argument is already a registered metric. Otherwise, the
    metric is created by `(task, shape)`.
    """
    if not (
        inspect.isfunction(metric) and from_signature(metric).required_arguments == 1
    ):
        return functools.partial(from_object, metric)

    def build_metric(metadata: Metadata, **options: Any) -> Any:
        result = metric(metadata, **options)
        if type(result).__module__.startswith("keras."):
            return functools.partial(create, result)
        return result

    return build_metric


def from_object(
    metric: Any, metadata: Metadata, **options: Any
) -> Callable[..., keras.metrics.Metric]:
    """Returns a function (task, shape) that creates a metric of a run; see `create`."""
    return functools.partial(create, metric, options=options)


def _of_word(word: str) -> Any:
    if word.lower() in ("crossentropy", "ce"):
        return UserLoss(word)
    if word.lower() in ("accuracy", "acc"):
        return keras.metrics.MeanMetricWrapper(_accuracy, name=word)
    try:
        return keras.metrics.get(word)
    except ValueError:
        raise UsageError(f"unknown metric {word!r}; pass a Keras metric") from None


def _accuracy(y: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """The accuracy that Keras chooses for the shapes of y and an output."""
    function = user_loss.choose_by_shapes(
        y,
        output,
        keras.metrics.binary_accuracy,
        keras.metrics.sparse_categorical_accuracy,
        keras.metrics.categorical_accuracy,
    )
    return function(y, output)


def unique_name(name: str, taken: Container[str]) -> str:
    """Returns the name, if needed with a number as in Keras: `auc`, `auc_1`, ..."""
    result = name
    number = 0
    while result in taken:
        number += 1
        result = f"{name}_{number}"
    return result


def _copy(metric: keras.metrics.Metric) -> keras.metrics.Metric:
    # The config of a wrapper would need a registered function.
    if type(metric) is keras.metrics.MeanMetricWrapper:
        return type(metric)(_checked(metric._fn), name=metric.name, **metric._fn_kwargs)
    if names := missing_arguments(metric):
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise UsageError(
                f"the metric {metric.name} cannot be copied to the devices: its"
                f" get_config lacks {join_words(names)}; add it"
            )
        metric.reset_state()
        return metric
    try:
        return type(metric).from_config(metric.get_config())
    except (TypeError, ValueError, NotImplementedError) as error:
        raise UsageError(
            f"the metric {metric.name} cannot be copied: {reason(error)}; define"
            " get_config"
        ) from error


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A metric function that must return a value for each example."""

    @functools.wraps(function)
    def values_of(y: tf.Tensor, output: tf.Tensor, **options: Any) -> tf.Tensor:
        values = tf.convert_to_tensor(function(y, output, **options))
        if values.shape.rank == 0:
            raise UsageError(
                f"the metric {user_loss.name_of(function)} returns one number for the"
                " batch; it must return one value per example, of shape (batch,)"
            )
        return values

    return values_of


def _name(metric: keras.metrics.Metric) -> str:
    """Returns the name without the number that Keras appends to a repeated name."""
    numbered = re.fullmatch(r"(.+)_\d+", metric.name)
    kind = type(metric).__name__.lower()
    if numbered and numbered[1].replace("_", "") == kind:
        return numbered[1]
    return metric.name


def require_weights(metric: keras.metrics.Metric, y: Any, outputs: Any) -> None:
    """Raises UsageError unless the result is one number that respects weights of 0.

    `y` and `outputs` are those of a few examples.
    """
    count = len(keras.tree.flatten(y)[0])
    kept = max(1, 5 * count // 8)
    weight = (np.arange(count) < kept).astype(np.float32)
    results = []
    for rows in (count, kept):
        # The variables of the metric belong to a strategy.
        fresh = type(metric).from_config(metric.get_config())
        first = [_first(rows, values) for values in (y, outputs)]
        try:
            fresh.update_state(first[0], first[1], weight[:rows])
            results.append(np.asarray(fresh.result()))
        except UsageError:
            raise
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
