"""Compares runs: options, metrics with tests of their differences, and examples."""

import csv
import dataclasses
import html
import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.config import resume_policy, type_hints
from pipeline.data import dataset
from pipeline.evaluation import differences
from pipeline.evaluation.differences import Difference
from pipeline.evaluation.target_evaluation import Score, evaluation_of
from pipeline.report import run_sections
from pipeline.report.run import Run
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import console, safe_io
from pipeline.utils.columns import Columns
from pipeline.utils.errors import UsageError, reason

if TYPE_CHECKING:
    from pipeline.report.page import Section

_SEED = "--runtime.seed"
_SHOWN = 12  # examples of each kind in the report
_NAMES = 60  # characters of the names of classes in a message
_WIDTH = 30  # characters of the value of an option on the terminal


@dataclasses.dataclass(frozen=True, repr=False)
class Model:
    """A run, or several that differ only in their seed, and its test predictions."""

    runs: tuple[Run, ...]
    scores: tuple[dict[str, Score], ...]
    """Of each run."""
    examples: tuple[str, ...]
    """The names of the test examples, with what is right."""
    files: tuple[str, ...]
    correct: np.ndarray | None
    """The share of runs that predict an example right, (examples,); None: nothing is
    right or wrong.
    """

    @property
    def name(self) -> str:
        """Such as "runs/digits-1", or "runs/digits-1 (3 seeds)"."""
        name = str(self.runs[0].directory)
        return name if len(self.runs) == 1 else f"{name} ({len(self.runs)} seeds)"


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """What differs between models, and whether it is more than chance.

    Shown as text; a table in a notebook.
    """

    models: tuple[Model, ...]
    are_paired: bool
    """Whether all runs answered the same test examples."""
    differences: tuple[Difference, ...]
    """Of each metric between all pairs of models, the most important metric first."""

    @property
    def options(self) -> Columns:
        """The options that differ, with the value of each model."""
        first, *others = (model.runs[0].config for model in self.models)
        values: dict[str, list[str]] = {}
        for number, config in enumerate(others, start=1):
            found = run_sections.differences(first, config)
            for option, (before, after) in found.items():
                if not self._is_relevant(option):
                    continue
                row = values.setdefault(option, [_words(before)] * len(self.models))
                row[number] = _words(after)
        columns = Columns(option=list(values))
        for number, model in enumerate(self.models):
            columns[model.name] = [row[number] for row in values.values()]
        return columns

    def _is_relevant(self, option: str) -> bool:
        """Whether an option can change a result, and does not differ by design."""
        section, _, name = option.partition(".")
        has_several_seeds = any(len(model.runs) > 1 for model in self.models)
        if option == "runtime.seed" and has_several_seeds:
            return False
        if option == "runtime.time_limit":  # the learning rate follows it
            return True
        return name not in resume_policy.HARMLESS.get(section, ())

    @property
    def metrics(self) -> Columns:
        """Each difference with its 95 % interval and p-value."""
        rows: list[dict[str, Any]] = []
        for item in self.differences:
            row: dict[str, Any] = {"metric": item.metric.replace("_", " ")}
            row |= {"first": item.models[0], "second": item.models[1]}
            row |= {"value of first": item.values[0]}
            row |= {"value of second": item.values[1]}
            row |= {"difference": item.value, "low": item.low, "high": item.high}
            rows.append({**row, "p": item.p, "test": item.test})
        return Columns({name: [row[name] for row in rows] for name in rows[0]})

    @property
    def examples(self) -> Columns:
        """The test examples that some runs predict correctly and others do not."""
        shares = self._shares()
        if shares is None:
            return Columns()
        differs = np.flatnonzero(np.ptp(shares, axis=0) > 0)
        order = differs[np.argsort(-np.ptp(shares[:, differs], axis=0), kind="stable")]
        columns = Columns(file=[self.models[0].files[at] for at in order])
        for model, share in zip(self.models, shares, strict=True):
            columns[model.name] = share[order].tolist()
        return columns

    def _shares(self) -> np.ndarray | None:
        """The share of runs of each model that are right, (models, examples)."""
        shares = [model.correct for model in self.models]
        if not self.are_paired or any(share is None for share in shares):
            return None
        return np.stack(shares)  # type: ignore[arg-type]

    @property
    def sentences(self) -> list[str]:
        """What can be said about the most important metric, for each pair."""
        return [
            _sentence(item)
            for item in self.differences
            if item.metric == self.differences[0].metric
        ]

    @property
    def notes(self) -> list[str]:
        """What a reader must know about the tests."""
        notes = []
        if not self.are_paired:
            notes.append(
                "the runs were tested on different examples, so the test is not paired;"
                " pipeline evaluate measures both on the same data"
            )
        if any(len(model.runs) == 1 for model in self.models):
            notes.append(
                "the tests say how much the choice of test examples explains; another"
                " seed may change a model as much: give several runs that differ in"
                " --seed"
            )
        splits = {run.test_split for model in self.models for run in model.runs}
        if splits != {"test"}:
            notes.append(f"measured on the {console.join_words(sorted(splits))} split")
        return notes

    def right_only(self, number: int, other: int) -> np.ndarray:
        """Positions of the test examples that one model predicts right more often than
        another, the largest differences first.
        """
        shares = self._shares()
        if shares is None:
            return np.empty(0, np.int64)
        gain = shares[number] - shares[other]
        order = np.argsort(-gain, kind="stable")
        return order[gain[order] > 0]

    def __repr__(self) -> str:
        count = len(self.models[0].examples)
        lines = [f"{'compared':10} {console.pluralize(count, 'test example')}"]
        options = self.options
        if options["option"]:
            header = ["", *(name for name in list(options)[1:])]
            rows = [[cell[:_WIDTH] for cell in row] for row in options.rows()]
            lines += ["", *console.table(rows, header).splitlines()]
        header = ["", *(model.name for model in self.models)]
        rows = []
        for metric in dict.fromkeys(item.metric for item in self.differences):
            values: dict[str, float] = {}
            for item in self.differences:
                if item.metric == metric:
                    values |= dict(zip(item.models, item.values, strict=True))
            numbers = [f"{values[model.name]:.4f}" for model in self.models]
            rows.append([metric.replace("_", " "), *numbers])
        right = range(1, len(header))
        lines += ["", *console.table(rows, header, right).splitlines(), ""]
        lines += [f"{'result':10} {sentence}" for sentence in self.sentences]
        if len(self.models) == 2 and self._shares() is not None:
            for number, other in ((0, 1), (1, 0)):
                names = [self.models[at].name for at in (number, other)]
                found = len(self.right_only(number, other))
                text = f"{found:,} right in {names[0]} but wrong in {names[1]}"
                lines.append(f"{'examples':10} {text}")
        lines += [f"{'note':10} {note}" for note in self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        sentences = [*self.sentences, *self.notes]
        parts = [f"<p>{html.escape(sentence)}</p>" for sentence in sentences]
        parts += [_html_table(self.options), _html_table(self.metrics)]
        return "".join(parts)


def _html_table(columns: Columns) -> str:
    if not any(columns.values()):
        return ""
    rows = []
    for cells in (list(columns), *columns.rows()):
        texts = [f"<td>{html.escape(cell)}</td>" for cell in cells]
        rows.append(f"<tr>{''.join(texts)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _sentence(item: Difference) -> str:
    metric = item.metric.replace("_", " ")
    interval = f"{item.value:+.4f}, 95% interval {item.low:+.4f} to {item.high:+.4f}"
    evidence = f"{interval}; {item.test}, p = {item.p:.2g}"
    if item.better is None:
        between = f"between {item.models[0]} and {item.models[1]}"
        return f"{metric}: no significant difference {between} ({evidence})"
    return f"{metric}: {item.better} is better ({evidence})"


def _words(value: Any) -> str:
    return " ".join(type_hints.words(value)) or "none"


def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Compares finished runs of the same task.

    Runs that differ only in their seed are one model, unless all do.

    Raises:
        UsageError: There are fewer than two runs, one is unfinished or damaged, or
            their tasks differ.
    """
    opened = [run if isinstance(run, Run) else Run.load(run) for run in runs]
    if len(opened) < 2:
        raise UsageError("give at least two runs to compare, such as runs/digits-1")
    found: set[Path] = set()
    for run in opened:
        if run.directory.resolve() in found:
            raise UsageError(f"{run.directory} is given twice")
        found.add(run.directory.resolve())
    groups = _group(opened)
    if len(groups) == 1:
        groups = [[run] for run in opened]
    models = tuple(_model(group) for group in groups)
    _require_same_task(models)
    are_paired = len({model.examples for model in models}) == 1
    scores = {model.name: model.scores for model in models}
    tested = differences.differences(scores, are_paired)
    return Comparison(models, are_paired, tuple(tested))


def _group(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ only in their seed together."""
    groups: list[list[Run]] = []
    for run in runs:
        for group in groups:
            configs = group[0].config.as_json(), run.config.as_json()
            changes = resume_policy.changes(*configs)
            limits = {r.config.runtime.time_limit for r in (group[0], run)}
            if len(limits) == 1 and all(change.flag == _SEED for change in changes):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def _require_same_task(models: Sequence[Model]) -> None:
    first, *others = models
    for model in others:
        if list(model.scores[0]) != list(first.scores[0]):
            metrics = [console.join_words(list(m.scores[0])) for m in (first, model)]
            raise UsageError(
                f"{first.name} and {model.name} solve different tasks, measured by"
                f" {metrics[0]} and by {metrics[1]}; compare runs of one task"
            )
        names = [_predictions(first), _predictions(model)]
        if names[0] != names[1]:
            shown = [
                textwrap.shorten(text, _NAMES, placeholder=" ...") for text in names
            ]
            raise UsageError(
                f"{first.name} and {model.name} solve different tasks: {shown[0]}; and"
                f" {shown[1]}; compare runs of one task"
            )


def _predictions(model: Model) -> str:
    """The class names of a model, or the name of its target."""
    metadata = _metadata(model.runs[0])
    if "class_names" in metadata:
        return f"the classes {', '.join(metadata['class_names'])}"
    return f"the number {metadata.get('target_name')}"


def _metadata(run: Run) -> Mapping[str, Any]:
    return safe_io.read_json(RunDirectory(run.directory).metadata)


def _model(runs: Sequence[Run]) -> Model:
    tables = [_read_predictions(run) for run in runs]
    scores = []
    for run, table in zip(runs, tables, strict=True):
        task = dataset.create_task(run.config, _metadata(run))
        run_scores = evaluation_of(task.target).scores(table)
        if not run_scores:
            raise UsageError(
                f"{run.directory}: no metric can be computed from its predictions"
            )
        scores.append(run_scores)
    names = {_names(table) for table in tables}
    if len(names) > 1:
        raise UsageError(
            f"{runs[0].directory} and the runs with other seeds were tested on"
            " different examples; set --data.split-seed, so that their splits are equal"
        )
    correct = None
    if "correct" in tables[0]:
        correct = np.mean([table["correct"] == "True" for table in tables], axis=0)
    files = tuple(tables[0]["file"].tolist())
    return Model(tuple(runs), tuple(scores), names.pop(), files, correct)


def _read_predictions(run: Run) -> dict[str, np.ndarray]:
    """The columns of `predictions.csv`, as texts."""
    files = RunDirectory(run.directory)
    run_directory.require_format(files, safe_io.read_json(files.config))
    path = run.directory / "predictions.csv"
    if not run.result or not path.is_file():
        raise UsageError(
            f"{run.directory} is not finished; pipeline fit --resume {run.directory}"
            " continues it"
        )
    try:
        header, *rows = csv.reader(io.StringIO(safe_io.read_text(path)))
        columns = zip(header, zip(*rows, strict=True), strict=True)
        return {name: np.array(values, object) for name, values in columns}
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{path} is damaged: {reason(error)}") from None


def _names(table: dict[str, np.ndarray]) -> tuple[str, ...]:
    """The names of the examples with what is right: equal if the examples are."""
    columns = [table["file"]]
    columns += [values for name, values in table.items() if name.startswith("truth")]
    return tuple("\t".join(map(str, row)) for row in zip(*columns, strict=True))


def sections(compared: Comparison) -> Iterator["Section"]:
    """The parts of the report."""
    from pipeline.report import blocks
    from pipeline.report.page import Section

    yield Section("Metrics", [blocks.TableBlock(compared.metrics)])
    if compared.options["option"]:
        yield Section("Options that differ", [blocks.TableBlock(compared.options)])
    yield Section("Training", [blocks.drawing(*_curves(compared))])
    cards = list(_cards(compared))
    if cards:
        yield Section("Examples", cards)


def _curves(compared: Comparison) -> Iterator[Any]:
    """Draws each metric of validation, or else of training, of all runs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    runs = [run for model in compared.models for run in model.runs]
    names = [name for name in runs[0].history if f"val_{name}" in runs[0].history]
    for name in names or ["loss"]:
        key = f"val_{name}" if names else name
        figure = Figure(figsize=(4.2, 2.8), layout="constrained")
        axes = figure.subplots()
        for number, model in enumerate(compared.models):
            for run in model.runs:
                values = run.history.get(key, ())
                label = model.name if run is model.runs[0] else None
                epochs = np.arange(1, len(values) + 1)
                axes.plot(epochs, values, color=f"C{number}", label=label)
        axes.set_title(key.replace("_", " "), fontsize=10, parse_math=False)
        axes.set_xlabel("epoch", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        yield figure


def _cards(compared: Comparison) -> Iterator[Any]:
    """The examples that just one of two models predicts right, with the wrong one."""
    from pipeline.report import blocks, examples

    if compared._shares() is None:
        return
    for right, wrong in ((0, 1), (1, 0)):
        positions = compared.right_only(right, wrong)
        names = compared.models[right].name, compared.models[wrong].name
        yield blocks.Heading(f"Right in {names[0]}, wrong in {names[1]}")
        count = console.pluralize(len(positions), "example")
        yield blocks.Text(f"{count}; with the predictions of {names[1]}.")
        if not len(positions):
            continue
        try:
            evaluation = compared.models[wrong].runs[-1].evaluation
            cards = examples.answered(evaluation, positions[:_SHOWN])
        except Exception as error:  # the data is gone, or a task of the user's own
            files = [compared.models[0].files[at] for at in positions[:_SHOWN]]
            yield blocks.TableBlock(Columns(file=files))
            yield blocks.Text(f"They could not be drawn: {reason(error)}")
            continue
        yield blocks.Cards(cards)
