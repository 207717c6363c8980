"""The Keras model of a run, and its training step on one replica."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.config import config
from pipeline.contracts import Batches, Example, Task
from pipeline.data import seeds
from pipeline.data.augmentation import Augmenter
from pipeline.layers import nested
from pipeline.runtime.dtype_policy import policy_scope
from pipeline.tasks.keras_model import TaskMetric
from pipeline.training import xla_support
from pipeline.training.optim.gradient_accumulation import accumulate_gradients
from pipeline.training.optim.gradient_update import UpdateRule
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError


class Step:
    """The step of both engines, for training and for evaluation.

    Create it in the scope of the strategy that runs it.

    Args:
        settings: Provides the seed, and the options of the loss in `train`.
        random_states: States of the layers that draw random numbers, such as dropout.
        class_weight: The weight of each class in the loss, by its name.
        accumulate: Micro-batches into which each replica's part of a batch is cut.
        augmenter: Has no operations if the batches are already augmented.
        loss: Replaces the task's loss.
        metrics: The mean loss, the task's and the added metrics; see `all_metrics`.
        added_metrics: Those that the task does not have.
        note: A sentence about the weights or the head, for the output of the run.
        xla: Whether to compile with XLA: whole steps or, with several replicas, each
            replica's forward and backward pass and its update.
    """

    def __init__(
        self,
        task: Task,
        settings: config.Config,
        update: UpdateRule,
        random_states: list[keras.Variable],
        *,
        class_weight: Mapping[str, float],
        accumulate: int,
        augmenter: Augmenter,
        loss: Callable[[Any, Any], tf.Tensor] | None,
        metrics: list[keras.metrics.Metric],
        added_metrics: list[keras.metrics.Metric],
        note: str,
        xla: bool,
    ) -> None:
        options = settings.train
        self._task = task
        self._seed = settings.runtime.seed
        self._xla = xla
        self._must_compile = settings.runtime.xla == "on"
        self.not_compiled: dict[str, str] = {}
        """Name of what runs without XLA, as in `is_compiled` -> the reason."""
        self._options = options
        self._accumulate = accumulate
        self.update = update
        self._random_states = random_states
        self.augment = augmenter
        self.loss = loss or task.of_target(task.target.loss())
        training_loss = task.target.training_loss(
            options.label_smoothing, class_weight, loss
        )
        self._training_loss = training_loss if loss else task.of_target(training_loss)
        self.metrics = metrics
        self.added_metrics = added_metrics
        self.note = note
        self.phase = 0
        """Changes with the set of trainable layers; each value has its own trace."""
        self.compiled: dict[Any, Any] = {}
        """Traced functions of `distributed.StepFunction`, for the batches of
        `set_inputs`, and of `evaluation.evaluate`.
        """
        self.position = 0
        """The next training step; updated by `distributed.StepFunction`."""
        self._expected: tuple[Any, ...] | None = None

    def set_inputs(self, train: Batches, validation: Batches | None) -> None:
        """Sets the batches; an engine calls this before it traces a step."""
        validation_cache = validation and validation.device_cache
        expected = (train.batch_size, train.device_cache, validation_cache)
        if expected != self._expected:
            self.compiled.clear()
        self._expected = expected
        self._train_batches = train
        self._validation_batches = validation

    def is_compiled(self, name: str) -> bool:
        """Whether XLA compiles `train`, `evaluate`, the `outputs` of a batch, or the
        `samples` of the final test; with several replicas, only parts of `train`.

        If it cannot compile `train`, it compiles only the `update` of the weights.
        """
        names = {name} if name == "update" else {name, "train"}
        return self._xla and names.isdisjoint(self.not_compiled)

    def is_one_program(self, name: str) -> bool:
        """Whether XLA compiles `name` as a single program; only with one replica."""
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return self.is_compiled(name) and replicas == 1

    def disable_xla(
        self, name: str, error: tf.errors.OpError, model: keras.Model
    ) -> None:
        """Turns XLA off for `name` after an error of its compilation.

        Raises any other error again, and UsageError if the options require XLA.
        """
        if name == "train" and name in self.not_compiled:
            name = "update"
        reason = xla_support.why_not_compiled(error, model)
        if not reason or not self._xla or name in self.not_compiled:
            raise error
        if self._must_compile:
            raise UsageError(
                f"--runtime.xla on: XLA cannot compile {reason}; use --runtime.xla auto"
            ) from None
        if reason not in self.not_compiled.values():
            say("xla", f"off for {name}: it cannot compile {reason}")
        self.not_compiled[name] = reason
        self.compiled.clear()

    @property
    def traces(self) -> int:
        """The number of traces of the training step."""
        call = self.compiled.get("train")
        return call.experimental_get_tracing_count() if call else 0

    def train(self, model: keras.Model, batch: Example) -> None:
        """Updates the weights and the metrics with this replica's part of a batch."""
        before = self.update.snapshot()
        compute = functools.partial(self._loss_and_gradients, model)
        is_one_program = self.is_one_program("train")
        if self.is_compiled("train") and not is_one_program:
            compute = tf.function(compute, jit_compile=True, autograph=False)
        loss, gradients = compute(batch)
        self.update.apply(
            gradients,
            loss,
            model.trainable_variables,
            before,
            jit_compile=self.is_compiled("update") and not is_one_program,
        )

    def evaluate(self, model: keras.Model, batch: Example) -> None:
        """Updates the metrics with this replica's part of a batch."""
        if self._validation_batches is not None:
            batch = self._validation_batches.gather(batch)
        y, outputs, weight = forward(self._task, model, batch)
        losses = _apply_sample_weight(self.loss(y, outputs), batch)
        self._update_metrics(y, outputs, losses, weight)

    def _loss_and_gradients(
        self, model: keras.Model, batch: Example
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Sums over the micro-batches of this replica's part of a batch."""
        self._seed_random_layers()
        compute = functools.partial(self._forward_and_backward, model)
        if self._accumulate == 1:
            return compute(batch)
        return accumulate_gradients(
            compute, batch, self._accumulate, model.trainable_variables
        )

    def _forward_and_backward(
        self, model: keras.Model, batch: Example
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Computes these examples' part of the mean loss and of its gradients,
        and updates the metrics.
        """
        batch = self._train_batches.gather(batch)
        inputs, y, weight = self._inputs(batch)
        variables = model.trainable_variables
        parts = tf.distribute.get_strategy().num_replicas_in_sync * self._accumulate
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            losses = _apply_sample_weight(self._training_loss(y, outputs), batch)
            # Divided by the batch size, not by the sum of the weights, so that the
            # effect of a weight of 2 does not depend on the other examples of the
            # batch.
            loss = tf.reduce_sum(losses * weight) / self._train_batches.batch_size
            loss += (sum(model.losses) + self._penalty(variables)) / parts
            loss = self.update.scale_loss(loss)
        # Zero for a weight that the loss does not depend on. TensorFlow creates the
        # zeros only for its own variables, hence `v.value`.
        gradients = tape.gradient(
            loss,
            [variable.value for variable in variables],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        gradients = self.update.unscale(gradients)
        return self._update_metrics(y, outputs, losses, weight), gradients

    def _inputs(self, batch: Example) -> tuple[Any, Any, tf.Tensor]:
        """Returns (inputs, y, weight) of a decoded batch after augmentation."""
        return self._task.step_inputs(self.augment(batch), self.augment.seeds(batch))

    def _penalty(self, variables: list[keras.Variable]) -> tf.Tensor | float:
        if not self._options.l2:
            return 0.0
        kernels = [v.value for v in variables if len(v.shape) > 1]
        return self._options.l2 * sum(tf.reduce_sum(tf.square(k)) for k in kernels)

    def _seed_random_layers(self) -> None:
        """Seeds the random layers of each replica from the seed and the step.

        Keras would draw the same dropout mask on every replica. No state is carried
        over from step to step, so a run can be resumed with another number of replicas.
        """
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        step = seeds.fold(tf.constant(self._seed, tf.int64), self.update.steps.value)
        replica_seed = seeds.fold(step, replica)
        for index, state in enumerate(self._random_states):
            layer_seed = seeds.fold(replica_seed, index)
            # Keras increments the second number with each draw.
            state.assign(tf.stack([layer_seed, tf.zeros_like(layer_seed)]))

    def losses(self, model: keras.Model, batch: Example) -> tuple[Example, tf.Tensor]:
        """Computes the loss of each example of a whole batch with the current weights.

        The examples are augmented as in training, but dropout is off and
        BatchNormalization uses its moving statistics, so that no example affects the
        loss of another.

        Returns:
            All fields of the decoded batch, and weight times loss, float32 (batch,).
        """
        batch = self._train_batches.gather(batch)
        inputs, y, weight = self._inputs(batch)
        return batch, self._training_loss(y, model(inputs, training=False)) * weight

    def _update_metrics(
        self, y: Any, outputs: Any, losses: tf.Tensor, weight: tf.Tensor
    ) -> tf.Tensor:
        """Returns the part of these examples in the mean loss of the batch."""
        mean_loss, *metrics = self.metrics
        mean_loss.update_state(losses, sample_weight=weight)
        for metric in metrics:
            metric.update_state(y, outputs, sample_weight=weight)
        loss = tf.cast(tf.reduce_sum(losses * weight), tf.float32)
        return loss / self._train_batches.batch_size


def all_metrics(
    task: Task, added: Sequence[keras.metrics.Metric]
) -> list[keras.metrics.Metric]:
    """New metrics of a step: the mean loss, those of the task, and the added ones."""
    task_metrics = task.target.metrics()
    if task.user_outputs:
        task_metrics = [TaskMetric(metric) for metric in task_metrics]
    # Keras's own loss tracker and `metrics=` ignore the weights of a padded batch.
    return [keras.metrics.Mean("loss"), *task_metrics, *added]


def _apply_sample_weight(losses: tf.Tensor, batch: Example) -> tf.Tensor:
    """Multiplies each loss by `sample_weight`, if the source has that field.

    As in Keras, the mean is over the examples, not over their weights, and metrics
    ignore the weights.
    """
    if "sample_weight" not in batch:
        return losses
    return losses * batch["sample_weight"]


def forward(
    task: Task, model: keras.Model, batch: Example
) -> tuple[Any, Any, tf.Tensor]:
    """Returns (y, outputs, weight) of a batch, without augmentation or dropout."""
    # Nothing random is drawn here, so any seeds will do.
    inputs, y, weight = task.step_inputs(batch, batch["id"])
    return y, model(inputs, training=False), weight


@keras.saving.register_keras_serializable("pipeline")
class SteppedModel(keras.Model):
    """A functional model with its own training step.

    `distributed.StepFunction` runs the step.

    Args:
        inputs: Symbolic inputs.
        outputs: Symbolic outputs.
        task: The task that it solves.
        user: The `user_model.UserNetwork` that it contains, if it is a whole network.
        from_logits: Whether the user's loss takes logits; None: unknown.
        user_loss: For a copy for inference, the loss of the run.
        user_metrics: The metrics that the run added to the task's, likewise.
        options: Those of `keras.Model`.
    """

    step: Step | None = None
    """Set by `compile`."""
    frozen: tuple[str, ...] = ()
    """Names of the layers that are not trained, or not from the start."""

    def __init__(
        self,
        inputs: Any,
        outputs: Any,
        *,
        task: Any = None,
        user: Any = None,
        from_logits: bool | None = None,
        user_loss: Callable[[Any, Any], tf.Tensor] | None = None,
        user_metrics: Sequence[keras.metrics.Metric] = (),
        **options: Any,
    ) -> None:
        super().__init__(inputs, outputs, **options)
        self.task: Task = task
        self.user = user
        self.from_logits = from_logits
        self.user_loss = user_loss
        self.user_metrics = user_metrics

    def with_losses(
        self,
        loss: Callable[[Any, Any], tf.Tensor] | None,
        metrics: Sequence[keras.metrics.Metric],
    ) -> "SteppedModel":
        """A model for inference with the same layers, and a user's loss and metrics."""
        with policy_scope(self.dtype_policy.name):
            return SteppedModel(
                self.input,
                self.output,
                task=self.task,
                user=self.user,
                from_logits=self.from_logits,
                user_loss=loss,
                user_metrics=metrics,
                name=self.name,
            )

    def to_keras_model(
        self, optimizer: Any = "sgd", is_nested: bool = False
    ) -> keras.Model:
        """Returns a plain Keras model that shares the weights.

        Of a user's whole network, it has its inputs and outputs. Otherwise, it is the
        model `Task.standalone` from raw inputs to predictions, with the layers of the
        network under their names or, if `is_nested`, one layer `network` from prepared
        inputs to outputs. It is compiled with the optimizer and, unless the losses are
        the user's, the usual loss and metric. Keras alone can load it, unless a user's
        network has custom layers.
        """
        if self.user is not None:
            model = keras.Model(self.user.model.input, self.user.model.output)
            model.name = self.user.model.name
            loss, metric = self.user.loss, self.user.metric
        else:
            model = self.task.standalone(self)
            model = model if is_nested else _flatten(model)
            loss, metric = self.task.target.standalone_loss()
        metrics = None if metric is None else [metric]
        model.compile(optimizer, loss, metrics=metrics, auto_scale_loss=False)
        model.is_compiled_by_run = True  # `fit` uses what a user has compiled
        return model

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return self.step.metrics if self.step else super().metrics

    @property
    def state(self) -> dict[str, list[keras.Variable]]:
        """All variables that training changes, as a checkpoint groups them."""
        update = self.step.update.variables if self.step else []
        return {
            "model": self.variables,
            "optimizer": self.optimizer.variables,
            "update": update,
        }


def _flatten(model: keras.Model) -> keras.Model:
    """The model with the layers of its layer `network`, which are shared.

    `layer.output` then belongs to it, so that other models can be built from it.
    """
    network = next((layer for layer in model.layers if layer.name == "network"), None)
    if network is None:
        return model
    taken = {operation.name for operation in network.operations}
    for operation in model.operations:
        name = operation.name
        number = 1
        while operation.name in taken and operation is not network:
            operation.name = f"{name}_{number}"
            number += 1

    def inline(operation: Any) -> Any:
        if operation is network:
            return lambda inputs, **named: nested.replay(network, inputs, inline)
        if type(operation).__name__ == "Cast":
            # It is not a layer, and a model in an .h5 file must have layers only.
            return lambda x, **named: x if x.dtype == operation.dtype else operation(x)
        return operation

    outputs = nested.replay(model, model.inputs, inline)
    return keras.Model(model.input, outputs, name=network.name)
