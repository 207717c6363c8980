"""Boxes in the text format of YOLO."""

import itertools
import re
from pathlib import Path
from typing import Annotated

import yaml

from pipeline.config.registry import register
from pipeline.contracts import Source
from pipeline.data import box_files, box_formats
from pipeline.data.box_files import AnnotatedImage
from pipeline.data.file_search import with_slashes
from pipeline.data.image_search import ImageSearch
from pipeline.data.labels import distinct
from pipeline.utils import image_formats, safe_io
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError

_NAMES = "classes.txt"
_SPLITS = ("train", "val", "valid", "validation", "test")
_MAX_FRACTION = 2.0  # of the fractions of boxes, which may reach out of their image


@register
def yolo(*, path: Annotated[Path, "exists"]) -> Source:
    """Images with boxes in the text format of YOLO.

    `data.yaml` names the classes, and for each split the directory of its images, or a
    file that lists them; so does `obj.data` of CVAT and Darknet. With `classes.txt`, as
    labelImg and Label Studio write it, the images are in `images` or beside it. Without
    any of them, the classes in `labels` are called by their numbers.

    The boxes of `images/a.jpg` are in `labels/a.txt`, otherwise beside the image: in
    each line a class, and center and size of a box, perhaps with keypoints, or the
    corners of a polygon, as fractions of width and height. An image without such a file
    has no boxes. The id of an example is a hash of its path below the directory.

    Args:
        path: `data.yaml`, `obj.data` or `classes.txt`, or the directory of one.
    """
    files = [path] if path.is_file() else box_formats.yolo_files(path)
    if not files:
        raise UsageError(f"{path} has no data.yaml with the names of the classes")
    values = _read_values(files[0])
    keypoints = _keypoints(values, files[0])
    pictures: dict[str, list[AnnotatedImage]] = {}
    for word in _SPLITS:
        if values.get(word):
            split = box_files.split_name(word)
            listed = values[word]
            for entry in [listed] if isinstance(listed, str) else listed:
                for image in _images(files[0], values, str(entry)):
                    pictures.setdefault(split, []).append(_picture(image, keypoints))
    images = list(itertools.chain(*pictures.values()))
    if images and not any(picture.boxes for picture in images):
        text = _text_of(Path(images[0].name))
        raise UsageError(
            f"{files[0]}: no image has boxes; those of {images[0].name} are expected in"
            f" {text}"
        )
    notes = []
    if not files[0].suffix and "names" not in values:
        last = max((label for picture in images for label in picture.labels), default=0)
        values["names"] = [str(number) for number in range(last + 1)]
        notes.append(
            f"{files[0].parent}: classes are called by their numbers; write {_NAMES}"
            " with a name in each line"
        )
    class_names = _names(values, files[0])
    return box_files.source(files[0].parent, pictures, class_names, notes)


def _keypoints(values: dict, file: Path) -> int:
    """How many numbers follow each box; 0: the lines tell."""
    shape = values.get("kpt_shape")
    if not shape:
        return 0
    try:
        count, size = (int(number) for number in shape)
    except (TypeError, ValueError):
        raise UsageError(
            f"{file}: `kpt_shape` must be two numbers, such as [17, 3]; got {shape}"
        ) from None
    return count * size


def _names(values: dict, file: Path) -> tuple[str, ...]:
    """The names of the classes 0, 1, ..."""
    names = values.get("names")
    if not names or isinstance(names, str):
        raise UsageError(f"{file} must have the names of the classes as `names`")
    if isinstance(names, dict):
        numbers = [str(number) for number in range(len(names))]
        if {*names} != {*numbers}:
            raise UsageError(
                f"{file}: `names` must number the classes 0, 1, ...; got"
                f" {', '.join(names):.100}"
            )
        names = [names[number] for number in numbers]
    count = values.get("nc")
    if count and count != str(len(names)):
        raise UsageError(
            f"{file}: `nc` is {count}, but `names` has {pluralize(len(names), 'name')};"
            " correct one of them"
        )
    return distinct(list(map(str, names)), f"{file}: the names of the classes")


def _read_values(file: Path) -> dict:
    """What a file says as `data.yaml` does: `names`, `train` and other splits."""
    if not file.suffix:
        return _read_folder(file.parent)
    if file.suffix == ".txt":
        names = [line.strip() for line in _lines(file) if line.strip()]
        return {"names": names, "train": _folder_of_images(file.parent)}
    if file.suffix != ".data":
        return _read_yaml(file)
    pairs = (line.partition("=") for line in _lines(file))
    values: dict = {key.strip(): value.strip() for key, _, value in pairs}
    listed = file.parent / Path(with_slashes(values.get("names", "obj.names"))).name
    values["names"] = [line.strip() for line in _lines(listed) if line.strip()]
    for word in _SPLITS:  # such as data/train.txt for train.txt
        if word in values and not (file.parent / values[word]).exists():
            values[word] = Path(with_slashes(values[word])).name
    return values


def _read_folder(root: Path) -> dict:
    """As `_read_values`, of texts in `labels` without a file of names."""
    values: dict = {}
    for word in _SPLITS:
        for place in (f"images/{word}", f"{word}/images"):
            if (root / place).is_dir():
                values[word] = place
    if not values:
        values["train"] = _folder_of_images(root)
    listed = root / "labels" / _NAMES  # of labelImg
    if listed.is_file():
        values["names"] = [line.strip() for line in _lines(listed) if line.strip()]
    return values


def _folder_of_images(folder: Path) -> str:
    return "images" if (folder / "images").is_dir() else "."


def _read_yaml(file: Path) -> dict:
    """The lists and maps of a YAML file; numbers and words such as `no` stay texts."""
    try:
        values = yaml.load("\n".join(_lines(file)), Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        text = " ".join(str(error).split())
        raise UsageError(f"{file} is not in the format of YAML: {text}") from None
    return values if isinstance(values, dict) else {}


def _lines(file: Path) -> list[str]:
    try:
        return safe_io.read_text(file).splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None


def _images(file: Path, values: dict, entry: str) -> list[Path]:
    """The images of a split: those in a directory, or in a list of files."""
    folder = file.parent
    entry = with_slashes(entry)
    above = with_slashes(str(values.get("path") or ""))
    # Exports of labelling tools write ../train/images for train/images.
    shortened = re.sub(r"^(\.\./)+", "", entry)
    places = [folder / above / entry, folder / entry, folder / shortened]
    place = next((place for place in places if place.exists()), None)
    if place is None:
        raise UsageError(f"{file}: {entry} does not exist below {folder}")
    if place.is_file():
        search = ImageSearch(folder)
        lines = [line.strip() for line in _lines(place) if line.strip()]
        return [Path(search.find(line, place) or place.parent / line) for line in lines]
    images = []
    for directory, _, names in image_formats.walk(place):
        for name in names:
            if name.lower().endswith(image_formats.SUFFIXES):
                images.append(Path(directory, name))
    return sorted(images)


def _picture(image: Path, keypoints: int) -> AnnotatedImage:
    """An image with the boxes of its text."""
    picture = AnnotatedImage(
        str(image) if image.is_file() else "", str(image), [], [], [], is_relative=True
    )
    file = _text_of(image)
    if not file.is_file():
        return picture
    for number, line in enumerate(_lines(file), 1):
        if line.strip():
            try:
                label, box = _box(line, keypoints)
            except (ValueError, OverflowError):
                raise UsageError(
                    f"{file}: line {number} must be a class and four numbers, center"
                    " and size as fractions of the image's width and height; got"
                    f" {line[:100]!r}"
                ) from None
            picture.labels.append(label)
            picture.boxes.append(box)
            picture.ignored.append(False)
    return picture


def _text_of(image: Path) -> Path:
    """The text with the boxes of an image."""
    parts = list(image.parts[:-1])
    if "images" in parts:
        last = len(parts) - 1 - parts[::-1].index("images")
        parts[last] = "labels"
    return Path(*parts, image.name).with_suffix(".txt")


def _box(line: str, keypoints: int) -> tuple[int, tuple[float, ...]]:
    """The class and the corners of a line; ValueError if it is not such a line."""
    label, *texts = line.split()
    numbers = [float(text) for text in texts]
    if (keypoints and len(numbers) == 4 + keypoints) or _are_keypoints(numbers):
        numbers = numbers[:4]
    if any(abs(number) > _MAX_FRACTION for number in numbers):  # pixels
        raise ValueError(line)
    if len(numbers) == 4:
        x, y, width, height = numbers
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    elif len(numbers) >= 6 and len(numbers) % 2 == 0:  # a polygon
        xs, ys = numbers[::2], numbers[1::2]
        corners = (min(xs), min(ys), max(xs), max(ys))
    else:
        raise ValueError(line)
    return int(float(label)), corners


def _are_keypoints(numbers: list[float]) -> bool:
    """Whether numbers are a box and x, y and visibility (0, 1 or 2) of points in it,
    not a polygon.
    """
    points = [numbers[start : start + 3] for start in range(4, len(numbers), 3)]
    if not points or len(numbers) % 3 != 1:
        return False
    x, y, width, height = numbers[:4]
    for point_x, point_y, visibility in points:
        is_inside = abs(point_x - x) <= width / 2 and abs(point_y - y) <= height / 2
        is_seen = visibility in (1, 2) and is_inside
        if not is_seen and any((point_x, point_y, visibility)):
            return False
    return True
