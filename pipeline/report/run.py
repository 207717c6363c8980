"""A run: the result of `fit`, or opened from its directory by a later process."""

import base64
import functools
import html
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from pipeline.config import command_line, registry
from pipeline.config.config import Config
from pipeline.data.split_names import SPLITS
from pipeline.report.tables import Columns
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import files, safe_io
from pipeline.utils.console import numbers
from pipeline.utils.errors import UsageError, reason, suggest

if TYPE_CHECKING:  # `import pipeline` offers `Run` without TensorFlow
    import keras
    from matplotlib.figure import Figure

    from pipeline.contracts import Task
    from pipeline.data.splits import Split
    from pipeline.report.results import Evaluation
    from pipeline.training.stepped_model import SteppedModel
    from pipeline.training.trainer import Trainer


class Run:
    """The result of `fit`, or of `Run.load`, which reads data and model when they are used.

    Args:
        config: Options of the run.
        directory: Config, log, checkpoints, pictures, result.json.
        history: Metric -> value per epoch.
        result: The content of `result.json`; empty if the run is unfinished.
        result_file: `result.json`: in `directory`, or in a temporary directory if that could not be
            written; None if neither could, and in a worker that is not the chief.
        known: What this process already has: `trainer`, `model`, `evaluation`.
    """

    def __init__(
        self,
        config: Config,
        directory: Path,
        history: Mapping[str, list[float]],
        result: Mapping[str, Any],
        result_file: Path | None = None,
        **known: Any,
    ) -> None:
        self.config, self.directory, self.result = config, directory, dict(result)
        self.history, self.result_file = Columns(history), result_file
        self.judged = next((name for name in reversed(SPLITS) if name in result), "")
        """The split that the run is judged by: test, or else validation, or else train."""
        self.test: dict[str, Any] = self.result.get(self.judged, {})
        """Metrics of that split."""
        self.export = Path(result["export"]) if result.get("export") else None
        """The published version, such as saved_models/digits/1."""
        vars(self).update(known)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Opens a run from its directory; it may be unfinished, and its data may be gone.

        Raises UsageError if there is no run, or if one of its files is damaged.
        """
        place = RunDirectory(Path(path))
        if not place.config.is_file():
            raise UsageError(f"{path} is not a run: it has no config.json")
        config = command_line.read(place.config, names_only=True)  # what it names may be gone
        try:
            lines = safe_io.read_text(place.log).splitlines() if place.log.exists() else []
            # Each begins with epoch, step and seconds; the last may be incomplete.
            epochs = [json.loads(line) for line in lines if line.endswith("}")]
            result = safe_io.read_json(place.result) if place.result.exists() else {}
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is damaged: {reason(error)}") from None
        names = dict.fromkeys(name for epoch in epochs for name in list(epoch)[3:])
        history = {n: [math.nan if e.get(n) is None else e[n] for e in epochs] for n in names}
        written = place.result if result else None
        return cls(config, place.path, history, files.expand_home(result), written)

    @functools.cached_property
    def trainer(self) -> "Trainer":
        """The data of the run, and its network with the state of the training."""
        start = time.monotonic()
        from pipeline.runtime import environment

        machine = environment.start(self.config.runtime)
        from pipeline.export import handoff

        config = self.config.changed(run_directory=self.directory)
        found = handoff.restored(config, machine, start)
        found.choose_weights()
        return found.trainer

    @functools.cached_property
    def task(self) -> "Task":
        """The problem: its answers, metrics and signatures."""
        from pipeline.runtime import environment

        environment.import_tensorflow()
        from pipeline.evaluation import evaluate

        metadata, options = safe_io.read_json(self._files.metadata), self.config.task
        found = registry.call("tasks", options.name, options.options, metadata)
        return evaluate.calibrated_by(found, self.result.get("calibration", {}))

    @functools.cached_property
    def network(self) -> "SteppedModel":
        """The network in training, from prepared inputs to logits or numbers."""
        if not self._files.model.is_file():
            return self.trainer.model
        task = self.task
        from pipeline.export import stored_run

        try:
            network = stored_run.network(self.config, self._files)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{self._files.model} cannot be opened: {reason(error)}") from None
        network.task = task
        return network

    @functools.cached_property
    def model(self) -> "keras.Model":
        """A plain Keras model in float32, from raw inputs to probabilities or numbers: that of the
        file `model.keras` in `directory`, or the latest weights of an unfinished run."""
        network = self.network
        if network.dtype_policy.name != "float32":
            from pipeline.training.model_builder import twin

            network = twin(network, self.task, self.config.model)
        return network.plain()

    @property
    def splits(self) -> "dict[str, Split]":
        """Decoded examples: train, validation, test."""
        return self.trainer.data.splits

    @functools.cached_property
    def evaluation(self) -> "Evaluation":
        """The answers to the split that the run is judged by."""
        return self.evaluate(split=self.judged or None)

    def evaluate(self, data: Any = None, split: str | None = None) -> "Evaluation":
        """Measures the run on labelled data.

        Args:
            data: Whatever `fit` takes as `data`, or a path of class folders or an `.npz` file.
                Classes are matched by name. None: the data of the run.
            split: One of the splits of the data; None: test, or else validation, or else train.

        Raises:
            UsageError: The data is gone or does not fit the model.
        """
        task, network = self.task, self.network if data is not None else self.trainer.model
        from pipeline.report import stored

        if data is not None:
            return stored.evaluated(
                network, task, stored.labelled(data, task, split), self.config.train
            )
        split = split or next(name for name in reversed(SPLITS) if name in self.splits)
        if split not in self.splits:
            raise UsageError(f"unknown split {split!r}; {suggest(split, self.splits)}")
        found = (split, self.splits[split], self.trainer.data.source.location)
        return stored.evaluated(network, task, found, self.config.train)

    def predict(self, data: Any = None, /, **inputs: Any) -> Any:
        """Returns the answers of the model: `run.predict(images)` or `run.predict("photos")`.

        Args:
            data: An array of raw inputs, batch first; or files: a path, a pattern, a directory or a
                list of them. With `inputs`, the name of a signature.
            inputs: Arguments of the signature by name, as a client sends them.

        Returns:
            Name -> array of answers; for files, a table with a row for each, with `error` if a file
            cannot be read.

        Raises:
            UsageError: There is no such signature or input, a server would refuse the values, or
                conversion would change them, such as pixels from 0 to 1 converted to uint8.
        """
        offered = self.task.serve(self.network)
        import numpy as np
        import tensorflow as tf

        from pipeline.serving import file_predictions, signatures

        known = {
            name: signatures.Signature(
                {
                    spec.name: signatures.Field(
                        np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape)
                    )
                    for spec in specs
                },
                {},
            )
            for name, (_, specs) in offered.items()
        }

        def ask(signature: str, /, **inputs: Any) -> dict[str, Any]:
            if signature not in offered:
                raise UsageError(f"unknown signature {signature!r}; {suggest(signature, offered)}")
            function, specs = offered[signature]
            values = signatures.tensors(known[signature], inputs)
            try:
                answers = function(*(tf.constant(values[s.name], s.dtype) for s in specs))
            except tf.errors.InvalidArgumentError as error:
                invalid = signatures.INVALID_ARGUMENT
                raise signatures.ServingError("the model", invalid, error.message) from None
            return {name: answer.numpy() for name, answer in answers.items()}

        default = "serving_default"
        if inputs:
            return ask(data or default, **inputs)
        words = [data] if isinstance(data, str | Path) else data
        if not isinstance(words, list) or not isinstance(words[0], str | Path):
            (name,) = known[default].inputs
            return ask(default, **{name: data})
        served = SimpleNamespace(metadata=lambda: known, predict=ask, model=self.directory)
        served.feature_names = self.task.metadata.get("feature_names")
        rows: list[dict[str, Any]] = list(file_predictions.predict(served, words))
        names = dict.fromkeys(name for row in rows for name in row)
        return Columns({name: [row.get(name) for row in rows] for name in names})

    def plot(self) -> "Figure":
        """A figure of the curves: loss, metrics and learning rate of each epoch."""
        from pipeline.report import pictures

        return pictures.curves(self.history)

    def mistakes(self) -> "Figure":
        """A figure of the worst answers, with truth, answer, probability and file; all answers are
        in `evaluation.predictions`."""
        return self.evaluation.mistakes()

    def __repr__(self) -> str:
        done = f"{len(self.history.get('loss', ())):,} of {self.config.train.epochs:,} epochs"
        lines = [f"training    unfinished: {done}; fit(..., run_directory=...) continues"]
        if self.result:
            lines = [
                f"{self.judged:10}  {numbers(self.test)}",
                f"training    {done}, {self.result['steps']:,} steps",
                f"export      {self.export or 'none'}",
            ]
        return "\n  ".join([f"Run({str(self.directory)!r})", *lines])

    def _repr_html_(self) -> str:
        from pipeline.report import pictures

        matrix = self.directory / "confusion_matrix.png"
        shown = [pictures.png(self.plot()), *[matrix.read_bytes()] * matrix.is_file()]
        images = (
            f'<img style="max-height:24em" src="data:image/png;base64,{data}">'
            for data in (base64.b64encode(png).decode() for png in shown)
        )
        return f"<pre>{html.escape(repr(self))}</pre>{''.join(images)}"

    @property
    def _files(self) -> RunDirectory:
        return RunDirectory(self.directory)
