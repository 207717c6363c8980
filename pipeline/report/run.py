"""A run: the result of `fit`, or opened from its directory by a later process."""

import base64
import functools
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pipeline.config import command_line
from pipeline.config.config import Config
from pipeline.config.validation import require
from pipeline.data.split_names import SPLITS
from pipeline.runtime import run_directory, signals
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import files, safe_io
from pipeline.utils.errors import UsageError, reason

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
        known: What this process already has: `network`, `model`, `task`, `splits`, `evaluation`.
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
        from pipeline.report.tables import Columns

        self.config, self.directory, self.result = config, directory, dict(result)
        self.history, self.result_file = Columns(history), result_file
        self.judged = next((n for n in reversed(SPLITS) if n in result), "")
        """The split of `test`: test, or else validation, or else train; empty if unfinished."""
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
        try:
            config = command_line.read(place.config)
        except UsageError:  # what it names is gone, such as the data
            config = command_line.read(place.config, names_only=True)
        try:
            lines = safe_io.read_text(place.log).splitlines() if place.log.exists() else []
            epochs = [json.loads(line) for line in lines if line.endswith("}")]
            is_finished = place.result.exists()
            result = files.expand_home(safe_io.read_json(place.result)) if is_finished else {}
            names = {
                n: 0 for epoch in epochs for n in epoch if n not in ("epoch", "step", "seconds")
            }
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{path} is damaged: {reason(error)}") from None
        history = {n: [math.nan if e.get(n) is None else e[n] for e in epochs] for n in names}
        return cls(config, place.path, history, result, place.result if is_finished else None)

    @classmethod
    def unfinished(cls, trainer: "Trainer", error: BaseException) -> Self:
        """What there is of a run that the user of a notebook interrupted; else raises the error."""
        asked = isinstance(signals.behind(error), KeyboardInterrupt)
        if not (asked and hasattr(sys, "ps1") and getattr(trainer, "checkpoint", None)):
            raise error
        model, data = trainer.model, trainer.data
        model.step.update.show_ema()
        known = {"network": model, "task": data.task, "splits": data.splits}
        return cls(trainer.config, trainer.run.path, trainer.checkpoint.history, {}, **known)

    @functools.cached_property
    def task(self) -> "Task":
        """The problem: its answers, metrics and signatures."""
        return _stored().task(self.config, self._place, self.result.get("calibration", {}))

    @functools.cached_property
    def network(self) -> "SteppedModel":
        """The network in training, from prepared inputs to logits or numbers."""
        return _stored().network(self.config, self._place, self.task)

    @functools.cached_property
    def model(self) -> "keras.Model":
        """A plain Keras model in float32, from raw inputs to probabilities or numbers: that of the
        file `model.keras` in `directory`, or the latest weights of an unfinished run."""
        model = self.network
        if model.dtype_policy.name != "float32":
            from pipeline.training.model_builder import twin

            model = twin(model, self.task, self.config.model)
        return model.plain()

    @functools.cached_property
    def splits(self) -> "dict[str, Split]":
        """Decoded examples: train, validation, test."""
        _stored()
        from pipeline.data import dataset

        config = command_line.read(self._place.config)
        return dataset.load(config.changed(run_directory=self.directory)).splits

    @functools.cached_property
    def evaluation(self) -> "Evaluation":
        """The answers to the split that the run is judged by."""
        return self.evaluate(split=self.judged or None)

    def evaluate(self, data: Any = None, split: str | None = None) -> "Evaluation":
        """Measures the run on labelled data, without the examples being in memory at once.

        Args:
            data: Whatever `fit` takes as `data`, or a path of class folders or an `.npz` file.
                Classes are matched by name. None: the data of the run.
            split: One of the splits of the data; None: test, or else validation, or else train.

        Raises:
            UsageError: The data is gone or does not fit the model.
        """
        stored = _stored()
        if data is None and split in (None, self.judged) and "evaluation" in vars(self):
            return self.evaluation
        if data is None:
            found = stored.own(self.config, self._place, self.task, split)
        else:
            found = stored.other(data, self.task, split)
        return stored.evaluated(self.network, self.task, found, self.config.train)

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
        task, network = self.task, self.network
        from pipeline.report.in_process import InProcess
        from pipeline.report.tables import Columns
        from pipeline.serving import file_predictions

        served = InProcess(task, network, str(self.directory))
        if inputs:
            signature = "serving_default" if data is None else data
            require(isinstance(signature, str), "the signature", repr(data)[:100], "a name")
            return served.predict(signature, **inputs)
        words = [data] if isinstance(data, str | Path) else data
        if isinstance(words, list | tuple) and all(isinstance(word, str | Path) for word in words):
            rows: list[dict[str, Any]] = list(file_predictions.predict(served, words))
            names = dict.fromkeys(name for row in rows for name in row)
            return Columns({name: [row.get(name) for row in rows] for name in names})
        (name, *_) = served.metadata()["serving_default"].inputs
        return served.predict(**{name: data})

    def plot(self) -> "Figure":
        """A figure of the curves: loss, metrics and learning rate of each epoch."""
        from pipeline.report import pictures

        return pictures.curves(self.history)

    def mistakes(self) -> "Figure":
        """A figure of the worst answers, with truth, answer, probability and file; `evaluation`
        has all of them as `predictions`."""
        return self.evaluation.mistakes()

    def __repr__(self) -> str:
        return "\n".join(
            [f"Run({str(self.directory)!r})", *(f"  {n:10} {t}" for n, t in self._lines())]
        )

    def _repr_html_(self) -> str:
        from pipeline.report import pictures
        from pipeline.report.tables import html_table

        shown = [pictures.png(self.plot())] if self.history else []
        matrix = self.directory / "confusion_matrix.png"
        shown += [matrix.read_bytes()] if matrix.is_file() else []
        images = (
            '<img style="max-height:24em" src="data:image/png;base64,'
            f'{base64.b64encode(png).decode()}">'
            for png in shown
        )
        return html_table(["run", self.directory], self._lines()) + "".join(images)

    def _lines(self) -> list[tuple[str, str]]:
        """Names and texts about the run."""
        from pipeline.report.tables import numbers

        done = f"{len(self.history.get('loss', ())):,} of {self.config.train.epochs:,} epochs"
        if self.result:
            done += f", {self.result['steps']:,} steps, {self.result['seconds']:,.0f} s"
            return [
                (self.judged, numbers(self.test)),
                ("training", done),
                ("export", str(self.export or "none")),
            ]
        saved = run_directory.steps(self._place.checkpoints)
        lines = [("training", f"unfinished: {done}, saved at step {max(saved, default=0):,}")]
        last = {n: v[-1] for n, v in self.history.items() if n.endswith(("loss", "accuracy"))}
        again = f"fit(..., run_directory={str(self.directory)!r}) continues"
        return [*lines, ("last epoch", numbers(last)), ("next", again)]

    @property
    def _place(self) -> RunDirectory:
        return RunDirectory(self.directory)


def _stored() -> Any:
    """The module `stored`, which imports TensorFlow."""
    from pipeline.runtime import environment

    environment.import_tensorflow()
    from pipeline.report import stored

    return stored
