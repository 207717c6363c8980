"""Boxes in the JSON format of COCO."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from pipeline.config.registry import register
from pipeline.contracts import Source
from pipeline.data import box_files, box_formats
from pipeline.data.box_files import AnnotatedImage
from pipeline.data.image_search import ImageSearch
from pipeline.data.labels import distinct
from pipeline.utils import safe_io
from pipeline.utils.errors import UsageError

_KEYS = ("images", "annotations", "categories")


@register
def coco(*, path: Annotated[Path, "exists"]) -> Source:
    """Images with boxes in the JSON format of COCO.

    Images are searched as `ImageSearch` does. Boxes of crowds need not be found; a
    polygon without a box has the box around it. Categories without a box are left out.
    The id of an example is a hash of its path below the directory.

    Args:
        path: A JSON file, whose images are divided into splits; or a directory with
            one for each split, beside the images or in `annotations`, with train,
            val(id) or test in the name of the file or its directory.
    """
    root = path if path.is_dir() else path.parent
    files = [path] if path.is_file() else box_formats.coco_files(path)
    if not files:
        raise UsageError(f"{path} has no JSON file with {', '.join(_KEYS)}")
    files_of_splits: dict[str, Path] = {}
    for file in files:
        word = box_formats.split_of(file, root) if len(files) > 1 else ""
        split = box_files.split_name(word)
        if split in files_of_splits:
            raise UsageError(
                f"{file} and {files_of_splits[split]} are both for {split}; give one of"
                " them, or put train, val and test into their names"
            )
        files_of_splits[split] = file
    contents = {split: _read(file) for split, file in files_of_splits.items()}
    names = _names(contents, files_of_splits)
    pictures = {}
    images = ImageSearch(root)
    for split, content in contents.items():
        file = files_of_splits[split]
        with _require_format(file):
            pictures[split] = _pictures(content, file, root, names, images)
    used: set[int] = set()
    for part in pictures.values():
        used.update(label for picture in part for label in picture.labels)
    numbers = {number: position for position, number in enumerate(sorted(used))}
    for part in pictures.values():
        for picture in part:
            picture.labels = [numbers[label] for label in picture.labels]
    if not used:
        raise UsageError(f"{path} has no boxes")
    titles = list(names.values())
    used_titles = [titles[number] for number in numbers]
    class_names = distinct(used_titles, f"{path}: the names of the categories")
    return box_files.source(path, pictures, class_names)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = safe_io.read_json(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict) or not {*_KEYS} <= content.keys():
        raise UsageError(f"{file} must have the keys {', '.join(_KEYS)}")
    return content


@contextlib.contextmanager
def _require_format(file: Path) -> Iterator[None]:
    """Raises UsageError for what is missing in a file, or of another type."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UsageError(
            f"{file} is not in the format of COCO: {type(error).__name__} {error}"
        ) from None


def _names(
    contents: Mapping[str, dict[str, Any]], files: Mapping[str, Path]
) -> dict[str, str]:
    """Id -> name of all categories, in the order of their ids."""
    names: dict[str, str] = {}
    for split, content in contents.items():
        with _require_format(files[split]):
            for category in content["categories"]:
                name = str(category["name"])
                key = str(category["id"])  # some tools write numbers as texts
                if names.setdefault(key, name) != name:
                    raise UsageError(
                        f"{files[split]}: the category {key} is {name!r},"
                        f" but {names[key]!r} elsewhere"
                    )
    return dict(sorted(names.items(), key=lambda item: item[0].zfill(20)))


def _pictures(
    content: dict[str, Any],
    file: Path,
    root: Path,
    names: Mapping[str, str],
    images: ImageSearch,
) -> list[AnnotatedImage]:
    numbers = {key: number for number, key in enumerate(names)}
    word = box_formats.split_of(file, root)
    pictures = {}
    for image in content["images"]:
        title = str(image["file_name"])
        size = int(image.get("height") or 0), int(image.get("width") or 0)
        key = str(image["id"])
        if key in pictures:
            raise UsageError(
                f"{file}: two images have the id {key}; number the images of"
                " joined files anew, and their annotations"
            )
        found = images.find(title, file, word)
        pictures[key] = AnnotatedImage(found, title, [], [], [], size)
    for annotation in content["annotations"]:
        picture = pictures.get(str(annotation["image_id"]))
        number = numbers.get(str(annotation["category_id"]))
        if picture is None or number is None:
            what = "image" if picture is None else "category"
            raise UsageError(
                f"{file}: the annotation {annotation.get('id')} has the {what}"
                f" {annotation[f'{what}_id']}, which is not listed"
            )
        left, top, width, height = _box(annotation, file)
        picture.boxes.append((left, top, left + width, top + height))
        picture.labels.append(number)
        picture.ignored.append(bool(annotation.get("iscrowd")))
    return list(pictures.values())


def _box(annotation: Mapping[str, Any], file: Path) -> list[float]:
    """Left, top, width and height."""
    box: Any = annotation.get("bbox")
    box = box or _around(annotation.get("segmentation")) or box
    try:
        numbers = [float(number) for number in box]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != 4:
        raise UsageError(
            f"{file}: the annotation {annotation.get('id')} needs a bbox of four"
            f" numbers, left, top, width and height; got {box!r:.100}"
        )
    return numbers


def _around_runs(mask: Mapping[str, Any]) -> list[float] | None:
    """The box around a mask of runs of 0 and 1 in turn, from top to bottom, column by
    column; None if it is empty.
    """
    counts = mask["counts"]
    if isinstance(counts, str):
        counts = _decompress(counts)
    height, width = (int(side) for side in mask["size"])
    ends = np.cumsum(counts)
    pixels = np.zeros(height * width, bool)
    for start, end in zip(ends[::2], ends[1::2], strict=False):
        pixels[start:end] = True
    columns, rows = np.nonzero(pixels.reshape(width, height))
    if not len(rows):
        return None
    left, top = int(columns.min()), int(rows.min())
    return [left, top, int(columns.max()) + 1 - left, int(rows.max()) + 1 - top]


def _decompress(text: str) -> list[int]:
    """The lengths of runs in the strings of COCO's `maskApi.c`: five bits in a
    character, the lowest first, of the difference from the last but one.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if not bits & 0x20:  # the last of a number
            if bits & 0x10:
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    return counts


def _around(segmentation: Any) -> list[float] | None:
    """The box around polygons, a list of x and y for each, or around the runs of a
    mask; None for anything else.
    """
    if isinstance(segmentation, Mapping):
        return _around_runs(segmentation)
    if not segmentation or not isinstance(segmentation, list):
        return None
    xs = [float(x) for polygon in segmentation for x in polygon[::2]]
    ys = [float(y) for polygon in segmentation for y in polygon[1::2]]
    return [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
