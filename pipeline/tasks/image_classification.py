"""Image classification: one class for each image."""

from typing import Any

from pipeline.contracts import Info, Metadata, Task
from pipeline.tasks.supervised import supervised


def image_classification(
    info: Info | Metadata,
    *,
    image_size: tuple[int, int] | None = None,
    raw: bool = False,
) -> Task:
    """One label per image: the input `image` and the target `classes`.

    Args:
        info: The source's description, or the metadata of a run.
        image_size: Height and width to resize images to; None: the size they all have.
        raw: Give the model pixels as they are. Otherwise whole numbers are scaled to
            [0, 1]; floats are never scaled.

    Raises:
        UsageError: A field is missing or has another type, or `image_size` is None
            although images differ in size.
    """
    options: dict[str, Any] = {"raw": raw}
    if image_size is not None:
        options["image_size"] = image_size
    parts = {"input": "image", "input_options": options, "target": "classes"}
    return supervised(info, parts)


image_classification.kinds = ("image", "classes")  # type: ignore[attr-defined]
