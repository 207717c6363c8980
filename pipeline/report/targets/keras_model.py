"""Report views of the target `keras_model`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.report.target_report import TargetReport
from pipeline.tasks.keras_model import ArrayTarget


class ArrayReport(TargetReport):
    """Shows examples and predictions of `keras_model`."""

    target: ArrayTarget

    def headline(self, metrics: Mapping[str, Any]) -> str:
        """The metrics that the user has chosen, or else the loss."""
        numbers = {k: v for k, v in metrics.items() if isinstance(v, float)}
        chosen = {k: v for k, v in numbers.items() if not k.endswith("loss")}
        parts = [f"{name} {value:.3f}" for name, value in (chosen or numbers).items()]
        return ", ".join(parts)

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        for kind in ("inputs", "targets"):
            for name, part in self.target.metadata[kind].items():
                shape = tuple(part["shape"])
                yield kind[:-1], f"{name}: {part['dtype']} of shape {shape}"
