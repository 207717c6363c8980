"""`report.html` of a sweep: its trials, and which options matter."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from pipeline.config import search_space
from pipeline.config.search_space import Dimension
from pipeline.report import blocks, page
from pipeline.report.blocks import Block, TableBlock, Text
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training import tensorboard
from pipeline.utils import console, files
from pipeline.utils.columns import Columns

if TYPE_CHECKING:
    import optuna

NAME = "report.html"
_MIN_TRIALS = 4  # from which importances are computed


def write(study: "optuna.Study", folder: Path, space: Sequence[Dimension]) -> None:
    """Writes the page, the table of trials, and the options for TensorBoard."""
    best = study.best_trial
    metric, value = best.user_attrs["metric"], best.user_attrs["value"]
    options = search_space.describe(best.params)
    lead = [
        page.Line(
            f"Best: trial {best.number}, validation {metric} {value:.4f}: {options}."
        )
    ]
    lead.append(
        page.Line(
            "Measured on the validation split, to which the choice of the best of many"
            " trials is tuned; the test split has not been measured.",
            "warn",
        )
    )
    sections = [
        page.Section("Trials", [TableBlock(trials(study))]),
        page.Section("Search", list(_figures(study, space))),
    ]
    files.write_text(folder / NAME, page.html(f"Sweep {folder}", lead, sections))
    files.write_bytes(folder / "trials.csv", trials(study).csv())
    for trial in _complete(study):
        _write_options(RunDirectory(folder / "trials" / f"{trial.number:03}"), trial)


def trials(study: "optuna.Study") -> Columns:
    """All trials with their options, the best first."""
    rows = []
    for trial in sorted(study.trials, key=_rank):
        seconds = trial.duration.total_seconds() if trial.duration else None
        row = {"trial": trial.number, "state": trial.state.name.lower()}
        row |= {"value": trial.user_attrs.get("value"), "epochs": _epochs(trial)}
        rows.append({**row, "seconds": seconds, **trial.params})
    names = dict.fromkeys(name for row in rows for name in row)
    return Columns({name: [row.get(name) for row in rows] for name in names})


def table(study: "optuna.Study", count: int) -> str:
    """The best trials as text."""
    columns = trials(study)
    rows = columns.rows()[:count]
    return console.table(rows, list(columns), right=range(2, len(columns)))


def _rank(trial: "optuna.trial.FrozenTrial") -> tuple[float, int]:
    value = trial.value if trial.value is not None else np.inf
    return value, trial.number


def _epochs(trial: "optuna.trial.FrozenTrial") -> int:
    return trial.user_attrs.get("epochs", max(trial.intermediate_values, default=0))


def _complete(study: "optuna.Study") -> list["optuna.trial.FrozenTrial"]:
    return [trial for trial in study.trials if "value" in trial.user_attrs]


def _figures(study: "optuna.Study", space: Sequence[Dimension]) -> Iterator[Block]:
    """How the best value grew, each option against the metric, and importances."""
    found = _complete(study)
    figures = [_history(found)]
    figures += [_slice(found, dimension) for dimension in space]
    yield blocks.drawing(*figures)
    if len(found) < _MIN_TRIALS or len(space) < 2:
        return
    import optuna

    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    try:
        importances = optuna.importance.get_param_importances(
            study, evaluator=evaluator
        )
    except (RuntimeError, ValueError):  # all values are equal
        return
    yield blocks.Heading("Importance of the options")
    yield Text(
        "The share of the variance of the metric over the trials that an option"
        " explains (fANOVA, Hutter et al. 2014)."
    )
    yield TableBlock(
        Columns(option=list(importances), share=list(importances.values()))
    )


def _history(found: Sequence["optuna.trial.FrozenTrial"]) -> Figure:
    figure, axes = _axes("trial")
    numbers = [trial.number for trial in found]
    values = np.array([trial.user_attrs["value"] for trial in found])
    direction = found[0].user_attrs["direction"]
    best = direction * np.maximum.accumulate(direction * values)
    axes.plot(numbers, values, "o", markersize=4)
    axes.step(numbers, best, where="post")
    axes.set_title(found[0].user_attrs["metric"].replace("_", " "), fontsize=10)
    return figure


def _slice(found: Sequence["optuna.trial.FrozenTrial"], dimension: Dimension) -> Figure:
    figure, axes = _axes(dimension.option)
    points = [trial for trial in found if dimension.option in trial.params]
    options = [trial.params[dimension.option] for trial in points]
    values = [trial.user_attrs["value"] for trial in points]
    axes.plot(options, values, "o", markersize=4)
    if dimension.is_log:
        axes.set_xscale("log")
    return figure


def _axes(label: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(3.6, 2.5), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    return figure, axes


def _write_options(run: RunDirectory, trial: "optuna.trial.FrozenTrial") -> None:
    """Writes the options of a trial for TensorBoard's tab HParams."""
    tensorboard.write_hparams(
        run, trial.params, trial.user_attrs["metric"], trial.user_attrs["value"]
    )
