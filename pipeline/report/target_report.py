"""How the examples and predictions of a target are shown: lines, tables, pictures.

A target from `tasks/targets/NAME.py` has its report in `targets/NAME.py`; a user's
target names its own in the attribute `report`, or is shown as here.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.config import registry
from pipeline.contracts import Target


@dataclasses.dataclass(frozen=True)
class Panel:
    """A table or a figure about the predictions for a split, for a run's report."""

    title: str
    content: Any
    """`Columns`, or a figure of matplotlib."""
    text: str = ""
    """What it shows, and how to read it."""
    table: Any = None
    """`Columns` below a figure; None: there are none."""


class TargetReport:
    """How the examples and predictions of a target are shown.

    A subclass is created with the target, which is its attribute `target`.
    """

    def __init__(self, target: Any) -> None:
        self.target = target

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        """Yields lines about the examples, (name, text), for `pipeline inspect`.

        `columns` maps each split to its short fields.
        """
        return iter(())

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """Lines for the terminal about the metrics of a split."""
        return []

    def pictures(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """File name -> matplotlib figure of the metrics, or of all rows of the table
        of predictions.
        """
        return {}

    def headline(self, metrics: Mapping[str, Any]) -> str:
        """A sentence about how good the predictions are, for the report of a run."""
        name, _ = self.target.selection_metric
        value = metrics.get(name)
        return "" if value is None else f"{name.replace('_', ' ')} {value:.4g}"

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        """Yields tables and figures of the metrics, or of all rows of the table of
        predictions, for the report of a run; by default, `pictures`.
        """
        for name, figure in self.pictures(metrics, columns).items():
            title = name.rpartition(".")[0].replace("_", " ").capitalize()
            yield Panel(title, figure)

    def truth(self, example: Mapping[str, Any]) -> str:
        """The ground truth of a decoded example, in words; empty if it is not given."""
        return ""

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Draws a prediction over its example, which has the decoded fields, and as
        `raw` the fields of the source, if it is available.
        """
        return None

    def draw_truth(self, axes: Any, example: Mapping[str, Any]) -> None:
        """Draws the ground truth of an example over its input, such as a mask."""
        return None


def report_of(target: Target) -> TargetReport:
    """The report of a target."""
    return registry.counterpart(target, "report/targets", TargetReport)
