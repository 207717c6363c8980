"""The signatures of a run's network in this process, called as those of a server."""

from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Task
from pipeline.serving import signatures
from pipeline.serving.signatures import INVALID_ARGUMENT, Field, ServingError, Signature
from pipeline.utils.errors import UsageError, suggest


class InProcess:
    """The same methods as `Client`."""

    def __init__(self, task: Task, network: Any, model: str) -> None:
        self._offered, self.model = task.serve(network), model
        self.feature_names = task.metadata.get("feature_names")

    def metadata(self) -> dict[str, Signature]:
        """The inputs of each signature, by name."""
        return {name: Signature(_fields(specs), {}) for name, (_, specs) in self._offered.items()}

    def predict(self, signature: str = "serving_default", /, **inputs: Any) -> dict[str, Any]:
        """The answers of a signature to its inputs."""
        if signature not in self._offered:
            raise UsageError(
                f"unknown signature {signature!r}; {suggest(signature, self._offered)}"
            )
        function, specs = self._offered[signature]
        values = signatures.tensors(Signature(_fields(specs), {}), inputs)
        try:
            answers = function(*(tf.constant(values[spec.name], spec.dtype) for spec in specs))
        except tf.errors.InvalidArgumentError as error:
            raise ServingError(self.model, INVALID_ARGUMENT, error.message) from None
        return {name: answer.numpy() for name, answer in answers.items()}


def _fields(specs: list[tf.TensorSpec]) -> dict[str, Field]:
    return {
        spec.name: Field(np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape)) for spec in specs
    }
