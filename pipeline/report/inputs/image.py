"""Report views of the input `image`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.report.input_report import InputReport
from pipeline.tasks.inputs.image import ImageInput
from pipeline.utils.html_pages import pixels, thumbnail


class ImageReport(InputReport):
    """Shows an example of `image`."""

    input: ImageInput

    def draw(self, axes: Any, example: Mapping[str, Any]) -> None:
        """Draws the image: its file, if there is one, which has more detail."""
        content = example.get("raw", {}).get(self.input.field)
        image = thumbnail(content) if isinstance(content, bytes) else None
        if image is None:
            image = pixels(np.asarray(example["image"]))
        # In pixels of the decoded image, as masks and boxes are.
        top, left, height, width = self._position(image)
        extent = (left - 0.5, left + width - 0.5, top + height - 0.5, top - 0.5)
        gray = "gray" if image.ndim == 2 else None
        axes.imshow(image, cmap=gray, vmin=0, vmax=255, extent=extent)
        axes.set(xticks=[], yticks=[])

    def _position(self, image: np.ndarray) -> tuple[float, ...]:
        """Top, left, height and width of a picture in the decoded image."""
        height, width, _ = self.input.image_shape
        if image.shape[:2] == (height, width) or not self.input.letterbox:
            return 0.0, 0.0, float(height), float(width)
        original = tf.constant(image.shape[:2], tf.float32)
        geometry = self.input.geometry(original).numpy().tolist()
        scale_y, scale_x, top, left, *size = geometry
        return top, left, scale_y * size[0], scale_x * size[1]
