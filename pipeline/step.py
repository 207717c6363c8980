"""One step on one replica, from a ticket to changed weights and metrics."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipeline import seeds, shelf
from pipeline.contracts import Batches, Example, Task


class Step:
    """What both engines do with a ticket, in training and in evaluation.

    Args:
        task: Prepares batches, knows loss and metrics.
        augmentations: Name -> options of functions of `augment.py`, in order.
        seed: The run's seed.
    """

    def __init__(
        self, task: Task, augmentations: Mapping[str, Mapping[str, Any]], seed: int
    ) -> None:
        self._task = task
        self._augmentations = [
            functools.partial(shelf.take("augment", name), **options)
            for name, options in augmentations.items()
        ]
        self._seed = seed
        self._loss = task.loss()
        # Keras's own loss tracker and `metrics=` ignore the weights of a padded batch.
        self.metrics = [keras.metrics.Mean("loss"), *task.metrics()]
        self._fetch_training: Callable[[Any], Example] | None = None
        self._fetch_evaluation: Callable[[Any], Example] | None = None

    def feed(self, train: Batches, validation: Batches | None) -> None:
        """Says what tickets will come; called by an engine before it traces a step."""
        self._fetch_training = train.fetch
        self._fetch_evaluation = validation.fetch if validation else None

    def augment(self, batch: Example) -> tuple[Example, tf.Tensor]:
        """The batch after all augmentations, and the seeds that are left for `Task.target`."""
        own = seeds.of_examples(self._seed, batch["epoch"], batch["id"])
        for number, operation in enumerate(self._augmentations, start=1):
            batch = operation(batch, seeds.fold(own, number))
        return batch, own

    def train(self, model: keras.Model, ticket: Any) -> dict[str, tf.Tensor]:
        """Changes the model's weights once; returns the running metrics."""
        batch, own = self.augment(self._fetch_training(ticket))
        inputs, y, weight = self._task.target(self._task.prepare(batch), own)
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            losses = self._loss(y, outputs)
            # The mean over the batch, not over its weights: what a weight of 2 means then does
            # not depend on the other examples of the batch.
            loss = tf.reduce_sum(losses * weight) / tf.cast(tf.size(weight), losses.dtype)
            loss += sum(model.losses)
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply(gradients, variables)
        return self._measure(y, outputs, losses, weight)

    def evaluate(self, model: keras.Model, ticket: Any) -> dict[str, tf.Tensor]:
        """Leaves the weights as they are; returns the running metrics."""
        y, outputs, weight = forward(self._task, model, self._fetch_evaluation(ticket))
        return self._measure(y, outputs, self._loss(y, outputs), weight)

    def _measure(
        self, y: Any, outputs: Any, losses: tf.Tensor, weight: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        mean, *others = self.metrics
        mean.update_state(losses, sample_weight=weight)
        for metric in others:
            metric.update_state(y, outputs, sample_weight=weight)
        return {metric.name: metric.result() for metric in self.metrics}


def forward(task: Task, model: keras.Model, batch: Example) -> tuple[Any, Any, tf.Tensor]:
    """(y, outputs, weight) of a decoded batch as it is, without augmentation and dropout."""
    # Nothing is drawn here, so any seeds will do.
    inputs, y, weight = task.target(task.prepare(batch), batch["id"])
    return y, model(inputs, training=False), weight
