"""Report views of the target `number`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.report.target_report import Panel, TargetReport
from pipeline.tasks.targets.number import NumberTarget
from pipeline.utils import console
from pipeline.utils.columns import Columns

_PAIRS = 500  # of true and predicted values in a plot
_PANELS = 6  # numbers in a plot


class NumberReport(TargetReport):
    """Shows examples and predictions of `number`."""

    target: NumberTarget

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """A table of several numbers."""
        lines = []
        if "per_number" in metrics:
            rows = []
            for name, scores in metrics["per_number"].items():
                rows.append([name, *(f"{value:.4g}" for value in scores.values())])
            header = ["number", *next(iter(metrics["per_number"].values()))]
            table = console.table(rows, header, right=range(1, len(header)))
            lines += table.splitlines()
            for name, scores in metrics["per_number"].items():
                if scores["r2"] < 0:
                    lines.append(
                        f"{'note':10} number {name} is predicted worse than by its mean"
                    )
        return lines

    def pictures(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """Predicted against true values, with the line of equality."""
        from matplotlib.figure import Figure

        endings = self.target.column_endings()[:_PANELS]
        size = (5 * len(endings), 5)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(endings), squeeze=False)[0]
        for axes, ending in zip(panels, endings, strict=True):
            truth = columns[f"truth{ending}"]
            predicted = columns[f"prediction{ending}"]
            rows = np.unique(np.linspace(0, len(truth) - 1, _PAIRS).astype(int))
            axes.scatter(truth[rows], predicted[rows], s=12, alpha=0.6)
            start = float(truth[0])
            axes.axline((start, start), slope=1, color="black", linewidth=0.8)
            error = float(np.sqrt(np.mean((truth - predicted) ** 2.0)))
            title = f"root mean squared error {error:.4g}"
            if len(rows) < len(truth):
                title += f"\n({len(rows):,} of {len(truth):,} examples are shown)"
            if ending:
                title = f"number {ending[1:]}: {title}"
            axes.set(xlabel="true", ylabel="predicted", title=title)
        return {"predictions.png": figure}

    def headline(self, metrics: Mapping[str, Any]) -> str:
        """The share of the variance that is explained, and the usual error."""
        name = self.target.metadata.get("target_name")
        of = f" of {name}" if name else ""
        error = f"mean absolute error {metrics['mae']:,.3f}"
        if metrics["r2"] is None:
            return f"{error}{of}"
        r2 = f"R² {metrics['r2']:.3f}{of}"
        return f"{r2} (0 = always predicting the mean); {error}"

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        if "per_number" in metrics:
            scores = metrics["per_number"]
            table = {"number": list(scores)}
            for key in next(iter(scores.values())):
                table[key] = [score[key] for score in scores.values()]
            yield Panel("Numbers", Columns(table))
        yield from super().panels(metrics, columns)

    def truth(self, example: Mapping[str, Any]) -> str:
        numbers = np.ravel(example["target"])[:3]
        return " ".join(f"{float(value):.4g}" for value in numbers)

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Adds the prediction and the true value as the title."""
        words = []
        for values in (prediction["prediction"], example["target"]):
            numbers = np.ravel(values)[:3]
            words.append(" ".join(f"{float(value):.4g}" for value in numbers))
        separator = "\n" if self.target.shape else ", "
        axes.set_title(f"{words[0]}{separator}true {words[1]}", fontsize=9)
