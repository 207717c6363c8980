"""Boxes in the text format of YOLO."""

import re
from pathlib import Path
from typing import Annotated

from pipeline.config import box_formats
from pipeline.contracts import Source
from pipeline.data import box_files
from pipeline.data.box_files import Picture
from pipeline.data.labels import distinct
from pipeline.utils import image_formats, safe_io
from pipeline.utils.errors import UsageError

_SPLITS = ("train", "val", "valid", "validation", "test")
_ENTRY = re.compile(r"(?P<key>[^\s:#][^:]*?)\s*:\s*(?P<value>.*)")


def yolo(*, path: Annotated[Path, "exists"]) -> Source:
    """Images with boxes in the text format of YOLO.

    `data.yaml` names the classes, and for each split the directory of its images, or a
    file that lists them. The boxes of `images/a.jpg` are in `labels/a.txt`: in each
    line a class, and center and size of a box, or the corners of a polygon, as
    fractions of width and height. An image without such a file has no boxes. The id of
    an example is a hash of its path below the directory.

    Args:
        path: `data.yaml`, or its directory.
    """
    files = [path] if path.is_file() else box_formats.yolo_files(path)
    if not files:
        raise UsageError(f"{path} has no data.yaml with the names of the classes")
    values = _read_yaml(files[0])
    names = values.get("names")
    if isinstance(names, dict):
        names = [names[key] for key in sorted(names, key=_number)]
    if not names or isinstance(names, str):
        raise UsageError(f"{files[0]} must have the names of the classes as `names`")
    class_names = distinct([str(name) for name in names], "the names of the classes")
    pictures: dict[str, list[Picture]] = {}
    for word in _SPLITS:
        if values.get(word):
            split = box_files.split_name(word)
            listed = values[word]
            for entry in [listed] if isinstance(listed, str) else listed:
                for image in _images(files[0], values, entry):
                    pictures.setdefault(split, []).append(_picture(image))
    return box_files.source(files[0].parent, pictures, class_names)


def _number(key: str) -> int:
    return int(key) if key.isdecimal() else 0


def _read_yaml(file: Path) -> dict:
    """The texts, lists and maps of texts of a YAML file, the part that `data.yaml` has.

    Libraries for YAML can run code, or are one more dependency.
    """
    try:
        lines = safe_io.read_text(file).splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    values: dict = {}
    key = ""
    for line in lines:
        line = re.sub(r"(^|\s)#.*", "", line).rstrip()
        item = line.strip()
        entry = _ENTRY.fullmatch(item)
        is_inside = line.startswith((" ", "\t", "-"))
        if key and item.startswith(("- ", "[")) and is_inside:
            values[key] = [*(values[key] or []), _plain(item.removeprefix("-"))]
        elif key and is_inside and entry:
            values[key] = {**(values[key] or {}), entry["key"]: _plain(entry["value"])}
        elif entry and not is_inside:
            key = entry["key"]
            values[key] = _value(entry["value"])
    return values


def _value(text: str) -> object:
    """A text, or the texts of a list or a map on one line."""
    if text.startswith("[") and text.endswith("]"):
        return [_plain(item) for item in text[1:-1].split(",") if item.strip()]
    if text.startswith("{") and text.endswith("}"):
        pairs = [item.partition(":") for item in text[1:-1].split(",") if item.strip()]
        return {key.strip(): _plain(value) for key, _, value in pairs}
    return _plain(text)


def _plain(text: str) -> str:
    return text.strip().strip("\"'")


def _images(file: Path, values: dict, entry: str) -> list[Path]:
    """The images of a split: those in a directory, or in a list of files."""
    folder = file.parent
    above = str(values.get("path") or "")
    # Exports of labelling tools write ../train/images for train/images.
    shortened = re.sub(r"^(\.\./)+", "", entry)
    places = [folder / above / entry, folder / entry, folder / shortened]
    place = next((place for place in places if place.exists()), None)
    if place is None:
        raise UsageError(f"{file}: {entry} does not exist below {folder}")
    if place.is_file():
        lines = safe_io.read_text(place).splitlines()
        return [place.parent / line.strip() for line in lines if line.strip()]
    images = []
    for directory, _, names in image_formats.walk(place):
        for name in names:
            if name.lower().endswith(image_formats.SUFFIXES):
                images.append(Path(directory, name))
    return sorted(images)


def _picture(image: Path) -> Picture:
    """An image with the boxes of its text."""
    picture = Picture(
        str(image) if image.is_file() else "", str(image), [], [], [], is_relative=True
    )
    parts = list(image.parts[:-1])
    if "images" in parts:
        last = len(parts) - 1 - parts[::-1].index("images")
        parts[last] = "labels"
    file = Path(*parts, image.name).with_suffix(".txt")
    if not file.is_file():
        return picture
    try:
        lines = safe_io.read_text(file).splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                label, box = _box(line)
            except ValueError:
                raise UsageError(
                    f"{file}: line {number} must be a class and four numbers, center"
                    f" and size; got {line[:100]!r}"
                ) from None
            picture.labels.append(label)
            picture.boxes.append(box)
            picture.ignored.append(False)
    return picture


def _box(line: str) -> tuple[int, tuple[float, ...]]:
    """The class and the corners of a line; ValueError if it is not such a line."""
    label, *texts = line.split()
    numbers = [float(text) for text in texts]
    if len(numbers) == 4:
        x, y, width, height = numbers
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    elif len(numbers) >= 6 and len(numbers) % 2 == 0:  # a polygon
        xs, ys = numbers[::2], numbers[1::2]
        corners = (min(xs), min(ys), max(xs), max(ys))
    else:
        raise ValueError(line)
    return int(float(label)), corners
