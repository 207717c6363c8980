"""Report views of the input `keras_model`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.report.input_report import InputReport
from pipeline.tasks.keras_model import TEXT, ArrayInput, strings_of

_SIDE = 8  # smallest side of an array that is drawn as an image


class ArrayInputReport(InputReport):
    """Shows an example of `keras_model`."""

    input: ArrayInput

    def draw(self, axes: Any, example: Mapping[str, Any]) -> None:
        """Draws the first input: an image, a series as lines, or a text."""
        name, part = next(iter(self.input.arrays.items()))
        axes.axis("off")
        if part["dtype"] == "string":
            text = strings_of(example[f"x/{name}{TEXT}"])
            shown = text.ravel()[0].decode("utf-8", "replace")
            axes.text(0.5, 0.5, shown[:60], ha="center", wrap=True, parse_math=False)
            return
        values = np.asarray(example[f"x/{name}"], np.float32)
        channels = values.shape[-1] if values.ndim == 3 else 1
        is_image = values.ndim in (2, 3) and min(values.shape[:2]) >= _SIDE
        if is_image and channels in (1, 3, 4):
            low, high = values.min(), values.max()
            values = (values - low) / max(float(high - low), 1e-9)
            axes.imshow(values, cmap="gray")
        elif values.ndim in (1, 2):
            axes.plot(values)
