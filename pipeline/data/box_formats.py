"""Finds annotations of boxes: the JSON of COCO and LabelMe, the XML of PASCAL VOC, and
YOLO's texts.
"""

import os
import re
from pathlib import Path

from pipeline.utils.errors import UsageError
from pipeline.utils.image_formats import is_ignored

FORMATS = ("coco", "voc", "yolo", "labelme", "box_table")
"""The sources of boxes."""
_SPLITS = ("train", "validation", "valid", "val", "test")
_START = 1 << 12  # bytes of a file that tell its format
_COCO = re.compile(rb'\s*\{\s*"(info|licenses|images|annotations|categories|type)"\s*:')
_VOC = re.compile(rb"<(annotation|bndbox)\b")  # under any root
_LINE = re.compile(rb"\s*\d+( +-?[\d.]+(e-?\d+)?){4}")
_LABELME = re.compile(rb'"shapes"\s*:\s*\[')
_YOLO = re.compile(rb"^(names|nc)\s*:", re.MULTILINE)


def find(path: Path) -> str:
    """The format of the annotations in a directory; empty if there are none.

    Raises UsageError if there are annotations in two formats.
    """
    examples = {}
    for name, files in (
        ("coco", coco_files(path)),
        ("voc", voc_files(path)),
        ("yolo", yolo_files(path)),
        ("labelme", labelme_files(path, limit=1)),
    ):
        if files:
            examples[name] = files[0]
    if len(examples) > 1:
        listing = " and ".join(f"{name} ({file})" for name, file in examples.items())
        raise UsageError(
            f"{path} has annotations in several formats, {listing}; choose one with"
            f" --source.name {next(iter(examples))}"
        )
    return next(iter(examples), "")


def format_of(file: Path) -> str:
    """The format of a file of annotations for all images; empty if it is another file.

    VOC has a file for each image.
    """
    if file.suffix == ".json" and _begins(file, _COCO):
        return "coco"
    if file.suffix in (".yaml", ".yml") and _begins(file, _YOLO):
        return "yolo"
    is_named = file.name in ("obj.data", "classes.txt")
    return "yolo" if is_named and yolo_files(file.parent) else ""


def coco_files(path: Path) -> list[Path]:
    """JSON files with boxes; those for keypoints and captions are left out if there are
    others.
    """
    files = []
    for folder in (path, path / "annotations", *_folders_of_splits(path)):
        files += _matching(folder, (".json",), _COCO)
    instances = [file for file in files if file.name.startswith("instances")]
    return instances or files


def voc_files(path: Path) -> list[Path]:
    """The first XML file of each directory with annotations."""
    files = []
    for folder in (path / "Annotations", path, *_folders_of_splits(path)):
        for inside in (folder, folder / "annotations", folder / "annotations/xmls"):
            files += _matching(inside, (".xml",), _VOC, limit=1)
    return files


def labelme_files(path: Path, limit: int = 0) -> list[Path]:
    """JSON files of LabelMe; `limit` as for `_matching`."""
    files = []
    for folder in (path, path / "annotations", *_folders_of_splits(path)):
        files += _matching(folder, (".json",), _LABELME, limit)
    return files


def yolo_files(path: Path) -> list[Path]:
    """YAML files that name classes, `data.yaml` first; or else `obj.data`, or
    `classes.txt` beside the texts of images; or else a directory `labels` beside
    `images`.
    """
    files = _matching(path, (".yaml", ".yml"), _YOLO)
    if files:
        return sorted(files, key=lambda file: file.name != "data.yaml")
    if (path / "obj.data").is_file():
        return [path / "obj.data"]
    classes = path / "classes.txt"
    if classes.is_file() and _matching(path, (".txt",), _LINE):
        return [classes]
    splits = [path / "labels" / word for word in _SPLITS]
    splits += [path / word / "labels" for word in _SPLITS]
    for folder in (path / "labels", *splits):
        if any(_matching(folder, (".txt",), _LINE, limit=2)):
            return [classes] if classes.is_file() else [path / "labels"]
    return []


def split_of(file: Path, root: Path) -> str:
    """The word for a split in the name of a file or its directory; empty if there is
    none.
    """
    words = [file.stem]
    if file.parent != root:
        words.append(file.parent.name)
    for text in words:
        for word in re.findall("[a-z]+", text.lower()):
            if word in _SPLITS:
                return word
    return ""


def _folders_of_splits(path: Path) -> list[Path]:
    return [path / name for name in _SPLITS if (path / name).is_dir()]


def _matching(
    folder: Path, suffixes: tuple[str, ...], start: re.Pattern[bytes], limit: int = 0
) -> list[Path]:
    """Files of a directory whose first bytes match, sorted; at most `limit` are read,
    unless it is 0.
    """
    if not folder.is_dir():
        return []
    try:
        names = sorted(
            name
            for name in os.listdir(folder)
            if name.lower().endswith(suffixes) and not is_ignored(name)
        )
    except OSError:  # reported when the source is opened
        return []
    names = names[:limit] if limit else names
    return [folder / name for name in names if _begins(folder / name, start)]


def _begins(file: Path, start: re.Pattern[bytes]) -> bool:
    try:
        with file.open("rb") as stream:
            content = stream.read(_START).removeprefix(b"\xef\xbb\xbf")
    except OSError:
        return False
    if start in (_YOLO, _LABELME, _VOC):
        return start.search(content) is not None
    return start.match(content) is not None
