"""The Keras model of a run, and its step on one replica: from a batch to updated
weights.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pipeline.config import config
from pipeline.contracts import Batches, Example, Task
from pipeline.data import seeds
from pipeline.data.augmentation import Augmenter
from pipeline.training import plain_model
from pipeline.training.optim.gradient_accumulation import accumulate_gradients
from pipeline.training.optim.gradient_update import Update

Measured = tuple[Any, Any, tf.Tensor, tf.Tensor]
"""(y, outputs, losses, weight) of some examples."""


class Step:
    """What both engines do with a batch, in training and in evaluation.

    Created in the scope of the strategy that it is used with.

    Args:
        settings: The seed, and the options in `train` for the loss, are used.
        random_states: States of the layers that draw random numbers, such as dropout.
        accumulate: Micro-batches that each replica's part of a batch is cut into.
        augmenter: Has no operations if the batches are already augmented.
        loss: Replaces the task's loss.
        metrics: Used in addition to the task's metrics.
        xla: Whether to compile the forward and backward pass with XLA.
    """

    def __init__(
        self,
        task: Task,
        settings: config.Config,
        update: Update,
        random_states: list[keras.Variable],
        *,
        accumulate: int,
        augmenter: Augmenter,
        loss: Callable[[Any, Any], tf.Tensor] | None,
        metrics: list[keras.metrics.Metric],
        xla: bool,
    ) -> None:
        self._task, self._seed, self._xla = task, settings.runtime.seed, xla
        self._options = options = settings.train
        self._accumulate = accumulate
        self.update = update
        self._random_states = random_states
        self.augment = augmenter
        self.loss = loss or task.loss()
        self._training_loss = task.training_loss(
            options.label_smoothing, options.class_weight, loss
        )
        # Keras's own loss tracker and `metrics=` ignore the weights of a padded batch.
        self.metrics = [keras.metrics.Mean("loss"), *task.metrics(), *metrics]
        self.added_metrics = metrics
        update.measures = [
            variable for metric in self.metrics for variable in metric.variables
        ]
        self.phase = 0
        """Changes when the set of trainable layers changes; each value has its own
        trace.
        """
        self.compiled: dict[Any, Any] = {}
        """Traced functions: those of `distributed.Calls` for the batches of
        `set_inputs`, and those of `evaluation.evaluate`.
        """
        self.position = 0
        """Number of the next training step; updated by `distributed.Calls`."""
        self._expected: tuple[Any, ...] | None = None

    def set_inputs(self, train: Batches, validation: Batches | None) -> None:
        """Sets what the step trains on; called by an engine before it traces a step."""
        caches = (train.device_cache, validation and validation.device_cache)
        expected = (train.batch_size, *caches)
        if expected != self._expected:
            self.compiled.clear()
        self._expected = expected
        self._train_batches = train
        self._validation_batches = validation

    @property
    def traces(self) -> int:
        """How many times the training call has been traced."""
        call = self.compiled.get("train")
        return call.experimental_get_tracing_count() if call else 0

    def train(self, model: keras.Model, batch: Example) -> None:
        """Updates the weights once with this replica's part of a batch; updates the
        metrics.
        """
        self._reseed()
        before = self.update.remember()
        compute = functools.partial(self._forward_and_backward, model)
        if self._xla:
            compute = tf.function(compute, jit_compile=True, autograph=False)

        def loss_and_gradients(part: Example) -> tuple[tf.Tensor, list[tf.Tensor]]:
            gradients, measured = compute(part)
            return self._measure(*measured), gradients

        if self._accumulate == 1:
            loss, gradients = loss_and_gradients(batch)
        else:
            loss, gradients = accumulate_gradients(
                loss_and_gradients, batch, self._accumulate, model.trainable_variables
            )
        self.update.apply(gradients, loss, model.trainable_variables, before)

    def evaluate(self, model: keras.Model, batch: Example) -> None:
        """Updates the metrics only."""
        if self._validation_batches is not None:
            batch = self._validation_batches.gather(batch)
        y, outputs, weight = forward(self._task, model, batch)
        self._measure(y, outputs, _weighted(self.loss(y, outputs), batch), weight)

    def _forward_and_backward(
        self, model: keras.Model, batch: Example
    ) -> tuple[list[tf.Tensor], Measured]:
        """Gradients of these examples' part of the mean loss over the global batch."""
        batch = self._train_batches.gather(batch)
        inputs, y, weight = self._inputs(batch)
        variables = model.trainable_variables
        shares = tf.distribute.get_strategy().num_replicas_in_sync * self._accumulate
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            losses = _weighted(self._training_loss(y, outputs), batch)
            # Divided by the batch size, not by the sum of the weights, so that the
            # effect of a weight of 2 does not depend on the other examples of the
            # batch.
            loss = tf.reduce_sum(losses * weight) / self._train_batches.batch_size
            loss += (sum(model.losses) + self._penalty(variables)) / shares
            loss = self.update.scale_loss(loss)
        # Zero for a weight that the loss does not depend on. TensorFlow creates the
        # zeros only for its own variables, hence `v.value`.
        none = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(
            loss, [v.value for v in variables], unconnected_gradients=none
        )
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return self.update.unscale(gradients), (y, outputs, losses, weight)

    def _inputs(self, batch: Example) -> tuple[Any, Any, tf.Tensor]:
        """The (inputs, y, weight) of a decoded batch after augmentation."""
        prepared = self._task.prepare(self.augment(batch))
        return self._task.target(prepared, self.augment.seeds(batch))

    def _penalty(self, variables: list[keras.Variable]) -> tf.Tensor | float:
        if not self._options.l2:
            return 0.0
        kernels = [v.value for v in variables if len(v.shape) > 1]
        return self._options.l2 * sum(tf.reduce_sum(tf.square(k)) for k in kernels)

    def _reseed(self) -> None:
        """Seeds the random layers of each replica separately, as a function of seed and
        step.

        Keras would draw the same dropout mask on every replica. No state is carried
        over from one step to the next, so a run can be resumed with another number of
        replicas.
        """
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        step = seeds.fold(tf.constant(self._seed, tf.int64), self.update.steps.value)
        own = seeds.fold(step, replica)
        for number, state in enumerate(self._random_states):
            # Keras increments the second number with each draw, so it starts at 0.
            state.assign(tf.stack([seeds.fold(own, number), tf.zeros_like(own)]))

    def losses(self, model: keras.Model, batch: Example) -> tuple[Example, tf.Tensor]:
        """The decoded examples of a whole batch, and the loss of each with the current
        weights.

        The examples are augmented as in training, but dropout is off and
        BatchNormalization uses its moving statistics, so that no example affects the
        loss of another.

        Returns:
            All fields of the batch, and weight times loss, float32 (batch,).
        """
        batch = self._train_batches.gather(batch)
        inputs, y, weight = self._inputs(batch)
        return batch, self._training_loss(y, model(inputs, training=False)) * weight

    def _measure(
        self, y: Any, outputs: Any, losses: tf.Tensor, weight: tf.Tensor
    ) -> tf.Tensor:
        """Updates the metrics; returns the part of the batch's mean loss from these
        examples.
        """
        mean, *others = self.metrics
        mean.update_state(losses, sample_weight=weight)
        for metric in others:
            metric.update_state(y, outputs, sample_weight=weight)
        loss = tf.cast(tf.reduce_sum(losses * weight), tf.float32)
        return loss / self._train_batches.batch_size


def _weighted(losses: tf.Tensor, batch: Example) -> tf.Tensor:
    """The loss of each example times its `sample_weight`, if the source has that field.

    As in Keras, the mean is over the examples, not over their weights, and metrics
    ignore them.
    """
    return losses * batch["sample_weight"] if "sample_weight" in batch else losses


def forward(
    task: Task, model: keras.Model, batch: Example
) -> tuple[Any, Any, tf.Tensor]:
    """(y, outputs, weight) of a decoded batch, without augmentation or dropout."""
    # Nothing random is drawn here, so any seeds will do.
    inputs, y, weight = task.target(task.prepare(batch), batch["id"])
    return y, model(inputs, training=False), weight


@keras.saving.register_keras_serializable("pipeline")
class SteppedModel(keras.Model):
    """A functional model trained with the package's own step, which `distributed.Calls`
    runs.
    """

    step: Step | None = None
    frozen: tuple[str, ...] = ()
    """Names of the layers that are not trained, or not from the start."""
    ends_in: str = "none"
    """What the user's network ends in (`own_keras.network.outputs`); `none` if the
    output layer is the task's.
    """
    is_own: bool = False
    """Whether it contains a user's whole network, from raw inputs to its own outputs.
    """
    removed: str = ""
    """The last activation of the user's network, if it was removed from it."""
    note: str = ""
    """What became of the head of a user's network."""
    give_back: Callable[[], None] = staticmethod(lambda: None)
    """Copies the weights into the network that the user handed over."""
    task: Task

    def plain(self, optimizer: Any = "sgd", is_nested: bool = False) -> keras.Model:
        """A Keras model with the same weights, from raw inputs to answers
        (`Task.standalone`).

        Its layers are those of the network, under their names, or one layer `network`
        if it `is_nested`, from prepared inputs to outputs. Saved, it has Keras's own
        layers only, unless the network of a user has others.

        It is compiled with the optimizer, and the usual loss and metric for labels as
        whole numbers, or a target.
        """
        plain = self.task.standalone(self, self.ends_in)
        if not is_nested:
            plain = self._flat(plain)
        is_classifier = "class_names" in self.task.metadata
        loss: Any = "sparse_categorical_crossentropy" if is_classifier else "mse"
        metric: Any = "accuracy" if is_classifier else "mae"
        if is_classifier and self.ends_in == "linear":
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        elif self.ends_in == "logit":
            loss = keras.losses.BinaryCrossentropy(from_logits=True)
            metric = keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)
        elif self.ends_in == "sigmoid":
            loss = "binary_crossentropy"
        plain.compile(optimizer, loss, metrics=[metric], auto_scale_loss=False)
        plain.is_compiled_by_run = True  # `fit` uses what a user has compiled
        return plain

    def _flat(self, standalone: keras.Model) -> keras.Model:
        wrapper = next(
            (layer for layer in standalone.layers if layer.name == "network"), None
        )
        kinds = (keras.Sequential, type(standalone))
        nested = (layer for layer in self.layers if isinstance(layer, kinds))
        body = next(nested, None) if self.is_own else None
        return plain_model.flat(standalone, wrapper, body, self.removed == "sigmoid")

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return self.step.metrics if self.step else super().metrics

    @property
    def state(self) -> dict[str, list[keras.Variable]]:
        """Everything that training changes: weights, states of random layers,
        optimizer, update.
        """
        update = self.step.update.variables if self.step else []
        return {
            "model": self.variables,
            "optimizer": self.optimizer.variables,
            "update": update,
        }
