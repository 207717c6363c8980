"""Report views of the target `transcript`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.report.target_report import Panel, TargetReport
from pipeline.tasks.targets.transcript import TranscriptTarget
from pipeline.utils import console
from pipeline.utils.columns import Columns
from pipeline.utils.console import pluralize

_LEGEND = "*inserted* [deleted] (truth > prediction)"
_ALIGNED = ("errors", "alignment")


class TranscriptReport(TargetReport):
    """Shows examples and predictions of `transcript`."""

    target: TranscriptTarget

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        for decision in self.target.review({}):
            yield decision.name, str(decision)

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """The worst utterances, aligned, and notes about transcripts."""
        lines = []
        unit = self.target.unit
        if metrics["worst"]:
            rows = []
            for row in metrics["worst"]:
                rows.append([f"{row['errors']}", row["alignment"]])
            table = console.table(rows, ["errors", f"worst: {_LEGEND}"], right=(0,))
            lines += table.splitlines()
        if metrics["unknown_units"]:
            lines.append(
                f"{'note':10} {metrics['unknown_units']:,} of the {unit} of {split}"
                " are in no training transcript, and count as errors"
            )
        if metrics.get("too_long"):
            count = pluralize(metrics["too_long"], "transcript")
            lines.append(
                f"{'note':10} more units than the model has outputs in {count} of"
                f" {split}, which cannot be right; use a model with smaller strides, or"
                " words as units"
            )
        if metrics["cut"]:
            count = pluralize(metrics["cut"], "transcript")
            lines.append(
                f"{'note':10} more than {self.target.length - 1} {unit}, many more than"
                f" in training, in {count} of {split}; the rest is not counted"
            )
        return lines

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        """The kinds of errors, and the worst utterances, aligned."""
        kinds = ("substituted", "deleted", "inserted")
        counts = [metrics[kind] for kind in kinds]
        shares = [count / max(metrics["words"], 1) for count in counts]
        table = Columns({"words": kinds, "count": counts, "share of all words": shares})
        yield Panel("Errors", table)
        if worst := metrics["worst"]:
            aligned = {name: [row[name] for row in worst] for name in _ALIGNED}
            yield Panel("Worst transcripts", Columns(aligned), f"{_LEGEND}.")

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Adds the text as the title: green if right, red if wrong."""
        text = bytes(prediction["text"]).decode()
        truth = self.target.text_of(np.asarray(example["transcript"]))
        title, color = f"predicted {text[:40] or 'nothing'}", "green"
        if text != truth:
            title += f"\ntrue: {truth[:40]}"
            color = "red"
        axes.set_title(title, color=color, fontsize=8, parse_math=False)
