"""What `fit` returns: a finished run, to look at and to ask."""

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
    """What `fit` returns."""

    config: Config
    directory: Path
    """Config, log, checkpoints, pictures, result.json."""
    history: dict[str, list[float]]
    """Metric -> value per epoch."""
    test: dict[str, Any]
    """Metrics of the test split, or of the validation split where there is no test split."""
    model: "keras.Model"
    """The bare network, from prepared inputs to outputs; `predict` starts from raw ones."""
    task: "Task"
    splits: dict[str, "Split"]
    """Decoded examples: train, validation, test."""
    export: Path | None
    """The published version, such as saved_models/digits/1."""
    result: dict[str, Any]
    """What `result.json` holds; empty in a worker that is not the chief."""
    result_file: Path | None
    """`result.json`: in `directory`, or in a temporary folder if that could not be written; None
    if neither could, and in a worker that is not the chief."""

    def __repr__(self) -> str:
        """What a notebook shows: not the arrays."""
        test = {name: round(v, 4) for name, v in self.test.items() if isinstance(v, float)}
        return f"Run(directory={str(self.directory)!r}, test={test}, export={str(self.export)!r})"

    def predict(self, signature: str = "serving_default", /, **inputs: Any) -> "dict[str, Any]":
        """What the exported model would answer: `run.predict(images=uint8_images)`.

        Args:
            signature: One of the names that the export offers.
            inputs: Its arguments by name, batch first; raw, as a client would send them.

        Raises:
            UsageError: No such signature or input; values that would change with its type, as
                pixels from 0 to 1 for uint8; or what a server would refuse.
        """
        import tensorflow as tf

        from pipeline.serving import signatures
        from pipeline.utils import protobuf

        offered = self.task.serve(self.model)
        require(isinstance(signature, str), "the signature", repr(signature)[:100], "a name")
        if signature not in offered:
            raise UsageError(f"there is no signature {signature!r}; {suggest(signature, offered)}")
        function, specs = offered[signature]
        fields = {
            spec.name: signatures.Field(
                protobuf.DTYPES[spec.dtype.as_datatype_enum], tuple(spec.shape.as_list())
            )
            for spec in specs
        }
        values = signatures.tensors(signatures.Signature(fields, {}), inputs)
        for spec in specs:
            if not spec.shape.is_compatible_with(values[spec.name].shape):
                shape = f"received {[*values[spec.name].shape]}"
                raise UsageError(f"{spec.name} must be {fields[spec.name]}, {shape}")
        try:
            answers = function(*(tf.constant(values[spec.name], spec.dtype) for spec in specs))
        except tf.errors.InvalidArgumentError as error:
            raise UsageError(reason(error)) from None
        return {name: answer.numpy() for name, answer in answers.items()}
