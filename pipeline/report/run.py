"""The result of `fit`: a finished run, whose model can be used."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.config import Config
from pipeline.config.validation import require
from pipeline.utils.errors import UsageError, reason, suggest

if TYPE_CHECKING:  # `import pipeline` offers `Run` without TensorFlow
    import keras

    from pipeline.contracts import Task
    from pipeline.data.splits import Split


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """The result of `fit`."""

    config: Config
    directory: Path
    """Config, log, checkpoints, plots, result.json."""
    history: dict[str, list[float]]
    """Metric -> value per epoch."""
    test: dict[str, Any]
    """Metrics of the test split, or of the validation split if there is no test split."""
    model: "keras.Model"
    """A plain Keras model in float32, from raw inputs to probabilities or numbers: that of the file
    `model.keras` in `directory`."""
    network: "keras.Model"
    """The network in training, from prepared inputs to logits or numbers."""
    task: "Task"
    splits: dict[str, "Split"]
    """Decoded examples: train, validation, test."""
    export: Path | None
    """The published version, such as saved_models/digits/1."""
    result: dict[str, Any]
    """The content of `result.json`; empty in a worker that is not the chief."""
    result_file: Path | None
    """`result.json`: in `directory`, or in a temporary directory if that could not be written; None
    if neither could, and in a worker that is not the chief."""

    def __repr__(self) -> str:
        """A short description for notebooks, without the arrays."""
        test = {name: round(v, 4) for name, v in self.test.items() if isinstance(v, float)}
        return f"Run(directory={str(self.directory)!r}, test={test}, export={str(self.export)!r})"

    def predict(self, signature: str = "serving_default", /, **inputs: Any) -> "dict[str, Any]":
        """Returns the answers of the exported model: `run.predict(images=uint8_images)`.

        Args:
            signature: Name of a signature of the export.
            inputs: Its arguments by name, batch first; raw, as a client sends them.

        Raises:
            UsageError: There is no such signature or input, a server would refuse the values, or
                conversion would change them, such as pixels from 0 to 1 converted to uint8.
        """
        import numpy as np
        import tensorflow as tf

        from pipeline.serving import signatures

        offered = self.task.serve(self.network)
        require(isinstance(signature, str), "the signature", repr(signature)[:100], "a name")
        if signature not in offered:
            raise UsageError(f"unknown signature {signature!r}; {suggest(signature, offered)}")
        function, specs = offered[signature]
        fields = {
            spec.name: signatures.Field(np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape))
            for spec in specs
        }
        values = signatures.tensors(signatures.Signature(fields, {}), inputs)
        try:
            answers = function(*(tf.constant(values[spec.name], spec.dtype) for spec in specs))
        except tf.errors.InvalidArgumentError as error:
            raise UsageError(reason(error)) from None
        return {name: answer.numpy() for name, answer in answers.items()}
