"""Boxes in the JSON format of LabelMe and X-AnyLabeling."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pipeline.config.registry import register
from pipeline.contracts import Source
from pipeline.data import box_files, box_formats
from pipeline.data.box_files import AnnotatedImage
from pipeline.data.image_search import ImageSearch
from pipeline.data.labels import distinct, in_order
from pipeline.utils import safe_io
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError

_KINDS = ("rectangle", "polygon", "rotation", "mask")
"""Types of shapes with an area that corners tell; others are left out."""


@register
def labelme(*, path: Annotated[Path, "directory"]) -> Source:
    """Images with boxes in the JSON format of LabelMe.

    Each JSON file is for the image that its `imagePath` names, searched as
    `ImageSearch` does. A polygon has the box around it, and a circle, too; points and
    lines are left out. Splits are the directories `train`, `valid` and `test`. Classes
    are in alphabetical order. The id of an example is a hash of its path below the
    directory.

    Args:
        path: The directory, with JSON files beside images, in `annotations`, or in the
            directories of splits.
    """
    files = box_formats.labelme_files(path)
    if not files:
        raise UsageError(f"{path} has no JSON files of LabelMe")
    images = ImageSearch(path)
    pictures: dict[str, list[AnnotatedImage]] = {}
    labels: dict[str, list[list[str]]] = {}
    without_area = 0
    for file in files:
        split = box_files.split_name(box_formats.split_of(file, path))
        picture, names, others = _picture(file, images)
        without_area += others
        pictures.setdefault(split, []).append(picture)
        labels.setdefault(split, []).append(names)
    used = {name for part in labels.values() for names in part for name in names}
    notes = []
    if without_area:
        shapes = pluralize(without_area, "shape")
        notes.append(f"{path}: {shapes} without an area, such as points; left out")
    if not used:
        raise UsageError(f"{path} has no boxes")
    class_names = distinct(in_order(used), "the classes")
    numbers = {name: number for number, name in enumerate(class_names)}
    for split, part in pictures.items():
        for picture, names in zip(part, labels[split], strict=True):
            picture.labels = [numbers[name] for name in names]
    return box_files.source(path, pictures, class_names, notes)


def _picture(file: Path, images: ImageSearch) -> tuple[AnnotatedImage, list[str], int]:
    """An image with its boxes, the names of their classes, and how many shapes have no
    area.
    """
    try:
        content = safe_io.read_json(file)
        size = (
            int(content.get("imageHeight") or 0),
            int(content.get("imageWidth") or 0),
        )
        shapes = [(str(s["label"]), _box(s)) for s in content["shapes"]]
        title = str(content.get("imagePath") or "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{file} is not in the format of LabelMe: {type(error).__name__} {error}"
        ) from None
    found = images.find(title, file) if title else ""
    found = found or images.find(file.stem, file)
    boxes: list[Sequence[float]] = [box for _, box in shapes if box]
    names = [name for name, box in shapes if box]
    picture = AnnotatedImage(found, str(file), boxes, [], [False] * len(boxes), size)
    return picture, names, len(shapes) - len(boxes)


def _box(shape: dict[str, Any]) -> tuple[float, ...]:
    """left, top, right and bottom of a shape; empty for points and lines."""
    kind = shape.get("shape_type") or "polygon"
    points = [(float(x), float(y)) for x, y in shape["points"]]
    if kind == "circle":  # its center, and a point on it
        (x, y), (edge_x, edge_y) = points
        radius = ((edge_x - x) ** 2 + (edge_y - y) ** 2) ** 0.5
        return x - radius, y - radius, x + radius, y + radius
    if kind not in _KINDS:
        return ()
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)
