"""Report views of the target `labels`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.report import panels
from pipeline.report.target_report import Panel, TargetReport
from pipeline.tasks.targets.labels import LabelTarget
from pipeline.utils import console

_ROWS = 20  # labels in a table


class LabelReport(TargetReport):
    """Shows examples and predictions of `labels`."""

    target: LabelTarget

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        """Yields how many labels an example has, and how many examples a label."""
        train = columns["train"]["labels"]
        sizes = train.sum(axis=1, dtype=np.int64)
        yield (
            "labels",
            f"{len(self.target.class_names):,}; an example has {sizes.min():,} to"
            f" {sizes.max():,}, on average {sizes.mean():.2f}",
        )
        rows = []
        for index, name in enumerate(self.target.class_names[:_ROWS]):
            counts = [part["labels"][:, index].sum() for part in columns.values()]
            rows.append([name, *(f"{count:,}" for count in counts)])
        header = ["label", *columns]
        for line in console.table(rows, header, range(1, len(header))).splitlines():
            yield "", line

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """A table of the labels, the worst first."""
        rows = []
        for name, score in metrics["per_class"].items():
            numbers = [f"{score[key]:.3f}" for key in ("f1", "precision", "recall")]
            rows.append([name[:30], f"{score['examples']:,}", *numbers])
        rows.sort(key=lambda row: row[2])
        header = ["label", "examples", "f1", "precision", "recall"]
        lines = console.table(rows[:_ROWS], header, range(1, 5)).splitlines()
        if len(rows) > _ROWS:
            lines.append(f"... and {len(rows) - _ROWS:,} more, which are better")
        return lines

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        yield panels.class_table(metrics["per_class"], "recall")

    def truth(self, example: Mapping[str, Any]) -> str:
        return self.target.names_of(example["labels"])

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Adds the predicted and the true labels as the title."""
        predicted = self.target.names_of(prediction["probabilities"] >= 0.5)
        true = self.target.names_of(example["labels"])
        title = f"{predicted[:30]}"
        color = "green"
        if predicted != true:
            title += f"\ntrue: {true[:30]}"
            color = "red"
        axes.set_title(title, color=color, fontsize=9, parse_math=False)
