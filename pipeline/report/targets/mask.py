"""Report views of the target `mask`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.data.mask_files import IGNORED
from pipeline.report import panels
from pipeline.report.target_report import Panel, TargetReport
from pipeline.tasks.targets.mask import MaskTarget
from pipeline.utils import console

_ROWS = 20  # classes in a table


class MaskReport(TargetReport):
    """Shows examples and predictions of `mask`."""

    target: MaskTarget

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        names = self.target.class_names
        yield "classes", f"{len(names):,}: {', '.join(names[:_ROWS])}"

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """A table of the classes, the lowest IoU first."""
        rows = []
        for name, score in metrics["per_class"].items():
            numbers = [f"{score[key]:.3f}" for key in ("iou", "precision", "recall")]
            rows.append([name[:30], *numbers])
        rows.sort(key=lambda row: row[1])
        header = ["class", "iou", "precision", "recall"]
        return console.table(rows[:_ROWS], header, range(1, 4)).splitlines()

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        yield panels.class_table(metrics["per_class"], "iou")

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Draws the predicted classes over the image; wrong pixels in red."""
        from matplotlib.colors import ListedColormap

        truth = np.asarray(example["mask"])
        predicted = np.asarray(prediction["mask"])
        _draw_classes(axes, predicted)
        wrong = (predicted != truth) & (truth != IGNORED)
        red = ListedColormap(["red"])
        axes.imshow(np.ma.masked_equal(wrong, 0), cmap=red, alpha=0.6)
        share = wrong.mean()
        axes.set_title(f"{share:.1%} of the pixels are wrong", fontsize=9)

    def draw_truth(self, axes: Any, example: Mapping[str, Any]) -> None:
        _draw_classes(axes, np.asarray(example["mask"]))


def _draw_classes(axes: Any, mask: np.ndarray) -> None:
    """Draws the classes of pixels over an image; the first one is transparent."""
    shown = np.ma.masked_equal(mask, 0)
    axes.imshow(shown, cmap="tab20", alpha=0.4, vmin=0, vmax=20)
