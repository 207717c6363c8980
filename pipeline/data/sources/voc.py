"""Boxes in the XML format of PASCAL VOC."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

from pipeline.config.registry import register
from pipeline.contracts import Source
from pipeline.data import box_files, box_formats
from pipeline.data.box_files import AnnotatedImage
from pipeline.data.image_search import ImageSearch
from pipeline.data.labels import distinct, in_order
from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError

_MARK = re.compile(r"^\s+|(\s+-?[01])?\s*$")
_SIDES = ("xmin", "ymin", "xmax", "ymax")
# Lists of names in ImageSets/Main; the second is the union of two others.
_LISTS = ("train", "trainval", "val", "test")


@register
def voc(*, path: Annotated[Path, "directory"]) -> Source:
    """Images with boxes in the XML format of PASCAL VOC.

    Each XML file is for the image that its `filename` names, or else for the one of the
    same name, searched as `ImageSearch` does. Splits are the lists `train.txt`,
    `val.txt` and `test.txt` in `ImageSets/Main`, or the directories `train`, `valid`
    and `test`. Difficult boxes need not be found. Classes are in alphabetical order.
    The id of an example is a hash of its path below the directory.

    Args:
        path: The directory, with `Annotations`, or with XML files beside images.
    """
    folders = {file.parent for file in box_formats.voc_files(path)}
    files = []
    for folder in sorted(folders):
        for name in sorted(os.listdir(folder)):
            if name.lower().endswith(".xml") and not image_formats.is_ignored(name):
                files.append(folder / name)
    if not files:
        raise UsageError(f"{path} has no XML files of PASCAL VOC")
    images = ImageSearch(path)
    lists = _lists(path / "ImageSets" / "Main")
    labels: set[str] = set()
    entries: dict[str, list[tuple[AnnotatedImage, list[str]]]] = {}
    unlisted = 0
    for file in files:
        split = box_files.split_name(box_formats.split_of(file, path))
        if lists:
            split = lists.get(file.stem, "")
        if not split:
            unlisted += 1
            continue
        picture, names = _picture(file, images)
        labels.update(names)
        entries.setdefault(split, []).append((picture, names))
    notes = []
    if (path / "SegmentationClass").is_dir():
        notes.append(f"{path} has masks, too; --source.name masks reads them instead")
    if unlisted:
        notes.append(
            f"{path}: {unlisted:,} XML files are in no list of ImageSets/Main; left out"
        )
    if not labels:
        reason = f": {notes[0]}" if notes else ""
        raise UsageError(f"{path} has no boxes{reason}")
    class_names = distinct(in_order(labels), "the classes")
    numbers = {name: number for number, name in enumerate(class_names)}
    pictures: dict[str, list[AnnotatedImage]] = {}
    for split, parts in entries.items():
        for picture, names in parts:
            picture.labels = [numbers[name] for name in names]
            pictures.setdefault(split, []).append(picture)
    return box_files.source(path, pictures, class_names, notes)


def _lists(folder: Path) -> dict[str, str]:
    """Name of an image -> its split; empty without lists."""
    names: dict[str, list[str]] = {}
    for word in _LISTS:
        file = folder / f"{word}.txt"
        if file.is_file():
            # Lists of a single class have a second column.
            lines = [_MARK.sub("", line) for line in _text(file).splitlines()]
            names[word] = [line for line in lines if line]
    if "train" in names:
        names.pop("trainval", None)
    splits: dict[str, str] = {}
    for word, listed in names.items():
        split = "train" if word == "trainval" else box_files.split_name(word)
        for name in listed:
            if splits.setdefault(name, split) != split:
                raise UsageError(
                    f"{folder}: {name!r} is in the lists of {splits[name]} and {split};"
                    " remove it from one of them"
                )
    return splits


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None


def _text(file: Path) -> str:
    return _read(file).removeprefix(b"\xef\xbb\xbf").decode(errors="replace")


def _picture(file: Path, images: ImageSearch) -> tuple[AnnotatedImage, list[str]]:
    """An image with its boxes, and the names of their classes."""
    content = _read(file)
    plain = content.replace(b"\0", b"")  # of UTF-16
    if b"<!DOCTYPE" in plain or b"<!ENTITY" in plain:
        # An entity of a few bytes can expand to gigabytes.
        raise UsageError(f"{file}: annotations must not define a document type")
    try:
        root = ElementTree.fromstring(content)  # in its declared encoding
        inner = root.find(".//annotation")
        root = root if inner is None else inner  # some tools write another root
        size = root.find("size")
        boxes: list[Sequence[float]] = []
        names = []
        ignored = []
        for item in root.iter("object"):
            box = item.find("bndbox")
            if box is None:
                raise ValueError("an object has no bndbox")
            boxes.append([float(_value(box, side)) for side in _SIDES])
            names.append(_value(item, "name"))
            ignored.append(item.findtext("difficult", "0").strip() == "1")
        height, width = _size(size)
    except (ElementTree.ParseError, ValueError, OverflowError) as error:
        raise UsageError(f"{file} is not in the format of VOC: {error}") from None
    title = (root.findtext("filename") or "").strip()
    found = images.find(title, file) if title else ""
    found = found or images.find(file.stem, file)
    return AnnotatedImage(found, str(file), boxes, [], ignored, (height, width)), names


def _size(size: ElementTree.Element | None) -> tuple[int, int]:
    if size is None:
        return 0, 0
    return int(float(_value(size, "height"))), int(float(_value(size, "width")))


def _value(element: ElementTree.Element, name: str) -> str:
    text = (element.findtext(name) or "").strip()
    if not text:
        raise ValueError(f"{element.tag} has no {name}")
    return text
