"""Report views of the input `features`."""

import html
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.report.input_report import InputReport
from pipeline.tasks.inputs.features import FeatureInput

_NAMED = 20  # features whose names are drawn


class FeatureReport(InputReport):
    """Shows an example of `features`."""

    input: FeatureInput

    def draw(self, axes: Any, example: Mapping[str, Any]) -> None:
        """Draws a vector as bars of its scaled features, a series as lines."""
        values = np.asarray(example["features"], np.float32)
        values = (values - self.input.mean) / self.input.deviation
        if values.ndim > 1:
            axes.plot(values.reshape(len(values), -1)[:, :20], linewidth=0.8)
            return
        # One patch for all bars, and texts instead of ticks, whose layout would take
        # most of the time of a report.
        axes.stairs(values, orientation="horizontal", fill=True, alpha=0.6)
        axes.set(yticks=[], ylim=(len(values), 0))
        for row in range(0, len(values), -(-len(values) // _NAMED)):
            axes.text(
                0.02,
                1 - (row + 0.5) / len(values),
                self.input.names[row][:12],
                fontsize=7,
                va="center",
                parse_math=False,
                transform=axes.transAxes,
                in_layout=False,
            )

    def html(self, example: Mapping[str, Any]) -> str:
        """A table of the scaled features of a short vector, whose drawing as bars takes
        long in a report.
        """
        values = np.asarray(example["features"], np.float32)
        if values.ndim != 1 or not len(self.input.names) == len(values) <= _NAMED:
            return ""
        scaled = ((values - self.input.mean) / self.input.deviation).tolist()
        rows = []
        for name, value in zip(self.input.names, scaled, strict=True):
            rows.append(f"<tr><th>{html.escape(name)}</th><td>{value:.3g}</td></tr>")
        return f"<table>{''.join(rows)}</table>"
