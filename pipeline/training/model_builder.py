"""Builds the network of a task, and compiles it with its training step."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config import config, functions, registry
from pipeline.contracts import Batches, ReplicaPart, Task
from pipeline.data.augmentation import Augmenter
from pipeline.layers import batch_normalization
from pipeline.layers.nested import all_layers
from pipeline.runtime import environment
from pipeline.runtime.dtype_policy import policy_scope
from pipeline.tasks.keras_model import TaskMetric
from pipeline.training import pretrained, user_loss, user_metrics, user_model
from pipeline.training.distributed import explain_decode_errors
from pipeline.training.freezing import freeze
from pipeline.training.optim.build import build_optimizer
from pipeline.training.optim.gradient_update import UpdateRule
from pipeline.training.optim.learning_rate import build_rate, layer_rates
from pipeline.training.train_step import Step, SteppedModel, all_metrics, forward
from pipeline.training.user_loss import OutputLosses, UserLoss
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, reason, require_kind

# What is logged for each epoch in addition to the metrics.
_COLUMNS = (
    "epoch",
    "step",
    "seconds",
    "loss",
    "learning_rate",
    "loss_scale",
    "skipped_steps",
    "examples_per_second",
    "gradient_norm",
    "gradient_norm_max",
)
# As in airbench, arXiv 2404.00498, section 3.2; enough for the eigenvectors of image
# patches.
ADAPT_EXAMPLES = 5000
_TRIED = 8  # examples on which the user's loss and metrics are called


def network(
    task: Task,
    options: config.ModelConfig,
    precision: str,
    from_logits: bool | None = None,
) -> SteppedModel:
    """Builds an untrained network: the task's inputs, a model and the task's head.

    A user's whole network has its own outputs; `from_logits` says whether the
    loss takes them as logits; None: this is unknown.
    """
    model = _network(task, options, precision, from_logits)
    if options.fused_batch_norm and not batch_normalization.fuse(model):
        raise UsageError(
            f"--model.fused-batch-norm: {options.name} has no"
            " keras.layers.BatchNormalization"
        )
    return model


def _network(
    task: Task,
    options: config.ModelConfig,
    precision: str,
    from_logits: bool | None,
) -> SteppedModel:
    with policy_scope(precision):
        inputs = task.input.inputs()
        if registry.builds_whole_model(options.name):
            return _user_network(task, options, inputs, from_logits)
        try:
            features = _features(options, inputs, task)
            for tensor in keras.tree.flatten(features):
                flag = f"--model.name {options.name}"
                require_kind(tensor, keras.KerasTensor, flag, "a tensor of features")
                _refuse_probabilities(tensor, options.name)
            outputs = task.head(features, inputs)
        except (TypeError, ValueError) as error:
            if not options.options:  # a bug here or in the user's model
                raise
            items = options.options.items()
            words = " ".join(f"{name}={value}" for name, value in items)
            raise UsageError(
                f"--model.options {words} does not fit: {reason(error)}"
            ) from error
        return SteppedModel(inputs, outputs, task=task, name="network")


def _features(options: config.ModelConfig, inputs: Any, task: Task) -> Any:
    """Calls a function from tensors, and perhaps metadata of the task, to features.

    Raises UsageError for one that expects a shape, or returns a whole model.
    """
    why = "returns a keras.Model"
    try:
        arguments = [task.input.model_inputs(inputs)]
        if registry.find("models", options.name).takes_metadata:
            arguments.append(task.metadata)
        features = registry.call("models", options.name, options.options, *arguments)
        if not isinstance(features, keras.Model):
            return features
    except Exception as error:
        if "KerasTensor" not in str(error):
            raise
        why = f"cannot use a KerasTensor: {reason(error)}"
    raise UsageError(
        f"--model.name {options.name} {why}; a function of one argument takes a tensor"
        " and returns features: to return a keras.Model, write a function"
        " (input_shape, classes)"
    )


def _user_network(
    task: Task, options: config.ModelConfig, inputs: Any, from_logits: bool | None
) -> SteppedModel:
    """Builds the network of a user, with its own outputs."""
    shape: Any
    if isinstance(inputs, dict):
        shape = {name: tuple(tensor.shape[1:]) for name, tensor in inputs.items()}
    else:
        shape = tuple(inputs.shape[1:])
    classes = task.target.output.shape[-1] if task.target.output else 1
    name = options.name
    try:
        original = registry.call("models", name, options.options, shape, classes)
    except Exception as error:
        error.add_note(f"raised by the model {name}")
        raise
    require_kind(original, keras.Model, f"--model.name {name}", "a keras.Model")
    gray_axis = task.metadata.get("gray_axis", False)
    copy = user_model.rebuild(original, shape, gray_axis)
    if copy is original and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise UsageError(
            f"--model.name {name}: a subclassed model runs on one replica; set"
            " --runtime.replicas 1, or pass a function (input_shape, classes) that"
            " returns it"
        )
    return of_user_network(original, copy, inputs, task, from_logits)


def of_user_network(
    original: keras.Model,
    copy: keras.Model,
    inputs: Any,
    task: Task,
    from_logits: bool | None,
) -> SteppedModel:
    """The network of a run with a user's network; see `user_model.connect`."""
    outputs, user = user_model.connect(original, copy, inputs, task, from_logits)
    model = SteppedModel(
        inputs,
        outputs,
        task=task,
        user=user,
        from_logits=from_logits,
    )
    for layer in all_layers(model):
        # Such as a TextVectorization: with several replicas, Keras's `fit` calls a
        # model whose layers are not all built, with a whole batch.
        layer.built = True
    return model


def _refuse_probabilities(tensor: keras.KerasTensor, model: str) -> None:
    """Raises UsageError if a model ends in probabilities instead of features."""
    operation = user_model.last_operation(tensor)
    activation = user_model.activation_of(operation)
    is_single = activation == "sigmoid" and tensor.shape[-1] == 1
    if is_single or activation in ("softmax", "log_softmax"):
        raise UsageError(
            f"--model.name {model}: its features end in the {activation} of layer"
            f" {operation.name!r}, but the task adds the output layer itself; return"
            " the features before the classifier (for keras.applications:"
            ' include_top=False, pooling="avg")'
        )


def build(
    task: Task,
    settings: config.Config,
    machine: environment.Machine,
    train: Batches,
    augment_in_step: bool = True,
    accumulate: int | None = None,
    class_weight: Mapping[str, float] = {},
) -> SteppedModel:
    """Builds a network with its optimizer and step, ready for an engine.

    The engine runs under `machine.strategy`.

    Args:
        task: The problem to solve.
        settings: The sections model, data (augmentations), train and runtime are used.
        machine: Strategy, precision of the layers, XLA.
        train: Batches without augmentation, even if the host will augment them, so that
            layers that adapt to data see the same examples either way. Their number of
            steps is the length of the schedule.
        augment_in_step: False if the training batches are already augmented.
        accumulate: Micro-batches per step, if `settings.train.accumulate` ran out of
            memory; None: `settings.train.accumulate`.
        class_weight: The weights of the classes, which `settings.train.class_weight`
            need not have as numbers.

    Raises:
        UsageError: An option does not fit the model or the images.
    """
    settings.require_equal_parts(machine.replicas)
    accumulate = accumulate or settings.train.accumulate
    # The same initial weights, whatever was built in this process before.
    seed = settings.runtime.seed
    keras.utils.set_random_seed(seed)
    with machine.strategy.scope():
        from_logits = takes_logits(task, settings.train)
        model = network(task, settings.model, machine.precision, from_logits)
        note = ""
        if model.user is not None:
            user_model.require_equal_outputs(model.user, task, train)
            note = model.user.note
            if settings.train.loss is None and model.user.loss is not None:
                usual = user_model.call_of(model.user.loss)
                note += f", for which the loss is {usual}"
        layers = all_layers(model)
        if settings.train.synchronized_batch_norm:
            for layer in layers:
                if isinstance(layer, keras.layers.BatchNormalization):
                    layer.synchronized = True
        # Before any layer is frozen: the optimizer also needs state for layers unfrozen
        # later.
        variables = list(model.trainable_variables)
        not_trained = model.non_trainable_variables
        statistics = [v for v in not_trained if "float" in v.dtype]
        random_states = [
            v for v in not_trained if v.path.endswith("seed_generator_state")
        ]
        _adapt(model, task, train)
        paced = settings.runtime.time_limit is not None
        rate = build_rate(settings.train, train.last_step, paced)
        optimizer = build_optimizer(settings.train, rate, variables)
        note = _load_and_freeze(model, layers, settings) or note
        scaled = machine.precision == "mixed_float16"
        # XLA cannot compile a forward pass in which replicas communicate.
        xla = machine.xla and not settings.train.synchronized_batch_norm
        added_metrics = _metrics(model, settings.train)
        metrics = all_metrics(task, added_metrics)
        update = UpdateRule(
            optimizer,
            variables,
            statistics,
            settings.train,
            scaled,
            rate,
            metrics,
            layer_rates(layers, settings.train.layer_rates),
            branchless=xla,
        )
        operations = settings.data.augment if augment_in_step else {}
        model.step = Step(
            task,
            settings,
            update,
            random_states,
            class_weight=class_weight,
            accumulate=accumulate,
            augmenter=Augmenter(operations, seed, task.target.spatial_fields),
            loss=_loss(task, settings.train),
            metrics=metrics,
            added_metrics=added_metrics,
            note=note,
            xla=xla,
        )
        # Keras's automatic loss scaling is wrong with several replicas.
        model.compile(optimizer=optimizer, jit_compile=False, auto_scale_loss=False)
    with explain_decode_errors(train, train.first_step, 1):
        part = ReplicaPart(total=machine.replicas)
        augmenter = Augmenter(settings.data.augment, seed, task.target.spatial_fields)
        fields = augmenter.try_out(train, accumulate, part)
        if "share" in fields:
            _require_shares(task, settings.train)
        _try_out(model, settings.train, train)
    return model


def _load_and_freeze(
    model: SteppedModel, layers: list[keras.Layer], settings: config.Config
) -> str:
    """Loads the initial weights, and freezes layers; returns a note on the weights."""
    note = ""
    if settings.model.weights is not None:
        note = pretrained.load(model, settings.model.weights)
    if not model.trainable_variables:
        raise UsageError(
            f"--model.name {settings.model.name}: it has no trainable weights"
        )
    freeze(model, layers, settings.train.freeze)
    return note


def _metadata_of_outputs(task: Task) -> dict[str, Any]:
    """What losses and metrics are created from: metadata, and the outputs."""
    metadata = {**task.metadata}
    if task.target.output is not None:
        metadata["output_shape"] = task.target.output.shape
        metadata["activation"] = task.target.output.activation
    return metadata


def _user_loss(task: Task, options: config.TrainConfig) -> Any:
    """The loss of the options: OutputLosses, a UserLoss, or a loss of y and outputs."""
    if options.loss is None:
        return None
    value = getattr(options.loss, "value", None)
    if isinstance(value, OutputLosses):
        return value
    metadata = _metadata_of_outputs(task)
    return registry.call("losses", options.loss, options.loss_options, metadata)


def _require_shares(task: Task, options: config.TrainConfig) -> None:
    """Raises UsageError if the loss cannot take the shares of two classes."""
    loss = _user_loss(task, options)
    if not isinstance(loss, UserLoss):
        return
    labels = user_loss.labels_of(loss.loss)
    is_one_hot = len(task.metadata.get("label_shape", ())) and (
        task.metadata["label_shape"][0] > 1
    )
    if labels == "index" or (not labels and not is_one_hot):
        raise UsageError(
            f"the loss {loss.name} takes one class for each example, but mixup and"
            " cutmix mix two; use keras.losses.CategoricalCrossentropy, or no loss=..."
        )


def takes_logits(task: Task, options: config.TrainConfig) -> bool | None:
    """Whether the loss for a user's network takes logits; None if there is none, or it
    does not specify it.
    """
    if not task.user_outputs:
        return None
    loss = _user_loss(task, options)
    return loss.from_logits if isinstance(loss, UserLoss) else None


def _loss(
    task: Task, options: config.TrainConfig
) -> Callable[[Any, Any], tf.Tensor] | None:
    function = _user_loss(task, options)
    if function is None:
        return None
    if isinstance(function, OutputLosses):
        return user_loss.of_outputs(function, task)
    if isinstance(function, UserLoss):
        output = task.user_outputs[0] if task.user_outputs else ""
        return function.of(task, output)

    def loss(y: Any, outputs: Any) -> tf.Tensor:
        try:
            losses = tf.convert_to_tensor(function(y, task.target_outputs(outputs)))
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise UsageError(
                f"--train.loss {options.loss} does not fit the task: {reason(error)}"
            ) from error
        if losses.shape.rank != 1:
            raise UsageError(
                f"--train.loss {options.loss} must return one loss per example, of"
                f" shape (batch,); got {losses.shape}"
            )
        return tf.cast(losses, tf.float32)

    return loss


def _metrics(
    model: SteppedModel, options: config.TrainConfig
) -> list[keras.metrics.Metric]:
    """Builds the metrics of the options under unique names, except the task's."""
    task = model.task
    metadata = _metadata_of_outputs(task)
    built_in = {metric.name for metric in task.target.metrics()}
    taken = {*_COLUMNS, *built_in}
    taken |= {f"val_{name}" for name in taken}
    metrics = []
    for word, settings in options.metrics.items():
        if word.lower() in built_in:
            continue
        metric = _metric(word, settings, model, metadata)
        kind = keras.metrics.Metric
        require_kind(metric, kind, f"--train.metrics: {word}", "a Keras metric")
        metric.name = user_metrics.unique_name(metric.name, taken)
        taken |= {metric.name, f"val_{metric.name}"}
        metrics.append(metric)
    return metrics


def _metric(
    word: str, settings: Mapping[str, Any], model: SteppedModel, metadata: Any
) -> Any:
    """A metric of the options, for y and outputs of a step."""
    task = model.task
    value = getattr(word, "value", None)
    if isinstance(value, user_metrics.OutputMetric):
        shape = tuple(model.output[value.output].shape[1:])
        return user_metrics.of_output(value, task, shape)
    outputs = model.output
    output = ""
    if task.user_outputs:
        output = task.user_outputs[0]
        outputs = model.output[output]
        if len(task.user_outputs) > 1:
            raise UsageError(
                f"--train.metrics {word}: the model has the outputs"
                f" {', '.join(task.user_outputs)}; pass metrics per output in Python"
            )
    if not isinstance(outputs, keras.KerasTensor):
        outputs = keras.tree.flatten(outputs)[0]
    shape = tuple(outputs.shape[1:])
    # Without classes, a word is what `keras.Model.compile` takes it for.
    is_accuracy = word.lower() in ("accuracy", "acc")
    is_of_keras = output != user_model.USER or is_accuracy
    if output and value is None and is_of_keras and "class_names" not in metadata:
        return user_metrics.create(word, task, shape, output=output)
    if functions.keras_class("metrics", word):
        settings = {"name": word, **settings}
    metric = registry.call("metrics", word, settings, metadata)
    if isinstance(metric, functools.partial):
        return metric(task, shape, output=output)
    if task.user_outputs and isinstance(metric, keras.metrics.Metric):
        return TaskMetric(metric)
    return metric


def _is_user_code(kind: str, word: str) -> bool:
    """Whether a loss or metric is neither of Keras nor of this package."""
    value = getattr(word, "value", None)
    if value is not None:
        return not type(value).__module__.startswith("keras.")
    function = registry.find(kind, word)
    return not function.is_registered and not functions.keras_class(kind, word)


def _try_out(model: SteppedModel, options: config.TrainConfig, train: Batches) -> None:
    """Calls the user's loss and metrics on a few training examples, before training.

    Raises UsageError if they do not fit y and the outputs, or if a metric ignores
    weights.
    """
    step: Any = model.step
    words = [("losses", options.loss)] if options.loss else []
    words += [("metrics", word) for word in options.metrics]
    is_own = type(model.task.target).__module__.startswith("pipeline.")
    has_own_loss = any(_is_user_code(*word) for word in words)
    if is_own and not model.task.user_outputs and not has_own_loss:
        return
    first = train.gather(next(iter(train.dataset(0))))
    batch = {name: values[:_TRIED] for name, values in first.items()}
    y, outputs, _ = forward(model.task, model, batch)
    if model.losses:
        say(
            "note",
            "add_loss and regularizers count in the training, but not in the losses"
            " that are shown",
        )
    losses = step.loss(y, outputs)
    count = len(batch["id"])
    if losses.shape != (count,):
        raise UsageError(
            "the loss must return one number for each example, of shape (batch,); got"
            f" {tuple(losses.shape)} for {count} examples"
        )
    for metric in step.added_metrics:
        user_metrics.require_weights(metric, y, outputs)


def _adapt(model: SteppedModel, task: Task, train: Batches) -> None:
    """Calls `adapt` of each layer that needs it with the first training examples."""
    steps = math.ceil(ADAPT_EXAMPLES / train.batch_size)
    has_classes = (
        task.target.output is not None and task.target.output.activation != "linear"
    )
    for layer in model.layers:
        if has_classes and hasattr(layer, "adapt_to_classes"):
            layer.adapt_to_classes(layer, _inputs_and_targets(model, layer, train))
        if not _needs_adapting(layer):
            continue
        inputs_of_layer = keras.Model(model.inputs, layer.input)
        values = []
        for batch in train.dataset(0).take(steps):
            batch = train.gather(batch)
            inputs, _, _ = task.step_inputs(batch, batch["id"])
            values.append(inputs_of_layer(keras.tree.flatten(inputs)).numpy())
        layer.adapt(np.concatenate(values)[:ADAPT_EXAMPLES])


def _inputs_and_targets(
    model: SteppedModel, layer: keras.Layer, train: Batches
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the inputs of a layer and y for each batch of an epoch."""
    inputs_of_layer = keras.Model(model.inputs, layer.input)
    task = model.task
    for batch in train.dataset(0).take(train.steps_per_epoch):
        batch = train.gather(batch)
        inputs, y, _ = task.step_inputs(batch, batch["id"])
        yield inputs_of_layer(keras.tree.flatten(inputs)).numpy(), np.asarray(y)


# What a layer of Keras has been created with, so that it needs no data.
_ADAPTED_BY = ("input_mean", "input_vocabulary", "bin_boundaries")


def _needs_adapting(layer: keras.Layer) -> bool:
    if not hasattr(layer, "adapt"):
        return False
    return all(getattr(layer, name, None) is None for name in _ADAPTED_BY)


def copy_network(
    model: SteppedModel,
    task: Task,
    options: config.ModelConfig,
    precision: str = "float32",
) -> SteppedModel:
    """Builds the same network and weights with another Keras dtype policy."""
    copy = network(task, options, precision, model.from_logits)
    pretrained.set_weights(copy, model.get_weights())
    loss = model.step.loss if model.step else model.user_loss
    return copy.with_losses(loss, model.user_metrics)
