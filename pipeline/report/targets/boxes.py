"""Report views of the target `boxes`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.evaluation import box_metrics
from pipeline.evaluation.targets.boxes import (
    BoxEvaluation,
    as_batch,
    first_boxes,
    images,
)
from pipeline.report import panels
from pipeline.report.target_report import Panel, TargetReport
from pipeline.tasks.targets.boxes import BoxTarget
from pipeline.utils import console

_ROWS = 20  # classes in a table
_COLORS = {"right": "lime", "wrong_class": "orange", "false": "red"}


class BoxReport(TargetReport):
    """Shows examples and predictions of `boxes`."""

    target: BoxTarget

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        names = self.target.class_names
        counts = BoxEvaluation(self.target).counts
        yield (
            "classes",
            f"{len(names):,}: {', '.join(names[:_ROWS])}",
        )
        for split, fields in columns.items():
            if "box_labels" in fields:
                labels = fields["box_labels"]
                yield "boxes", f"{split}: {counts(labels[labels >= 0])}"

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """A table of the classes, the lowest average precision first."""
        rows = []
        for name, score in metrics["per_class"].items():
            keys = ("ap50", "ap", "precision", "recall")
            numbers = [f"{score[key]:.3f}" for key in keys]
            rows.append([name[:30], *numbers, f"{score['boxes']:,}"])
        rows.sort(key=lambda row: row[1])
        header = ["class", "ap50", "ap", "precision", "recall", "boxes"]
        lines = console.table(rows[:_ROWS], header, range(1, 6)).splitlines()
        mistakes = ", ".join(
            f"{metrics['mistakes'][name]:,} {name.replace('_', ' ')}"
            for name in ("false", "missed", "wrong_class")
        )
        return [*lines, f"{'boxes':10} {mistakes}"]

    def pictures(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        return {"precision_recall.png": _curves(metrics["curves"])}

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        yield panels.class_table(metrics["per_class"], "ap50")
        yield Panel(
            "Precision and recall",
            _curves(metrics["curves"]),
            "Of boxes with an intersection over union of at least 0.5.",
        )

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Draws confident boxes: right ones in green, false ones in red, those of a
        wrong class in orange; missed ones dashed in blue.
        """
        ((truths, found, count),) = images(as_batch(prediction), as_batch(example))
        confident = first_boxes(found, count)
        outcome = box_metrics.pair(truths, confident)
        geometry = np.asarray(example["geometry"], np.float32)
        for number in range(len(confident.classes)):
            kinds = [kind for kind in _COLORS if outcome[kind][number]]
            label = self.target.class_names[confident.classes[number]]
            label += f" {confident.scores[number]:.2f}"
            color = _COLORS[kinds[0]] if kinds else "gray"
            _draw_box(axes, confident.corners[number], geometry, color, label)
        for missed in np.flatnonzero(outcome["missed"]):
            label = self.target.class_names[truths.classes[missed]]
            box = truths.corners[missed]
            _draw_box(axes, box, geometry, "deepskyblue", label, "--")
        parts = []
        for name in ("false", "missed", "wrong_class"):
            if outcome[name].any():
                parts.append(f"{outcome[name].sum()} {name.replace('_', ' ')}")
        title = ", ".join(parts) or f"all {len(confident.classes)} right"
        axes.set_title(title, color="red" if parts else "green", fontsize=9)

    def draw_truth(self, axes: Any, example: Mapping[str, Any]) -> None:
        """Draws true boxes; dashed if they do not count."""
        unmoved = np.array([1, 1, 0, 0, 0, 0], np.float32)
        labels = np.asarray(example["box_labels"])
        for number in np.flatnonzero(labels >= 0):
            name = self.target.class_names[labels[number]]
            style = "--" if example["box_ignored"][number] else "-"
            box = np.asarray(example["boxes"])[number]
            _draw_box(axes, box, unmoved, "lime", name, style)

    def truth(self, example: Mapping[str, Any]) -> str:
        labels = np.asarray(example["box_labels"])
        return BoxEvaluation(self.target).counts(labels[labels >= 0])


def _draw_box(
    axes: Any,
    corners: np.ndarray,
    geometry: np.ndarray,
    color: str,
    label: str,
    style: str = "-",
) -> None:
    """Draws a box of the original image on the decoded image."""
    from matplotlib.patches import Rectangle

    scale = np.tile(geometry[1::-1], 2)
    left, top, right, bottom = corners * scale + np.tile(geometry[3:1:-1], 2) - 0.5
    box = Rectangle((left, top), right - left, bottom - top)
    box.set(fill=False, edgecolor=color, linewidth=1, linestyle=style)
    axes.add_patch(box)
    axes.text(
        left, top, label, color=color, fontsize=5, verticalalignment="bottom"
    ).set_parse_math(False)


def _curves(curves: Mapping[str, list[float]]) -> Any:
    """Precision against recall of each class."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for name, precision in list(curves.items())[:_ROWS]:
        axes.plot(box_metrics.RECALLS, precision, label=name[:30])
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    if curves:
        axes.legend(fontsize=7)
    return figure
