"""A source of images with boxes, from annotations of any format."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.contracts import Source
from pipeline.data import image_sizes
from pipeline.data.file_list import FileList
from pipeline.data.file_source import FileSource, read_header
from pipeline.data.seeds import stable_hash
from pipeline.data.split_names import ALIASES, SPLITS
from pipeline.utils import progress_bar
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError

MAX_BOXES = 1000
"""Boxes of an image that are kept, the largest."""
_MAX_FRACTION = 1.1  # of boxes that reach out of their picture
_MISSING = (
    "{} annotated images do not exist beside the annotations, in images or JPEGImages,"
    " or elsewhere below the directory; left out"
)
_TOLERANCE = 1.5  # pixels outside of a picture that are no mistake


@dataclasses.dataclass
class AnnotatedImage:
    """An image file with its annotations."""

    file: str
    """Its path; empty if it does not exist."""
    name: str
    """Its name in the annotations, for messages."""
    boxes: list[Sequence[float]]
    """left, top, right, bottom in pixels of the picture, before or after its rotation;
    if `is_relative`, as fractions of its width and height after it.
    """
    labels: list[int]
    ignored: list[bool]
    size: tuple[int, int] = (0, 0)
    """Height and width according to the annotations; 0: they do not say it."""
    is_relative: bool = False


class _Problems:
    """Counts what is wrong with annotations, and names the first example of each."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def add(self, text: str, name: str, count: int = 1) -> None:
        """Adds a problem, a text with {} for its number."""
        if count:
            self._counts[text] = self._counts.get(text, 0) + count
            self._examples.setdefault(text, name)

    def notes(self, where: Path) -> list[str]:
        """Lines for the user."""
        lines = []
        for text, count in self._counts.items():
            what = text.format(f"{count:,}")
            lines.append(f"{where}: {what}, such as in {self._examples[text]}")
        return lines


def split_name(word: str) -> str:
    """The split that a word such as `valid` means; `train` for any other word."""
    for split, names in ALIASES.items():
        if word in names:
            return split
    return "train"


def source(
    path: Path,
    pictures: Mapping[str, Sequence[AnnotatedImage]],
    class_names: Sequence[str],
    notes: Iterable[str] = (),
) -> Source:
    """A source of `image`, `boxes`, `box_labels` and `box_ignored`.

    The header of each file is read for its size and its rotation. Images without boxes
    are kept. An image that is named several times is one example with all its boxes,
    equal ones once. Missing images, and those of another size than their annotations
    say, are left out; boxes are clipped to the picture, and left out without an area.
    All that is counted in notes.

    Args:
        path: Where the annotations are, for messages.
        pictures: Split -> its images.
        class_names: Names of the labels 0, 1, ...
        notes: Further lines for the user.

    Raises:
        UsageError: A label has no name, an image is in two splits, or no box is left
            for training.
    """
    problems = _Problems()
    lines = [*notes]
    if _mark_fractions([*itertools.chain(*pictures.values())]):
        lines.append(f"{path}: boxes are fractions of width and height")
    pictures = {s: _joined(part, problems) for s, part in pictures.items()}
    files: dict[str, list[str]] = {}
    boxes: dict[str, list[np.ndarray]] = {}
    splits: dict[str, str] = {}  # of the files
    total = sum(map(len, pictures.values()))
    progress_bar.stage("measuring", f"the sizes of {total:,} images")
    done = 0
    for split in SPLITS:
        for picture in pictures.get(split, ()):
            done += 1
            progress_bar.count("measuring", done, total)
            _require_names(picture, class_names, path)
            rows = _boxes_of(picture, problems)
            if rows is not None:
                file = os.path.abspath(picture.file)
                if splits.setdefault(file, split) != split:
                    raise UsageError(
                        f"{path}: {picture.name} is in {splits[file]} and in {split};"
                        f" remove it from one of them. Without {split}, its images are"
                        " chosen from those of train"
                    )
                files.setdefault(split, []).append(file)
                boxes.setdefault(split, []).append(rows)
    lines += problems.notes(path)
    found = [rows for rows in boxes.get("train", ()) if len(rows)]
    if found and all(rows[:, 5].all() for rows in found):
        raise UsageError(
            f"{path}: all boxes for training are of crowds or difficult (iscrowd,"
            " difficult), which a model need not find; set that to 0 for those to find"
        )
    if not found:
        what = "boxes" if "train" in files else "image with annotations"
        reason = f": {lines[-1]}" if lines else ""
        raise UsageError(f"{path} has no {what} for training{reason}")
    root = os.path.abspath(path if path.is_dir() else path.parent)
    most = max(len(rows) for rows_of_split in boxes.values() for rows in rows_of_split)
    lists = {}
    columns = {}
    for split, paths in files.items():
        lists[split] = {"image": FileList.of(paths, root)}
        columns[split] = _columns(paths, boxes[split], max(most, 1), root)
    parts = []
    for split, rows_of_split in boxes.items():
        images = pluralize(len(files[split]), "image")
        count = pluralize(sum(map(len, rows_of_split)), "box")
        ignored = sum(int(rows[:, 5].sum()) for rows in rows_of_split)
        count += f" ({ignored:,} of crowds or difficult)" if ignored else ""
        parts.append(f"{images} and {count} in {split}")
    limit = pluralize(most, "box")
    lines.append(f"{path}: {', '.join(parts)}; at most {limit} in an image")
    return FileSource(lists, columns, tuple(class_names), notes=tuple(lines))


def _mark_fractions(pictures: Sequence[AnnotatedImage]) -> bool:
    """Whether all boxes are fractions, although the format has pixels; marks them."""
    sides = [side for p in pictures for box in p.boxes for side in box]
    if not sides or max(sides) > _MAX_FRACTION:
        return False
    if any(picture.is_relative for picture in pictures):  # as YOLO writes them
        return False
    for picture in pictures:
        picture.is_relative = True
    return True


def _joined(
    pictures: Sequence[AnnotatedImage], problems: _Problems
) -> list[AnnotatedImage]:
    """The pictures with the boxes of all annotations of a file."""
    by_file: dict[str, AnnotatedImage] = {}
    joined = []
    for picture in pictures:
        first = by_file.setdefault(os.path.abspath(picture.file), picture)
        if first is picture or not picture.file:
            joined.append(picture)
            continue
        problems.add(
            "{} images are named more than once; their boxes are joined", picture.name
        )
        known = {(*b, n) for b, n in zip(first.boxes, first.labels, strict=True)}
        rows = zip(picture.boxes, picture.labels, picture.ignored, strict=True)
        for box, label, is_ignored in rows:
            if (*box, label) not in known:
                first.boxes.append(box)
                first.labels.append(label)
                first.ignored.append(is_ignored)
    return joined


def _columns(
    paths: Sequence[str], boxes: Sequence[np.ndarray], most: int, root: str
) -> dict[str, np.ndarray]:
    """Padded boxes of all images, and ids from the paths below the root."""
    count = len(paths)
    corners = np.zeros((count, most, 4), np.float32)
    labels = np.full((count, most), -1, np.int32)
    ignored = np.zeros((count, most), np.uint8)
    for row, values in enumerate(boxes):
        corners[row, : len(values)] = values[:, :4]
        labels[row, : len(values)] = values[:, 4]
        ignored[row, : len(values)] = values[:, 5]
    ids = [stable_hash(os.fsencode(os.path.relpath(file, root))) for file in paths]
    return {
        "id": np.array(ids, np.int64),
        "boxes": corners,
        "box_labels": labels,
        "box_ignored": ignored,
    }


def _require_names(
    picture: AnnotatedImage, class_names: Sequence[str], where: Path
) -> None:
    for label in picture.labels:
        if not 0 <= label < len(class_names):
            raise UsageError(
                f"{where}: the class {label} in {picture.name} is not from 0 to"
                f" {len(class_names) - 1}, the numbers of the"
                f" {pluralize(len(class_names), 'name')} of classes; the first class is"
                " 0: correct the annotations, or name all classes"
            )


def _boxes_of(picture: AnnotatedImage, problems: _Problems) -> np.ndarray | None:
    """left, top, right, bottom, label and whether it is ignored, (boxes, 6), in pixels
    of the upright picture; None if the picture is left out.
    """
    if not picture.file:
        problems.add(_MISSING, picture.name)
        return None
    height, width, orientation = read_header(picture.file, image_sizes.stored_shape)
    if not height * width:
        problems.add("{} images cannot be read; left out", picture.name)
        return None
    stored = (height, width)
    upright = (width, height) if orientation >= 5 else stored
    boxes = np.array(picture.boxes, np.float64).reshape(-1, 4)
    if picture.is_relative:
        boxes = boxes * np.tile(upright[::-1], 2)
    elif 0 not in picture.size and picture.size != upright:
        if picture.size != stored:
            problems.add(
                "{} images have another size than their annotations say; left out",
                f"{picture.name} ({upright[1]}x{upright[0]}, not"
                f" {picture.size[1]}x{picture.size[0]} pixels)",
            )
            return None
        boxes = _turn(boxes, stored, orientation)
    rows = np.column_stack([boxes, picture.labels, picture.ignored])
    rows = rows.reshape(-1, 6)
    return _clean(rows, upright, picture.name, problems)


def _turn(boxes: np.ndarray, stored: tuple[int, int], orientation: int) -> np.ndarray:
    """Boxes in the upright picture, from those in the stored one.

    EXIF 2.3, 4.6.4 A: from orientation 5 on, rows of the stored picture are columns of
    the upright one.
    """
    height, width = stored
    left, top, right, bottom = boxes.T
    if orientation in (2, 3, 7, 8):
        left, right = width - right, width - left
    if orientation in (3, 4, 6, 7):
        top, bottom = height - bottom, height - top
    if orientation >= 5:
        left, top, right, bottom = top, left, bottom, right
    return np.stack([left, top, right, bottom], axis=1)


def _clean(
    rows: np.ndarray, size: tuple[int, int], name: str, problems: _Problems
) -> np.ndarray:
    """Boxes inside the picture and with an area; others are counted."""
    is_number = np.isfinite(rows).all(axis=1)
    problems.add("{} boxes are not numbers; left out", name, int((~is_number).sum()))
    rows = rows[is_number]
    first = np.minimum(rows[:, :2], rows[:, 2:4])
    last = np.maximum(rows[:, :2], rows[:, 2:4])
    is_swapped = (first != rows[:, :2]).any(axis=1)
    text = "{} boxes have swapped corners; corrected"
    problems.add(text, name, int(is_swapped.sum()))
    limits = np.array(size[::-1], np.float64)
    is_beyond = (first < -_TOLERANCE).any(axis=1)
    is_beyond |= (last > limits + _TOLERANCE).any(axis=1)
    first, last = first.clip(0, limits), last.clip(0, limits)
    has_area = (last > first).all(axis=1)
    is_clipped = is_beyond & has_area
    problems.add(
        "{} boxes reach out of their picture; clipped", name, int(is_clipped.sum())
    )
    text = "{} boxes have no area in their picture; left out"
    problems.add(text, name, int((~has_area).sum()))
    rows = np.column_stack([first, last, rows[:, 4:]])[has_area]
    if len(rows) > MAX_BOXES:
        text = "{} " + f"images have more than {MAX_BOXES:,} boxes; the largest are"
        problems.add(f"{text} kept", f"{name} ({len(rows):,})")
        areas = (rows[:, 2] - rows[:, 0]) * (rows[:, 3] - rows[:, 1])
        rows = rows[np.sort(np.argsort(-areas, kind="stable")[:MAX_BOXES])]
    return rows
