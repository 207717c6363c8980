"""A run, returned by `fit` or loaded from its directory."""

import base64
import functools
import html
import json
import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from pipeline.config import command_line, objects, registry, resume_policy
from pipeline.config.config import Config
from pipeline.data import split_names
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import safe_io
from pipeline.utils.columns import Columns
from pipeline.utils.console import numbers, pluralize, spread
from pipeline.utils.errors import UsageError, reason, suggest

if TYPE_CHECKING:  # `import pipeline` offers `Run` without TensorFlow
    import keras
    import numpy as np
    from matplotlib.figure import Figure

    from pipeline.contracts import Task
    from pipeline.data.splits import Split
    from pipeline.evaluation.labelled_data import Examples
    from pipeline.report.evaluation import Evaluation
    from pipeline.training.train_step import SteppedModel
    from pipeline.training.trainer import Trainer


_PROGRESS = ("epoch", "step", "seconds")  # of a line of log.jsonl beside its metrics


class Run:
    """The result of `fit`, or of `Run.load`, which loads data and model at first use.

    Args:
        config: Options of the run.
        directory: Config, log, checkpoints, pictures, result.json.
        history: Metric -> value per epoch.
        result: The content of `result.json`; empty if the run is unfinished.
        result_file: Path of `result.json`: in `directory`, or in a temporary directory
            if that could not be written; None if neither could be written, and in a
            worker that is not the chief.
        trainer: The property, if this process already has it.
        model: The property, if this process already has it.
        evaluation: The property, if this process already has it.
    """

    def __init__(
        self,
        config: Config,
        directory: Path,
        history: Mapping[str, list[float]],
        result: Mapping[str, Any],
        result_file: Path | None = None,
        *,
        trainer: "Trainer | None" = None,
        model: "keras.Model | None" = None,
        evaluation: "Evaluation | None" = None,
    ) -> None:
        self.config = config
        self.directory = directory
        self.history = Columns(history)
        self.result = dict(result)
        self.result_file = result_file
        self.test_split = split_names.evaluation_split(result)
        """The split of the final test: test, or else validation, or else train."""
        self.test: dict[str, Any] = self.result.get(self.test_split, {})
        """Metrics of `test_split`."""
        self.export = Path(result["export"]) if result.get("export") else None
        """The published version, such as saved_models/digits/1."""
        self._files = RunDirectory(directory)
        self._trainer = trainer
        self._model = model
        self._evaluation = evaluation
        self._has_other_options = False

    @classmethod
    def load(cls, path: str | Path, task: Mapping[str, Any] | None = None) -> Self:
        """Opens a run from its directory; it may be unfinished, and its data may be
        gone.

        Args:
            path: The directory.
            task: Options of its task that decide how it is measured, such as
                `{"samples": 10_000, "judge": "runs/digits-1"}` of generation.

        Raises:
            UsageError: There is no run, one of its files is damaged, or an option
                decides what it has learned.
        """
        run = RunDirectory(Path(path))
        if not run.config.is_file():
            raise UsageError(f"{path} is not a run: it has no config.json")
        # The functions and files that the config names may be gone.
        config = command_line.read(run.config, names_only=True)
        if task:
            config = _measured_otherwise(config, task)
        try:
            log = safe_io.read_text(run.log) if run.log.exists() else ""
            # The last line may be incomplete.
            lines = [line for line in log.splitlines() if line.endswith("}")]
            epochs = [json.loads(line) for line in lines]
            result = safe_io.read_json(run.result) if run.result.exists() else {}
            if not isinstance(result, dict):
                raise ValueError(f"{run.result.name} is not an object")
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is damaged: {reason(error)}") from None
        names: dict[str, None] = {}  # ordered, without duplicates
        for epoch in epochs:
            names |= dict.fromkeys(name for name in epoch if name not in _PROGRESS)
        history = {}
        for name in names:
            values = [epoch.get(name) for epoch in epochs]
            history[name] = [math.nan if v is None else v for v in values]
        loaded = cls(config, run.path, history, result, run.result)
        loaded._has_other_options = bool(task)
        return loaded

    @property
    def trainer(self) -> "Trainer":
        """The data of the run, and its network with the state of the training."""
        if self._trainer is None:
            self._trainer = self._restore()
        return self._trainer

    def _restore(self) -> "Trainer":
        # One device of this machine is enough, whatever the run was trained on.
        runtime = {**run_directory.ANY_MACHINE, "replicas": 1}
        config = self.config.changed(run_directory=self.directory, runtime=runtime)
        # The modules import TensorFlow.
        from pipeline.runtime import environment

        machine = environment.start(config.runtime)
        from pipeline.export import handoff

        trainer = handoff.restore_trainer(config, machine)
        trainer.checkpoint.restore_final_weights()
        trainer.model.step.update.swap_ema()
        return trainer

    @functools.cached_property
    def task(self) -> "Task":
        """The task: its predictions, metrics and signatures."""
        task = self.network.task
        from pipeline.evaluation import evaluate

        return evaluate.apply_calibration(task, self.result.get("calibration", {}))

    @property
    def network(self) -> "SteppedModel":
        """The network in training, from prepared inputs to logits or numbers."""
        is_stored = self._files.model.is_file() and not self._has_other_options
        if self._trainer is not None or not is_stored:
            return self.trainer.model  # another one after a roll-back
        return self._stored_network

    @functools.cached_property
    def _stored_network(self) -> "SteppedModel":
        from pipeline.runtime import environment

        environment.import_tensorflow()
        from pipeline.export import handoff

        try:
            return handoff.stored_network(self.config, self._files)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"{self._files.model} cannot be opened: {reason(error)}"
            ) from None

    @property
    def model(self) -> "keras.Model":
        """A plain Keras model, from raw inputs to probabilities or numbers.

        It is the file `model.keras` in `directory`, in float32, or has the latest
        weights of an unfinished run.
        """
        if self._model is None:
            self._model = self.network.to_keras_model()
        return self._model

    @property
    def splits(self) -> "dict[str, Split]":
        """Decoded examples: train, validation, test."""
        return self.trainer.data.splits

    @property
    def evaluation(self) -> "Evaluation":
        """The predictions for `test_split`."""
        if self._evaluation is None:
            self._evaluation = self.evaluate()
        return self._evaluation

    def test_evaluation(
        self, table: "dict[str, np.ndarray]", pictures: "dict[str, np.ndarray]"
    ) -> "Evaluation":
        """The evaluation of the final test, from the predictions of this process."""
        from pipeline.evaluation.predictions import prediction_function
        from pipeline.report.evaluation import Evaluation

        return Evaluation(
            self.test_split,
            self.task,
            self.test,
            table,
            self.splits[self.test_split],
            self.trainer.data.source.location,
            prediction_function(self.network, self.task),
            self.network,
            pictures,
        )

    def evaluate(
        self,
        data: Any = None,
        split: str | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> "Evaluation":
        """Evaluates the run on labelled data.

        Args:
            data: Whatever `fit` takes as `data`, or a path of class folders or an
                `.npz` file. Classes are matched by name. None: the data of the run.
            split: One of the splits of the data; None: test, or else validation, or
                else all.
            source: Options of the source of a path, such as `{"label": "species"}` for
                a table; by default, columns have the names that the run used.

        Raises:
            UsageError: The data is gone or does not fit the model.
        """
        if data is None:
            self._require_data()
            # First: TensorFlow's devices are set up before anything else uses them.
            examples = self._examples()
        from pipeline.evaluation import labelled_data
        from pipeline.report.evaluation import Evaluation

        task = self.task
        if data is not None:
            options = self.config.source.options
            examples = labelled_data.load_splits(data, task, options, source)
        training = self.splits["train"] if data is None else None
        evaluated = labelled_data.evaluate_split(
            self.network,
            task,
            examples,
            split,
            self.config.train,
            training,
            None if data is None else self._trained(),
        )
        return Evaluation.of(evaluated)

    def _trained(self) -> "tuple[str | None, np.ndarray] | None":
        """The fingerprint of the source, and the ids of the training examples."""
        from pipeline.utils import npz

        try:
            fingerprint = safe_io.read_json(self._files.source)["fingerprint"]
            return fingerprint, npz.read(self._files.splits, 2**32)["train"]
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def _examples(self) -> "Examples":
        return self.splits, self.trainer.data.source.location

    def _require_data(self) -> None:
        """Raises UsageError if the data of the run is needed, but gone."""
        name = self.config.source.name
        if self._trainer is None and objects.is_text_only(name):
            raise UsageError(
                f"the data of {self.directory} was an object of the process that"
                " started the run; pass labelled data: run.evaluate((x, y))"
            )
        path = self.config.source.options.get("path")
        if self._trainer is None and path and not Path(path).exists():
            directory = shlex.quote(str(self.directory))
            raise UsageError(
                f"{path} cannot be read, because it is gone; restore it, or pass"
                f" labelled data: pipeline evaluate {directory} PATH, or"
                " run.evaluate(PATH)"
            )

    def predict(self, data: Any = None, /, **inputs: Any) -> Any:
        """Returns the predictions of the model: `run.predict(images)` or
        `run.predict("photos")`.

        Args:
            data: An array of raw inputs, batch first, such as a list of texts; a
                dictionary or a list of several inputs; a DataFrame for a model of
                tables; or files: a path, a pattern, a directory or a list of them. With
                `inputs`, the name of a signature.
            inputs: Arguments of the signature by name, as a client sends them.

        Returns:
            Name -> array; for files, a table with a row for each, and `error` for
            unreadable files.

        Raises:
            UsageError: There is no such signature or input, no file can be read, a
                server would refuse the values, or conversion to uint8 would change
                them.
        """
        task = self.task
        network = self.network
        import tensorflow as tf

        from pipeline.data import table
        from pipeline.serving import file_predictions, signatures

        serving_inputs = {part.name: part for part in task.input.signatures()}
        served = {}
        for name, serving_input in serving_inputs.items():
            served[name] = signatures.of_specs(serving_input.specs.values())

        def ask(signature: str, /, **inputs: Any) -> dict[str, Any]:
            if signature not in serving_inputs:
                hint = suggest(signature, serving_inputs)
                raise UsageError(f"unknown signature {signature!r}; {hint}")
            serving_input = serving_inputs[signature]
            values = signatures.tensors(served[signature], inputs)
            for name, field in served[signature].inputs.items():
                shape = values[name].shape
                if not tf.TensorShape(field.shape).is_compatible_with(shape):
                    raise UsageError(f"{name} must be {field}; got {list(shape)}")
            arguments = []
            for name, spec in serving_input.specs.items():
                arguments.append(tf.constant(values[name], spec.dtype))
            try:
                predictions = task.serve(network, serving_input.read(*arguments))
            except tf.errors.InvalidArgumentError as error:
                raise signatures.ServingError(
                    "the model", signatures.INVALID_ARGUMENT, error.message
                ) from None
            arrays = {name: tensor.numpy() for name, tensor in predictions.items()}
            return signatures.to_prediction(arrays)

        if inputs:
            return ask(data or "serving_default", **inputs)
        if isinstance(data, Mapping):
            return ask("serving_default", **data)
        if "columns" in task.metadata:
            read = table.from_object(data, "the table")
            if read is not None and file_predictions.signature_of_files_and_columns(
                served
            ):
                data = read
            elif read is not None:
                signature = served["serving_default"]
                columns = file_predictions.arguments_of(read, signature, "the model")
                return ask("serving_default", **columns)
        words = [data] if isinstance(data, str | Path) else data
        are_files = isinstance(words, table.Table) or (
            isinstance(words, list)
            and all(isinstance(word, str | Path) for word in words)
        )
        if are_files and file_predictions.takes_texts(served):
            texts = [str(word) for word in words]
            are_files = all(map(os.path.exists, texts))
            if not are_files:
                data = texts
        if not are_files:
            arguments = list(serving_inputs["serving_default"].specs)
            if isinstance(data, list | tuple) and len(data) == len(arguments) > 1:
                return ask("serving_default", **dict(zip(arguments, data, strict=True)))
            if len(arguments) > 1:
                raise UsageError(
                    f"the model has the inputs {', '.join(arguments)}; pass each by its"
                    f" name: run.predict({arguments[0]}=..., ...)"
                )
            return ask("serving_default", **{arguments[0]: data})
        client = SimpleNamespace(
            metadata=lambda: served,
            predict=ask,
            model=self.directory,
            feature_names=task.metadata.get("feature_names"),
            suffixes={name: part.files for name, part in serving_inputs.items()},
            input_column=task.metadata.get(
                "input_name", self.config.source.options.get("column")
            ),
        )
        rows = list(file_predictions.predict(client, words))
        names: dict[str, None] = {}  # ordered, without duplicates
        for row in rows:
            names |= dict.fromkeys(row)
        if not names.keys() - {"file", "row", "error"}:
            raise UsageError(
                f"no file can be read; {rows[0]['file']}: {rows[0]['error']}"
            )
        return Columns({name: [row.get(name) for row in rows] for name in names})

    def plot(self) -> "Figure":
        """Draws the curves: loss, metrics and learning rate of each epoch."""
        from pipeline.report import pictures

        return pictures.curves(self.history)

    def mistakes(self, evaluation: "Evaluation | None" = None) -> "Figure":
        """Draws the worst predictions; `evaluation.predictions` has all of them.

        Args:
            evaluation: The result of `evaluate`; None: the evaluation of the run.
        """
        from pipeline.report import pictures

        return pictures.mistakes(evaluation or self.evaluation)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, such as in another process, is opened from the directory."""
        return type(self).load, (self.directory.resolve(),)

    def __repr__(self) -> str:
        count = len(self.history.get("loss", ()))
        epochs = f"{count:,} of {pluralize(self.config.train.epochs, 'epoch')}"
        lines = [
            f"training   unfinished: {epochs}; fit(..., run_directory=...) continues"
        ]
        if self.result:
            lines = [f"training   {epochs}"]
            if summary := self.result.get("cross_validation"):
                text = spread(summary["metrics"], summary["folds"])
                lines.append(f"folds      {text}")
            lines.append(f"{self.test_split:10} {numbers(self.test)}")
            from pipeline.evaluation.predictions import no_skill_warning

            if warning := no_skill_warning(self.result.get("no_better_than")):
                lines.append(f"warning    {warning}")
            lines.append(f"export     {self.export}")
        return "\n  ".join([f"Run({str(self.directory)!r})", *lines])

    def _repr_html_(self) -> str:
        from pipeline.report import pictures

        files = [pictures.png(self.plot())]
        for path in self.directory.glob("confusion_matrix.png"):
            files.append(path.read_bytes())
        images = ""
        for file in files:
            code = base64.b64encode(file).decode()
            images += f'<img height="300" src="data:image/png;base64,{code}">'
        return f"<pre>{html.escape(repr(self))}</pre>{images}"


def _measured_otherwise(config: Config, task: Mapping[str, Any]) -> Config:
    """The config of a run with other options of its task.

    Raises UsageError for an option that decides what it has learned.
    """
    changed = config.changed(task=dict(task))
    changeable = registry.changeable_options(config.task.name)
    configs = config.as_json(), changed.as_json()
    for change in resume_policy.changes(*configs, changeable):
        if not change.can_be_forced:
            raise UsageError(
                f"{change.flag} decides what a run learns, so it cannot be changed now"
            )
    return changed
