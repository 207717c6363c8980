"""Runs a model on all examples of a split, batch by batch, and computes metrics and
calibration.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from pipeline.contracts import Batches, Example, Metadata, Target, Task
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.training import xla_support
from pipeline.training.distributed import explain_decode_errors
from pipeline.training.train_step import SteppedModel, forward
from pipeline.training.user_metrics import unique_name
from pipeline.utils.errors import UsageError, reason, require_kind
from pipeline.utils.tf_data import with_options


class Outputs(NamedTuple):
    """The outputs of a network for a batch, without padding; tensors (batch, ...)."""

    batch: Example
    """The decoded fields."""
    y: Any
    outputs: Any
    loss: tf.Tensor | None = None
    """None if only the process that trained the network knew its loss."""


class Predictions(NamedTuple):
    """The predictions for a batch, without padding; tensors (batch, ...)."""

    batch: Example
    """The decoded fields."""
    y: Any
    outputs: Any
    """Of the network; None if they cannot be recovered from an export's predictions."""
    predictions: Example
    """Those of `Target.predict`, and `loss`, if it is known."""


Predict = Callable[[Any, Task, Batches], Iterator[Predictions]]
"""Yields the predictions of a model for all examples, in the order of the split."""


def predictions(
    model: SteppedModel, task: Task, batches: Batches
) -> Iterator[Predictions]:
    """Yields the predictions of a network, as `Predict`."""
    for batch, y, values, loss in outputs(model, task, batches):
        predictions = dict(task.target.predict(task.target_outputs(values), batch))
        if loss is not None:
            predictions["loss"] = loss
        yield Predictions(batch, y, values, predictions)


def outputs(model: SteppedModel, task: Task, batches: Batches) -> Iterator[Outputs]:
    """Yields the outputs for all examples, in the order of the split."""
    dataset = batches.dataset(0)
    compute = _output_function(model, task, batches, dataset.element_spec)
    if model.step and model.step.is_compiled("outputs"):
        compute = xla_support.with_notice(compute, "outputs")
    with explain_decode_errors(batches, 0, batches.last_step):
        for batch in with_options(dataset):
            try:
                result, weight = compute(batch)
            except xla_support.ERRORS as error:
                if not model.step:
                    raise
                model.step.disable_xla("outputs", error, model)
                compute = _output_function(model, task, batches, dataset.element_spec)
                result, weight = compute(batch)
            count = int(np.count_nonzero(weight.numpy()))  # padding is at the end
            if count < len(weight):
                result = _first(count, result)
            for name, mask in result.pop("masks").items():
                result["outputs"][name]._keras_mask = mask
            yield Outputs(**result)


def _first(count: int, values: Any) -> Any:
    """The first rows of all tensors."""
    return tf.nest.map_structure(lambda value: value[:count], values)


def _output_function(
    model: SteppedModel,
    task: Task,
    batches: Batches,
    specs: dict[str, tf.TensorSpec],
) -> Callable[[Any], tuple[dict[str, Any], tf.Tensor]]:
    """Traces the network once for all splits with equal batches, as this is slow."""
    xla = model.step is not None and model.step.is_one_program("outputs")
    if not xla:  # XLA compiles a program for each shape
        specs = {
            name: tf.TensorSpec((None, *spec.shape[1:]), spec.dtype)
            for name, spec in specs.items()
        }
    key = ("outputs", xla, batches.device_cache, *specs.items())
    # Inference copies have no step.
    compiled = model.step.compiled if model.step else {}
    if key in compiled:
        return compiled[key]
    loss = loss_function(model, task)

    def compute(batch: Any) -> tuple[dict[str, Any], tf.Tensor]:
        batch = batches.gather(batch)
        y, outputs, weight = forward(task, model, batch)
        result = {"batch": batch, "y": y, "outputs": outputs}
        if loss is not None:
            result["loss"] = loss(y, outputs)
        return {**result, "masks": _masks(outputs)}, weight

    try:
        function = tf.function(compute, jit_compile=xla or None)
        compiled[key] = function.get_concrete_function(specs)
    except UsageError as error:  # AutoGraph adds where it was raised
        raise UsageError(reason(error).removeprefix("UsageError: ")) from None
    return compiled[key]


def loss_function(
    model: SteppedModel, task: Task
) -> Callable[[Any, Any], tf.Tensor] | None:
    """The loss of a network; None if only the process that trained it knew it."""
    if model.step:
        return model.step.loss
    if model.user_loss or task.user_outputs:
        return model.user_loss
    return task.target.loss()


def _masks(outputs: Any) -> dict[str, tf.Tensor]:
    """The masks of outputs by name, which a traced function does not return."""
    masks = {}
    if isinstance(outputs, dict):
        for name, values in outputs.items():
            mask = getattr(values, "_keras_mask", None)
            if mask is not None:
                masks[name] = mask
    return masks


@dataclasses.dataclass(frozen=True)
class SplitResult:
    """The result of a split."""

    metrics: dict[str, Any]
    """Metrics of the task and of `train.metrics`, as JSON values."""
    table: dict[str, np.ndarray]
    """`id`, and the columns of `TargetEvaluation.table`, (examples,)."""
    pictures: dict[str, np.ndarray]
    """Name -> picture of the predictions, uint8 (height, width, 3)."""
    has_loss: bool = True
    """Whether the loss is known; if not, `metrics` and `table` are without it."""


def evaluate(
    model: SteppedModel,
    task: Task,
    batches: Batches,
    training: Batches | None = None,
    predict: Predict = predictions,
) -> SplitResult:
    """Evaluates a split in one pass; only the columns of the table stay in memory.

    `training` has the training examples, for metrics that compare predictions with
    them; None if they are not available or it would take too long. `predict` calls the
    model.
    """
    of_target = evaluation_of(task.target)
    evaluator = of_target.evaluator(model)
    added = [_copy(metric) for metric in _added_metrics(model)]
    parts = []
    has_loss = True
    for batch, y, values, predictions in predict(model, task, batches):
        if "loss" not in predictions:
            has_loss = False
            predictions = {**predictions, "loss": tf.fill([len(batch["id"])], np.nan)}
        evaluator.update(task.target_outputs(values), predictions, batch)
        for metric in added:
            metric.update_state(y, values)
        parts.append({"id": batch["id"].numpy(), **of_target.table(predictions, batch)})
    if training is not None and evaluator.reads_training:
        for batch in examples(training):
            evaluator.update_training(batch)
    results = evaluator.result()
    for metric in added:
        value = np.asarray(metric.result()).tolist()
        known = results.get(metric.name)
        if isinstance(known, float) and np.isclose(known, value, 1e-5, 1e-6).all():
            continue
        results[unique_name(metric.name, results)] = value
    table = concatenate(parts)
    if not has_loss:
        results.pop("loss", None)
        table.pop("loss", None)
    return SplitResult(results, table, evaluator.pictures(), has_loss)


_TRIED = 8  # examples


def try_out(model: SteppedModel, task: Task, train: Batches) -> None:
    """Evaluates a few training examples with a user's target, before training.

    Raises UsageError if predictions, metrics or columns are not what they must be.
    """
    if type(task.target).__module__.startswith("pipeline."):
        return
    first = train.gather(next(iter(train.dataset(0))))
    batch = {name: values[:_TRIED] for name, values in first.items()}
    require_evaluation(model, task, batch)


def require_evaluation(model: Any, task: Task, batch: Example) -> None:
    """Raises UsageError unless a decoded batch can be evaluated with the target."""
    target = task.target
    count = len(batch["id"])
    _, outputs, _ = forward(task, model, batch)
    outputs = task.target_outputs(outputs)
    predictions: Any = target.predict(outputs, batch)
    name = type(target).__name__
    require_kind(predictions, Mapping, f"{name}.predict", "a dictionary of tensors")
    of_target = evaluation_of(target)
    predictions = {**predictions, "loss": tf.zeros(count)}
    evaluator = of_target.evaluator(model)
    evaluator.update(outputs, predictions, batch)
    _require_metrics(target)
    kind = type(evaluator).__name__
    result: Any = evaluator.result()
    require_kind(result, Mapping, f"{kind}.result", "a dictionary of metrics")
    selected, _ = target.selection_metric
    needed = {"examples": "their number", selected: "the selection_metric"}
    for key, meaning in needed.items():
        if key not in result and key != "loss":
            raise UsageError(
                f"{kind}.result lacks {key!r}, {meaning}; it has {', '.join(result)}"
            )
    name = f"{type(of_target).__name__}.table"
    table = of_target.table(predictions, batch)
    for column, values in of_target.readable(table).items():
        if np.shape(values) != (count,):
            raise UsageError(
                f"{name}: the column {column!r} must have the shape (batch,), or"
                f" {type(of_target).__name__}.readable must give it one; got"
                f" {np.shape(values)} for {count} examples"
            )
    for column, partner in (("correct", "probability"), ("truth", "prediction")):
        if column in table and partner not in table:
            raise UsageError(f"{name} has the column {column!r}, but not {partner!r}")


def _require_metrics(target: Target) -> None:
    """Raises UsageError unless Keras metrics are one number each, with other names."""
    taken = ["loss", "examples"]
    for metric in target.metrics():
        where = f"{type(target).__name__}.metrics: {metric.name}"
        if np.shape(metric.result()) != ():
            raise UsageError(f"{where} must be one number")
        if metric.name in taken:
            raise UsageError(f"{where} is taken; give the metric another name")
        taken.append(metric.name)


def examples(batches: Batches) -> Iterator[Example]:
    """Decoded batches without padding."""
    with explain_decode_errors(batches, 0, batches.last_step):
        for batch in with_options(batches.dataset(0)):
            batch = batches.gather(batch)
            yield _first(int(np.count_nonzero(batch["weight"])), batch)


def batch_of(examples: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
    """Decoded examples as a batch."""
    count = len(examples["id"])
    batch = {name: tf.constant(values) for name, values in examples.items()}
    batch["weight"] = tf.ones(count)
    batch["epoch"] = tf.zeros(count, tf.int64)
    return batch


def concatenate(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Concatenates the columns of batches."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _added_metrics(model: SteppedModel | None) -> Sequence[keras.metrics.Metric]:
    if model is None:  # an export
        return ()
    return model.step.added_metrics if model.step else model.user_metrics


def _copy(metric: keras.metrics.Metric) -> keras.metrics.Metric:
    """A new metric, because the original belongs to a strategy."""
    return type(metric).from_config(metric.get_config())


def calibration(model: SteppedModel, task: Task, held_out: Batches) -> Metadata:
    """Calibrates the task on examples that the model was not trained on."""
    calibrator = evaluation_of(task.target).calibrator(model)
    if calibrator is None:
        return {}
    for batch, _, results, _ in outputs(model, task, held_out):
        calibrator.update(task.target_outputs(results), batch)
    return calibrator.result()


def apply_calibration(task: Task, calibration: Metadata) -> Task:
    """The task with calibrated predictions, from the result of `calibration`."""
    return task.with_metadata(calibration) if calibration else task
