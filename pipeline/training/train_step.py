"""One step on one replica, from a ticket to changed weights and metrics."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipeline.contracts import Batches, Example, Task
from pipeline.data import seeds
from pipeline.data.augmentation import Augmenter
from pipeline.training.optim.gradient_update import Update

Measured = tuple[Any, Any, tf.Tensor, tf.Tensor]
"""(y, outputs, losses, weight) of some examples."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What of the config one step depends on."""

    augmentations: Mapping[str, Mapping[str, Any]]
    """Name -> options of functions of the registry `augment`, in order; none where the tickets are
    already augmented, by `augmentation.on_host`."""
    seed: int = 0
    accumulate: int = 1
    """Micro-batches that a replica's part of the batch is cut into."""
    l2: float = 0.0
    """Penalty on the squares of all weights that are no biases or scales."""
    label_smoothing: float = 0.0
    class_weight: Mapping[str, float] = dataclasses.field(default_factory=dict)
    loss: Callable[[Any, Any], tf.Tensor] | None = None
    """In place of the task's."""
    metrics: tuple[keras.metrics.Metric, ...] = ()
    """Beside the task's."""
    xla: bool = False
    """Compile the forward and backward pass."""


class Step:
    """What both engines do with a ticket, in training and in evaluation.

    Made in the scope of the strategy under which it is used.

    Args:
        task: Prepares batches, knows loss and metrics.
        settings: What differs between runs of a task.
        update: What happens to the gradients.
        random_states: Of the layers that draw numbers, such as dropout.
    """

    def __init__(
        self,
        task: Task,
        settings: Settings,
        update: Update,
        random_states: list[keras.Variable],
    ) -> None:
        self._task = task
        self._settings = settings
        self.update = update
        self._random_states = random_states
        self._augmenter = Augmenter(settings.augmentations, settings.seed)
        self.loss = settings.loss or task.loss()
        self._training_loss = settings.loss or task.training_loss(
            settings.label_smoothing, settings.class_weight
        )
        # Keras's own loss tracker and `metrics=` ignore the weights of a padded batch.
        self.metrics = [keras.metrics.Mean("loss"), *task.metrics(), *settings.metrics]
        self.added_metrics = settings.metrics
        update.measures = [variable for metric in self.metrics for variable in metric.variables]
        self.phase = 0
        """Another number is another set of trainable layers, and another trace."""
        self.compiled: dict[Any, Callable] = {}
        """Traces, by what they do: `distributed.Calls` keeps those for the tickets of `set_inputs`
        here, `evaluate` its own."""
        self.position = 0
        """The training step that comes next; kept by `distributed.Calls`."""
        self._batch_size = 0
        self._fetch_training: Callable[[Any], Example] | None = None
        self._fetch_evaluation: Callable[[Any], Example] | None = None

    def set_inputs(self, train: Batches, validation: Batches | None) -> None:
        """Says what tickets will come; called by an engine before it traces a step."""
        own = (train.batch_size, train.materialize, validation.materialize if validation else None)
        if own != (self._batch_size, self._fetch_training, self._fetch_evaluation):
            self.compiled.clear()
        self._batch_size, self._fetch_training, self._fetch_evaluation = own

    @property
    def traces(self) -> int:
        """How often a training call has been traced."""
        call = self.compiled.get("train")
        return call.experimental_get_tracing_count() if call else 0

    def augment(self, batch: Example) -> tuple[Example, tf.Tensor]:
        """The batch after all augmentations, and the seeds that are left for `Task.target`."""
        return self._augmenter(batch), self._augmenter.seeds(batch)

    def train(self, model: keras.Model, ticket: Any) -> None:
        """Changes the weights once, with this replica's part of a batch; updates the metrics."""
        self._reseed()
        before = self.update.remember()
        pass_ = functools.partial(self._forward_and_backward, model)
        if self._settings.xla:
            pass_ = tf.function(pass_, jit_compile=True, autograph=False)
        if self._settings.accumulate == 1:
            gradients, measured = pass_(ticket)
            loss = self._measure(*measured)
        else:
            loss, *gradients = self._in_pieces(pass_, model, ticket)
        self.update.apply(gradients, loss, model.trainable_variables, before)

    def evaluate(self, model: keras.Model, ticket: Any) -> None:
        """Leaves the weights as they are; updates the metrics."""
        y, outputs, weight = forward(self._task, model, self._fetch_evaluation(ticket))
        self._measure(y, outputs, self.loss(y, outputs), weight)

    def _forward_and_backward(
        self, model: keras.Model, ticket: Any
    ) -> tuple[list[tf.Tensor], Measured]:
        """Gradients of this ticket's share in the mean over the global batch."""
        batch, own = self.augment(self._fetch_training(ticket))
        inputs, y, weight = self._task.target(self._task.prepare(batch), own)
        variables = model.trainable_variables
        shares = tf.distribute.get_strategy().num_replicas_in_sync * self._settings.accumulate
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            losses = self._training_loss(y, outputs)
            # The mean over the batch, not over its weights: what a weight of 2 means then does
            # not depend on the other examples of the batch.
            loss = tf.reduce_sum(losses * weight) / self._batch_size
            loss += (sum(model.losses) + self._penalty(variables)) / shares
            loss = self.update.scale_loss(loss)
        # Zero for a weight that the loss does not depend on; TensorFlow makes it for its own
        # variables only.
        none = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(loss, [v.value for v in variables], unconnected_gradients=none)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return self.update.unscale(gradients), (y, outputs, losses, weight)

    def _penalty(self, variables: list[keras.Variable]) -> tf.Tensor | float:
        if not self._settings.l2:
            return 0.0
        kernels = [v.value for v in variables if len(v.shape) > 1]
        return self._settings.l2 * sum(tf.reduce_sum(tf.square(kernel)) for kernel in kernels)

    def _in_pieces(
        self, pass_: Callable[[Any], Any], model: keras.Model, ticket: Any
    ) -> list[tf.Tensor]:
        """Loss and gradients of micro-batches one after the other, in the memory of one."""
        pieces = self._settings.accumulate
        cut = tf.nest.map_structure(lambda t: tf.reshape(t, (pieces, -1, *t.shape[1:])), ticket)

        def body(piece: tf.Tensor, *sums: tf.Tensor) -> tuple:
            gradients, measured = pass_(tf.nest.map_structure(lambda t: t[piece], cut))
            parts = (self._measure(*measured), *gradients)
            return piece + 1, *(s + part for s, part in zip(sums, parts, strict=True))

        start = [tf.zeros(v.shape, v.dtype) for v in model.trainable_variables]
        _, *sums = tf.while_loop(
            lambda piece, *sums: piece < pieces, body, (0, 0.0, *start), parallel_iterations=1
        )
        return sums

    def _reseed(self) -> None:
        """Gives each replica's random layers numbers of their own, a function of (seed, step).

        Keras would draw the same dropout mask on every replica. As nothing is carried over from
        the step before, a run may be resumed under another number of replicas.
        """
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        step = seeds.fold(tf.constant(self._settings.seed, tf.int64), self.update.steps.value)
        own = seeds.fold(step, replica)
        for number, state in enumerate(self._random_states):
            # Keras counts the second number up with each draw, so it starts low.
            state.assign(tf.stack([seeds.fold(own, number), tf.zeros_like(own)]))

    def losses(self, model: keras.Model, ticket: Any) -> tuple[Example, tf.Tensor]:
        """The examples of a training ticket, decoded, and the loss of each under present weights.

        Augmented as in training, but without dropout, and normalised by the moving statistics, so
        that no example can act on another one's loss.

        Returns:
            The batch of the ticket, and weight times loss, float32 (batch,).
        """
        batch = self._fetch_training(ticket)
        augmented, own = self.augment(batch)
        inputs, y, weight = self._task.target(self._task.prepare(augmented), own)
        return batch, self._training_loss(y, model(inputs, training=False)) * weight

    def _measure(self, y: Any, outputs: Any, losses: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Updates the metrics; the part of these examples in the mean loss of the batch."""
        mean, *others = self.metrics
        mean.update_state(losses, sample_weight=weight)
        for metric in others:
            metric.update_state(y, outputs, sample_weight=weight)
        return tf.cast(tf.reduce_sum(losses * weight), tf.float32) / self._batch_size


def forward(task: Task, model: keras.Model, batch: Example) -> tuple[Any, Any, tf.Tensor]:
    """(y, outputs, weight) of a decoded batch as it is, without augmentation and dropout."""
    # Nothing is drawn here, so any seeds will do.
    inputs, y, weight = task.target(task.prepare(batch), batch["id"])
    return y, model(inputs, training=False), weight
