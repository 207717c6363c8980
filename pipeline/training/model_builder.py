"""Task, model and optimizer put together: a compiled Keras model whose step is ours."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config import config, registry
from pipeline.contracts import Batches, Share, Task
from pipeline.data.augmentation import Augmenter
from pipeline.runtime import environment
from pipeline.training.distributed import explained
from pipeline.training.optim.gradient_update import Update
from pipeline.training.optim.learning_rate import Adjusted
from pipeline.training.train_step import Settings, Step
from pipeline.utils.errors import UsageError, suggest

# Layers that leave values as they are outside of training.
_PASSING = (keras.layers.Dropout, keras.layers.ActivityRegularization)
# Of airbench, arXiv 2404.00498, section 3.2; the eigenvectors of image patches need no more.
ADAPT_EXAMPLES = 5000


@keras.saving.register_keras_serializable("pipeline")
class SteppedModel(keras.Model):
    """A functional model that is trained with the shared step.

    The engines call it through `distributed.Calls`; Keras's own `evaluate`, which some call on the
    model of a run, through `test_step`.
    """

    step: Step | None = None
    frozen: tuple[str, ...] = ()
    """Names of the layers that are not trained, or not yet."""

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return self.step.metrics if self.step else super().metrics

    @property
    def state(self) -> dict[str, list[keras.Variable]]:
        """Everything that training changes: weights, states of random layers, optimizer, update."""
        return {
            "model": self.variables,
            "optimizer": self.optimizer.variables,
            "update": self.step.update.variables,
        }

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        self.step.train(self, _ticket(data))
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        self.step.evaluate(self, _ticket(data))
        return {metric.name: metric.result() for metric in self.metrics}


def _ticket(data: Any) -> Any:
    if isinstance(data, tuple):  # what Keras makes of fit(x, y)
        raise UsageError("this model learns from pipeline's batches: give arrays to pipeline.fit")
    return data


def network(task: Task, options: config.Model, precision: str) -> SteppedModel:
    """An untrained network: the task's inputs, a model of the registry, the task's head."""
    with environment.policy(precision):
        inputs = task.inputs()
        try:
            found = registry.call("models", options.name, options.options, inputs)
            _refuse_classifier(found, options.name)
            outputs = task.head(found, inputs)
        except (TypeError, ValueError) as error:
            if not options.options:
                raise  # then it is our fault, or that of the user's own model
            reason = str(error).strip().partition("\n")[0]
            words = " ".join(f"{name}={value}" for name, value in options.options.items())
            raise UsageError(f"--model.options {words} does not fit: {reason}") from error
        return SteppedModel(inputs, outputs, name=options.name.rpartition(".")[2])


def _refuse_classifier(features: Any, model: str) -> None:
    """Raises UsageError for features that are probabilities: the head would be a second one."""
    for tensor in keras.tree.flatten(features):
        path, kind = _last_operation(tensor)
        # A hidden layer of several sigmoids is one of features, a single sigmoid is an answer.
        if "Softmax" in kind or (kind == "Sigmoid" and tensor.shape[-1] == 1):
            raise UsageError(
                f"--model.name {model}: its features end in the {kind.lower()} of layer {path!r}, "
                "but the task adds the output layer itself; return the features before the "
                'classifier: include_top=False, pooling="avg" in keras.applications, otherwise '
                "keras.Model(model.inputs, layer.output)(x) with the layer before the last Dense"
            )


def _last_operation(tensor: Any) -> tuple[str, str]:
    """What a symbolic tensor comes from, but for dropout: the path of the layer, within nested
    models; the type of TensorFlow's operation in it, whatever Keras calls the layer. Empty for
    inputs."""
    operation, node, index = getattr(tensor, "_keras_history", (None, 0, 0))
    path = []
    while operation is not None:
        if isinstance(operation, _PASSING):
            (before,) = operation._inbound_nodes[node].input_tensors
            operation, node, index = before._keras_history
            continue
        path.append(operation.name)
        if not isinstance(operation, keras.Model) or not getattr(operation, "outputs", None):
            break
        operation, node, index = operation.outputs[index]._keras_history
    if operation is None or not operation._inbound_nodes[node].input_tensors:
        return "", ""
    call = operation._inbound_nodes[node]

    def traced(*values: tf.Tensor) -> list[tf.Tensor]:
        given = {id(t): value for t, value in zip(call.input_tensors, values, strict=True)}
        args, kwargs = call.arguments.fill_in(given)
        with keras.StatelessScope():
            return keras.tree.flatten(operation(*args, **kwargs))

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in call.input_tensors]
    graph = tf.function(traced, autograph=False).get_concrete_function(*specs).graph
    last = graph.outputs[index].op
    while last.type in ("Identity", "Cast", "Reshape", "Squeeze", "Transpose"):
        last = last.inputs[0].op
    return "/".join(path), last.type


def build(
    task: Task,
    settings: config.Config,
    machine: environment.Runtime,
    train: Batches,
    augment_in_step: bool = True,
) -> SteppedModel:
    """A network with its optimizer and step, ready for an engine; made for `machine.strategy`.

    Args:
        task: What the problem is.
        settings: Sections model, data (augmentations), train and runtime are used.
        machine: Strategy, precision of the layers, XLA.
        train: Their steps are the schedule's; the shape of a replica's micro-batch is tried on the
            augmentations. As they are without these, even if `augmentation.on_host` will add them:
            layers that adapt to the data see the same either way.
        augment_in_step: False where the tickets of training come augmented.

    Raises:
        UsageError: An option does not fit the model or the images.
    """
    settings.require_equal_parts(machine.replicas)
    # The same weights whatever was built in this process before.
    keras.utils.set_random_seed(settings.runtime.seed)
    with machine.strategy.scope():
        model = network(task, settings.model, machine.precision)
        layers = list(model._flatten_layers(include_self=False))
        _synchronize(layers, settings.train)
        # Before any layer is frozen: what is trained later needs a place in the optimizer too.
        variables = list(model.trainable_variables)
        floats = [v for v in model.non_trainable_variables if "float" in v.dtype]
        random_states = [
            v for v in model.non_trainable_variables if v.path.endswith("seed_generator_state")
        ]
        _adapt(model, task, train)
        rate = _rate(settings.train, train, paced=settings.runtime.time_limit is not None)
        optimizer = _optimizer(settings.train, rate, variables)
        model.frozen = _freeze(layers, settings.train)
        if not model.trainable_variables:
            raise UsageError("--train.freeze: all layers are frozen; nothing is left to train")
        scaled = machine.precision == "mixed_float16"
        model.step = Step(
            task,
            _step_settings(task, settings, machine.xla, augment_in_step),
            Update(optimizer, variables, floats, settings.train, scaled, rate),
            random_states,
        )
        # Keras's automatic loss scaling is wrong under several replicas.
        model.compile(optimizer=optimizer, jit_compile=False, auto_scale_loss=False)
    _try_augmentations(settings, machine.replicas, train)
    return model


def _step_settings(task: Task, settings: config.Config, xla: bool, augment: bool) -> Settings:
    return Settings(
        augmentations=settings.data.augment if augment else {},
        seed=settings.runtime.seed,
        accumulate=settings.train.accumulate,
        l2=settings.train.l2,
        label_smoothing=settings.train.label_smoothing,
        class_weight=settings.train.class_weight,
        loss=_loss(task, settings.train),
        metrics=_metrics(task, settings.train),
        # Under XLA no layer can meet the other replicas in its forward pass.
        xla=xla and not settings.train.synchronized_batch_norm,
    )


def _try_augmentations(settings: config.Config, replicas: int, train: Batches) -> None:
    """Traces them on the shapes of a micro-batch, so that one that does not fit is told now.

    The user's own, which no test of ours knows, also get the first batch.
    """
    augment = Augmenter(settings.data.augment, settings.runtime.seed)
    pieces = settings.train.accumulate

    def piece(ticket: Any) -> Any:
        return train.materialize(tf.nest.map_structure(lambda t: t[: t.shape[0] // pieces], ticket))

    parts = train.tickets(train.first_step, Share(of=replicas))
    # Without autograph, which would wrap a UsageError.
    traced = tf.function(lambda ticket: augment(piece(ticket)), autograph=False)
    traced.get_concrete_function(parts.element_spec)
    if any("." in name for name in settings.data.augment):
        with explained(train, train.first_step, 1):
            (ticket,) = parts.take(1)
            augment.require_range(piece(ticket))


def _rate(options: config.Train, train: Batches, paced: bool) -> Adjusted:
    rate = options.learning_rate
    if options.learning_rate_batch_size:
        rate *= options.batch_size / options.learning_rate_batch_size
    schedule = registry.call(
        "schedules", options.schedule, options.schedule_options, rate, train.last_step
    )
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule | float):
        raise UsageError(f"--train.schedule {options.schedule} gives no schedule but {schedule!r}")
    return Adjusted(schedule, paced)


def _optimizer(
    options: config.Train, rate: Adjusted, variables: list[keras.Variable]
) -> keras.optimizers.Optimizer:
    optimizer = registry.call("optimizers", options.optimizer, options.optimizer_options, rate)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"--train.optimizer {options.optimizer} gives no Keras optimizer but {optimizer!r}"
        )
    if options.weight_decay is not None:
        optimizer.weight_decay = options.weight_decay
    # Biases, scales and offsets; they are vectors.
    optimizer.exclude_from_weight_decay(var_list=[v for v in variables if len(v.shape) < 2])
    return optimizer


def _loss(task: Task, options: config.Train) -> Callable[[Any, Any], tf.Tensor] | None:
    if options.loss is None:
        return None
    found = _of_task("losses", options.loss, options.loss_options, task)

    def loss(y: Any, outputs: Any) -> tf.Tensor:
        try:
            losses = tf.convert_to_tensor(found(y, outputs))
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            text = str(error).strip().partition("\n")[0]
            raise UsageError(
                f"--train.loss {options.loss} does not suit what this task learns: {text}"
            ) from error
        if losses.shape.rank != 1:
            raise UsageError(
                f"--train.loss {options.loss} must return one loss per example, of shape (batch,); "
                f"it returns {losses.shape}"
            )
        return tf.cast(losses, tf.float32)

    return loss


def _of_task(kind: str, name: str, options: Mapping[str, Any], task: Task) -> Any:
    """A loss or metric made for a task; UsageError where it needs other metadata."""
    try:
        return registry.call(kind, name, options, task.metadata)
    except KeyError as error:
        there = ", ".join(task.metadata)
        raise UsageError(
            f"--train.{'loss' if kind == 'losses' else kind} {name} needs {error} of the task, "
            f"which has {there}; choose another one, or another --task"
        ) from error


def _metrics(task: Task, options: config.Train) -> tuple[keras.metrics.Metric, ...]:
    names = options.metrics.items()
    found = [_of_task("metrics", name, own, task) for name, own in names]
    for name, metric in zip(options.metrics, found, strict=True):
        if not isinstance(metric, keras.metrics.Metric):
            raise UsageError(f"--train.metrics: {name} returns {metric!r}, not a Keras metric")
    return tuple(found)


def _adapt(model: SteppedModel, task: Task, train: Batches) -> None:
    """Shows the first training examples to layers that learn from data before training."""
    for layer in model.layers:
        if hasattr(layer, "adapt"):
            before = keras.Model(model.inputs, layer.input)
            tickets = train.tickets(0).take(-(-ADAPT_EXAMPLES // train.batch_size))
            batches = (task.prepare(train.materialize(ticket)) for ticket in tickets)
            seen = [before(task.target(batch, batch["id"])[0]).numpy() for batch in batches]
            layer.adapt(np.concatenate(seen)[:ADAPT_EXAMPLES])


def _synchronize(layers: list[keras.Layer], options: config.Train) -> None:
    if options.synchronized_batch_norm:
        for layer in layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.synchronized = True


def _freeze(layers: list[keras.Layer], options: config.Train) -> tuple[str, ...]:
    frozen = []
    for prefix in options.freeze:
        found = [layer for layer in layers if layer.name.startswith(prefix)]
        if not found:
            names = [layer.name for layer in layers if layer.variables]
            raise UsageError(
                f"--train.freeze: no layer is named {prefix!r}; {suggest(prefix, names)}"
            )
        for layer in found:
            layer.trainable = False
            frozen.append(layer.name)
    return tuple(frozen)


def twin(
    model: SteppedModel, task: Task, options: config.Model, precision: str = "float32"
) -> SteppedModel:
    """The same network and weights with every layer computing in another Keras dtype policy."""
    twin = network(task, options, precision)
    twin.set_weights(model.get_weights())
    return twin
