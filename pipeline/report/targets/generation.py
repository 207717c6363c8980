"""Report views of the target `generation`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.evaluation.targets.generation import TIME_BINS
from pipeline.report.target_report import Panel, TargetReport, report_of
from pipeline.tasks.generation import EXACT_STEPS, Velocity
from pipeline.utils.columns import Columns
from pipeline.utils.html_pages import pixels


class SampleReport(TargetReport):
    """Shows examples and predictions of `generation`."""

    target: Velocity

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        return report_of(self.target.labels).describe(columns)

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """How the number of steps was chosen."""
        differences = self.target.metadata.get("differences")
        if not differences:
            return []
        count = self.target.sampler.steps
        parts = [f"{steps} steps {value:.1f}" for steps, value in differences.items()]
        return [
            f"{'sampler':10} {count} steps, {2 * count} evaluations of the"
            f" network; mean difference of pixels, of 255, from {EXACT_STEPS} steps:"
            f" {', '.join(parts)}"
        ]

    def headline(self, metrics: Mapping[str, Any]) -> str:
        if "accuracy" not in metrics:
            return f"loss {metrics['loss']:.4f}; samples were not measured"
        return (
            f"accuracy {metrics['accuracy']:.1%}: this share of"
            f" {metrics['samples']:,} samples is of the class asked for, according to a"
            f" classifier that is right about {metrics['judge_accuracy']:.1%} of the"
            " real images"
        )

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        losses = metrics["loss_by_time"]
        times = [
            f"{i / TIME_BINS:.1f} to {(i + 1) / TIME_BINS:.1f}"
            for i in range(TIME_BINS)
        ]
        rows = [(t, x) for t, x in zip(times, losses, strict=True) if x is not None]
        yield Panel(
            "Loss by time",
            Columns(time=[time for time, _ in rows], loss=[loss for _, loss in rows]),
            "At time 0, an image is only noise, and the best prediction is the mean of"
            " the images; at time 1, it is the example, and the noise is to be found.",
        )

    def truth(self, example: Mapping[str, Any]) -> str:
        return report_of(self.target.labels).truth(example)

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Draws what the example was taken for when it was noisy beside it."""
        image = pixels(np.asarray(prediction["denoised"]))
        height, width = image.shape[:2]
        extent = (width - 0.5, 2 * width - 0.5, height - 0.5, -0.5)
        gray = "gray" if image.ndim == 2 else None
        axes.imshow(image, cmap=gray, vmin=0, vmax=255, extent=extent)
        axes.set(xlim=(-0.5, 2 * width - 0.5))
        time = float(prediction["time"])
        axes.set_title(f"{self.truth(example)}, denoised from {time:.2f}", fontsize=8)
