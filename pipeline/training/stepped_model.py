"""The Keras model of a run: a functional model with its task and its training step."""

from collections.abc import Callable
from typing import Any

import keras

from pipeline.contracts import Task
from pipeline.models._fused_batch_norm import with_stock_layers
from pipeline.training.train_step import Step


@keras.saving.register_keras_serializable("pipeline")
class SteppedModel(keras.Model):
    """A functional model trained with the package's own step, which `distributed.Calls` runs."""

    step: Step | None = None
    frozen: tuple[str, ...] = ()
    """Names of the layers that are not trained, or not from the start."""
    ends_in: str = "none"
    """The activation of the user's network that was replaced by the task's (`own_model.outputs`);
    `none` if the output layer is the task's."""
    note: str = ""
    """What became of the head of a user's network."""
    give_back: Callable[[], None] = staticmethod(lambda: None)
    """Copies the weights into the network that the user handed over."""
    task: Task

    def plain(self) -> keras.Model:
        """A Keras model with the same weights, from raw inputs to answers (`Task.standalone`).

        All layers are Keras's own, unless the network of a user has others.

        It is compiled with the usual loss and metric for labels as whole numbers, or a target.
        """
        plain = with_stock_layers(self.task.standalone(self, self.ends_in))
        is_classifier = "class_names" in self.task.metadata
        loss: Any = "sparse_categorical_crossentropy" if is_classifier else "mse"
        if is_classifier and self.ends_in == "linear":
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        elif self.ends_in == "sigmoid":
            loss = "binary_crossentropy"
        plain.compile("sgd", loss, metrics=["accuracy" if is_classifier else "mae"])
        return plain

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return self.step.metrics if self.step else super().metrics

    @property
    def state(self) -> dict[str, list[keras.Variable]]:
        """Everything that training changes: weights, states of random layers, optimizer, update."""
        update = self.step.update.variables if self.step else []
        return {"model": self.variables, "optimizer": self.optimizer.variables, "update": update}
