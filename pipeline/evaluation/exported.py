"""An exported version, evaluated in the same way as the network it was made from."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Batches, Example, Task
from pipeline.evaluation import evaluate
from pipeline.evaluation.evaluate import Predictions, batch_of
from pipeline.utils import tf_paths


class ExportedNetwork:
    """A version of the task that answers requests for decoded examples.

    Args:
        version: The directory of the version.
        task: Its task, for the examples that it is evaluated on.
    """

    def __init__(self, version: Path, task: Task) -> None:
        with tf_paths.literal(version) as path:
            # Its variables live as long as this object.
            self._loaded = tf.saved_model.load(path)
        self._serve = self._loaded.signatures["serving_default"]
        self._input = task.input.signatures()[0]
        self._task = task
        self._loss = None if task.user_outputs else task.target.loss()

    def predictions(
        self, model: Any, task: Task, batches: Batches
    ) -> Iterator[Predictions]:
        """Yields the predictions for all examples, as `evaluate.Predict`."""
        for batch in evaluate.examples(batches):
            yield self._predict(batch)

    def _predict(self, batch: Example) -> Predictions:
        task = self._task
        predictions = dict(self._predictions(batch))
        outputs = task.target.outputs_of(predictions)
        _, y, _ = task.step_inputs(batch, batch["id"])
        if outputs is not None and self._loss is not None:
            predictions["loss"] = self._loss(y, outputs)
        return Predictions(batch, y, outputs, predictions)

    def _predictions(self, batch: Example) -> Example:
        """The predictions of `Target.predict` for a decoded batch."""
        columns = {name: values.numpy() for name, values in batch.items()}
        request = self._input.request(columns)
        arguments = {}
        for name, spec in self._input.specs.items():
            arguments[name] = tf.constant(request[name], spec.dtype)
        return self._task.target.served_predictions(self._serve(**arguments), batch)

    def predict(self, examples: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The predictions for a few decoded examples."""
        predictions = self._predictions(batch_of(examples))
        return {name: values.numpy() for name, values in predictions.items()}
