"""Task, model and optimizer put together: a compiled Keras model whose step is ours."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pipeline import config, runtime, shelf
from pipeline.contracts import Batches, Task
from pipeline.errors import UsageError
from pipeline.step import Step


@keras.saving.register_keras_serializable("pipeline")
class SteppedModel(keras.Model):
    """A functional model that `fit` trains with the shared step.

    Keras's `fit` and `evaluate` call `train_step` and `test_step`; both hand over to `step`.
    """

    step: Step | None = None

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return self.step.metrics if self.step else super().metrics

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        return self.step.train(self, _ticket(data))

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        return self.step.evaluate(self, _ticket(data))


def _ticket(data: Any) -> Any:
    if isinstance(data, tuple):  # what Keras makes of fit(x, y)
        raise UsageError("this model learns from pipeline's batches: give arrays to pipeline.fit")
    return data


def network(task: Task, options: config.Model, precision: str) -> SteppedModel:
    """An untrained network: the task's inputs, a model from the shelf, the task's head."""
    features: Callable = shelf.take("models", options.name)
    with runtime.policy(precision):
        inputs = task.inputs()
        try:
            outputs = task.head(features(inputs, **options.options), inputs)
        except (TypeError, ValueError) as error:
            if not options.options:
                raise  # then it is our fault, or that of the user's own model
            reason = str(error).strip().partition("\n")[0]
            words = " ".join(f"{name}={value}" for name, value in options.options.items())
            raise UsageError(f"--model.options {words} does not fit: {reason}") from error
        return SteppedModel(inputs, outputs, name=options.name.rpartition(".")[2])


def build(task: Task, settings: config.Config, precision: str, train: Batches) -> SteppedModel:
    """A network with its optimizer and step, ready for an engine.

    Args:
        task: What the problem is.
        settings: Sections model, data (augmentations), train and runtime are used.
        precision: Keras dtype policy of the layers.
        train: Their steps are the schedule's; their shape is tried on the augmentations.

    Raises:
        UsageError: An option does not fit the model or the images.
    """
    model = network(task, settings.model, precision)
    options = settings.train
    schedule = shelf.take("schedules", options.schedule)(
        options.learning_rate, train.last_step, **options.schedule_options
    )
    optimizer = shelf.take("optimizers", options.optimizer)(schedule, **options.optimizer_options)
    # Unbuilt, it would make its variables inside the first trace, and `fit` would draw a batch
    # of its own to build it with.
    optimizer.build(model.trainable_variables)
    model.step = Step(task, settings.data.augment, settings.runtime.seed)
    # Tried on the shapes of a batch; without autograph, which would wrap a UsageError.
    tf.function(
        lambda ticket: model.step.augment(train.fetch(ticket)), autograph=False
    ).get_concrete_function(train.dataset.element_spec)
    # XLA loses to oneDNN on CPUs; Keras's automatic loss scaling is wrong under several replicas.
    model.compile(optimizer=optimizer, jit_compile=False, auto_scale_loss=False)
    return model


def float32_twin(model: SteppedModel, task: Task, options: config.Model) -> SteppedModel:
    """The same network and weights with every layer computing in float32."""
    twin = network(task, options, "float32")
    twin.set_weights(model.get_weights())
    return twin
