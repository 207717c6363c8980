"""Builds the network of a task, and compiles it with its training step."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config import config, functions, own_outputs, registry
from pipeline.contracts import Batches, ReplicaPart, Task
from pipeline.data.augmentation import Augmenter
from pipeline.layers import batch_normalization
from pipeline.runtime import environment
from pipeline.runtime.dtype_policy import policy_scope
from pipeline.training import pretrained
from pipeline.training.distributed import name_undecodable_examples
from pipeline.training.freezing import freeze
from pipeline.training.optim.build import build_optimizer
from pipeline.training.optim.gradient_update import Update
from pipeline.training.optim.learning_rate import build_rate, layer_rates
from pipeline.training.own_keras import by_output, head
from pipeline.training.own_keras import metric as own_metric
from pipeline.training.own_keras import network as own_network
from pipeline.training.train_step import Step, SteppedModel
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


def network(task: Task, options: config.ModelConfig, precision: str) -> SteppedModel:
    """Builds an untrained network: the task's inputs, a model and the task's head."""
    model = _network(task, options, precision)
    if options.fused_batch_norm and not batch_normalization.fuse(model):
        raise UsageError(
            f"--model.fused-batch-norm: {options.name} has no"
            " keras.layers.BatchNormalization"
        )
    return model


def _network(task: Task, options: config.ModelConfig, precision: str) -> SteppedModel:
    with policy_scope(precision):
        inputs = task.inputs()
        if registry.builds_whole_model(options.name):
            return _user_network(task, options, inputs)
        try:
            features = _features(options, inputs, task)
            for tensor in keras.tree.flatten(features):
                flag = f"--model.name {options.name}"
                require_kind(tensor, keras.KerasTensor, flag, "a tensor of features")
                if not registry.find("models", options.name).is_registered:
                    _refuse_probabilities(inputs, tensor, options.name)
            outputs = task.head(features, inputs)
        except (TypeError, ValueError) as error:
            if not options.options:  # a bug here or in the user's model
                raise
            items = options.options.items()
            words = " ".join(f"{name}={value}" for name, value in items)
            raise UsageError(
                f"--model.options {words} does not fit: {reason(error)}"
            ) from error
        model = SteppedModel(inputs, outputs, name="network")
        model.task = task
        return model


def _features(options: config.ModelConfig, inputs: Any, task: Task) -> Any:
    """Calls a function from tensors, and perhaps metadata of the task, to features.

    Raises UsageError for one that expects a shape, or returns a whole model.
    """
    why = "returns a keras.Model"
    try:
        arguments = [task.model_inputs(inputs)]
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


def _user_network(task: Task, options: config.ModelConfig, inputs: Any) -> SteppedModel:
    """Builds the network of a user, with logits as outputs."""
    shape: Any
    if isinstance(inputs, dict):
        shape = {name: tuple(tensor.shape[1:]) for name, tensor in inputs.items()}
    else:
        shape = tuple(inputs.shape[1:])
    classes = task.output.shape[-1] if task.output else 1
    name = options.name
    try:
        original = registry.call("models", name, options.options, shape, classes)
    except Exception as error:
        error.add_note(f"raised by the model {name}")
        raise
    require_kind(original, keras.Model, f"--model.name {name}", "a keras.Model")
    copy = own_network.rebuild(original, shape)
    outputs, output_kind, note = own_network.outputs(copy, inputs, task)
    model = SteppedModel(inputs, outputs)
    model.task = task
    model.output_kind = output_kind
    model.note = note
    model.is_user_network = True
    for layer in model._flatten_layers():
        # Such as a TextVectorization: with several replicas, Keras's `fit` calls a
        # model whose layers are not all built, with a whole batch.
        layer.built = True
    if note == own_network.NOTES.get(output_kind):
        model.removed_activation = output_kind
    model.copy_weights_to_original = functools.partial(
        own_network.copy_weights_to_original, original, copy, shape
    )
    if output_kind != "none" and copy is not original:
        own_network.require_equal_answers(original, model, output_kind, task)
    if copy is original and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise UsageError(
            f"--model.name {name}: a subclassed model runs on one replica; set"
            " --runtime.replicas 1, or pass a function (input_shape, classes) that"
            " returns it"
        )
    return model


def _refuse_probabilities(inputs: Any, tensor: keras.KerasTensor, model: str) -> None:
    """Raises UsageError if a model ends in probabilities instead of features."""
    if not isinstance(inputs, keras.KerasTensor) or None in inputs.shape[1:]:
        return
    if "int" in inputs.dtype:  # token ids, of which only some exist
        return
    values = head.probe_inputs(tuple(inputs.shape[1:]))
    features = keras.Model(inputs, tensor)(values, training=False)
    kind = head.kind_of_answers(keras.ops.convert_to_numpy(features))
    if kind != "linear":
        layer, _, index = tensor._keras_history
        while isinstance(layer, keras.Model) and getattr(layer, "outputs", None):
            layer, _, index = keras.tree.flatten(layer.outputs)[index]._keras_history
        raise UsageError(
            f"--model.name {model}: its features end in the {kind} of layer"
            f" {layer.name!r}, but the task adds the output layer itself; return the"
            " features before the classifier (for keras.applications:"
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
        model = network(task, settings.model, machine.precision)
        layers = list(model._flatten_layers(include_self=False))
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
        _load_and_freeze(model, layers, settings)
        scaled = machine.precision == "mixed_float16"
        # XLA cannot compile a forward pass in which replicas communicate.
        xla = machine.xla and not settings.train.synchronized_batch_norm
        update = Update(
            optimizer,
            variables,
            statistics,
            settings.train,
            scaled,
            rate,
            branchless=xla,
        )
        update.factors = layer_rates(layers, settings.train.layer_rates)
        operations = settings.data.augment if augment_in_step else {}
        model.step = Step(
            task,
            settings,
            update,
            random_states,
            class_weight=class_weight,
            accumulate=accumulate,
            augmenter=Augmenter(operations, seed, task.spatial_fields),
            loss=_loss(task, settings.train, model.output_kind),
            metrics=_metrics(model, settings.train),
            xla=xla,
        )
        # Keras's automatic loss scaling is wrong with several replicas.
        model.compile(optimizer=optimizer, jit_compile=False, auto_scale_loss=False)
    with name_undecodable_examples(train, train.first_step, 1):
        part = ReplicaPart(total=machine.replicas)
        augmenter = Augmenter(settings.data.augment, seed, task.spatial_fields)
        augmenter.try_out(train, accumulate, part)
        if task.own_outputs:
            by_output.try_out(model, train)
    return model


def _load_and_freeze(
    model: SteppedModel, layers: list[keras.Layer], settings: config.Config
) -> None:
    """Loads the initial weights, and freezes layers."""
    if settings.model.weights is not None:
        model.note = pretrained.load(model, settings.model.weights)
    if not model.trainable_variables:
        raise UsageError(
            f"--model.name {settings.model.name}: it has no trainable weights"
        )
    freeze(model, layers, settings.train.freeze)


def _loss_metadata(task: Task, output_kind: str) -> dict[str, Any]:
    """What losses and metrics are created from: metadata, and the outputs."""
    metadata = {**task.metadata, "output_kind": output_kind}
    if task.output is not None:
        metadata["output_shape"] = task.output.shape
        metadata["activation"] = task.output.activation
    return metadata


def _loss(
    task: Task, options: config.TrainConfig, output_kind: str
) -> Callable[[Any, Any], tf.Tensor] | None:
    if options.loss is None:
        return None
    if task.own_outputs:
        registry.find("losses", options.loss)
        losses = getattr(options.loss, "value", options.loss)
        return by_output.loss(losses, task.own_outputs)
    metadata = _loss_metadata(task, output_kind)
    function = registry.call("losses", options.loss, options.loss_options, metadata)

    def loss(y: Any, outputs: Any) -> tf.Tensor:
        try:
            losses = tf.convert_to_tensor(function(y, outputs))
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
    metadata = _loss_metadata(task, model.output_kind)
    built_in = {metric.name: metric for metric in task.metrics()}
    taken = {*_COLUMNS, *built_in}
    taken |= {f"val_{name}" for name in taken}
    metrics = []
    for word, settings in options.metrics.items():
        if task.own_outputs:
            metric = _metric_of_output(word, model)
        else:
            if functions.keras_class("metrics", word):
                settings = {"name": word, **settings}
            metric = registry.call("metrics", word, settings, metadata)
        kind = keras.metrics.Metric
        require_kind(metric, kind, f"--train.metrics: {word}", "a Keras metric")
        same_name = built_in.get(metric.name)
        if same_name and own_metric.is_same(metric, same_name, metadata):
            continue
        metric.name = own_metric.unique_name(metric.name, taken)
        taken |= {metric.name, f"val_{metric.name}"}
        metrics.append(metric)
    return metrics


def _metric_of_output(word: str, model: SteppedModel) -> keras.metrics.Metric:
    """Builds a metric of `fit`, or one of Keras by its name for the only output."""
    registry.find("metrics", word)
    task = model.task
    metric = getattr(word, "value", None)
    if metric is None:
        if len(task.own_outputs) > 1:
            raise UsageError(
                f"--train.metrics {word}: the model has the outputs"
                f" {', '.join(task.own_outputs)}; give metrics by output in Python"
            )
        metric = own_outputs.OutputMetric(task.own_outputs[0], word)
    return by_output.metric(metric, model.output[metric.output])


def _adapt(model: SteppedModel, task: Task, train: Batches) -> None:
    """Calls `adapt` of each layer that needs it with the first training examples."""
    steps = math.ceil(ADAPT_EXAMPLES / train.batch_size)
    has_classes = task.output is not None and task.output.activation != "linear"
    for layer in model.layers:
        if has_classes and hasattr(layer, "adapt_to_classes"):
            layer.adapt_to_classes(layer, _inputs_and_targets(model, layer, train))
        if not _needs_adapting(layer):
            continue
        inputs_of_layer = keras.Model(model.inputs, layer.input)
        values = []
        for batch in train.dataset(0).take(steps):
            batch = task.prepare(train.gather(batch))
            inputs, _, _ = task.target(batch, batch["id"])
            values.append(inputs_of_layer(keras.tree.flatten(inputs)).numpy())
        layer.adapt(np.concatenate(values)[:ADAPT_EXAMPLES])


def _inputs_and_targets(
    model: SteppedModel, layer: keras.Layer, train: Batches
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the inputs of a layer and y for each batch of an epoch."""
    inputs_of_layer = keras.Model(model.inputs, layer.input)
    task = model.task
    for batch in train.dataset(0).take(train.steps_per_epoch):
        batch = task.prepare(train.gather(batch))
        inputs, y, _ = task.target(batch, batch["id"])
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
    copy = network(task, options, precision)
    pretrained.set_weights(copy, model.get_weights())
    copy.own_loss = model.step.loss if model.step else model.own_loss
    return copy
