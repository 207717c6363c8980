"""Boxes in a table with a row for each."""

from pathlib import Path
from typing import Annotated

import numpy as np

from pipeline.config.registry import register
from pipeline.contracts import Source
from pipeline.data import box_files, detect, names, table
from pipeline.data.box_files import AnnotatedImage
from pipeline.data.image_search import ImageSearch
from pipeline.data.labels import distinct, in_order
from pipeline.data.split_names import split_of_folder
from pipeline.data.table import Table
from pipeline.utils.errors import UsageError


@register
def box_table(*, path: Annotated[Path, "file"]) -> Source:
    """Images with boxes in a table with the columns `xmin`, `ymin`, `xmax` and `ymax`,
    a file, such as `filename` or `path`, and a class, such as `class` or `label`.

    The rows of a file are one example. In a row without a box, the file has none.
    Images are searched as `ImageSearch` does. A column `split` names the splits.
    Classes are in alphabetical order. The id of an example is a hash of its path below
    the directory of the table.

    Args:
        path: A table of any format.
    """
    read = detect.take_table(path)
    file = _require(read, (*names.FILES, *names.BOX_FILES), "the file of the image")
    label = _require(read, (*names.LABELS, *names.BOX_LABELS), "the class of the box")
    boxes = np.stack([_numbers(read, title) for title in names.BOX_SIDES], axis=1)
    labels = table.texts(read.columns[label]).to_pylist()
    is_gap = np.isnan(boxes)
    for row in np.flatnonzero(is_gap.any(axis=1) & ~is_gap.all(axis=1))[:1].tolist():
        raise UsageError(f"{read.where(row)}: a side of the box is missing; fill it in")
    has_box = ~is_gap.any(axis=1)
    sizes = _sizes(read)
    for row in np.flatnonzero(has_box).tolist():
        if not labels[row]:
            raise UsageError(f"{read.where(row)}: the box has no {label}; fill it in")
    used = {labels[row] for row in np.flatnonzero(has_box)}
    class_names = distinct(in_order(used), f"the {read.key} {label!r}")
    numbers = {name: number for number, name in enumerate(class_names)}
    split_title = names.first(["split"], read.columns)
    splits = None if split_title is None else read.columns[split_title].to_pylist()
    images = ImageSearch(path.parent)
    pictures: dict[tuple[str, str], AnnotatedImage] = {}
    for row, name in enumerate(table.texts(read.columns[file]).to_pylist()):
        split = "train"
        if splits is not None:
            split = split_of_folder(str(splits[row]))
        if not split:
            raise UsageError(
                f"{read.where(row)}: the {read.key} 'split' must be train, validation"
                " or test; correct it"
            )
        if (split, name) not in pictures:
            file_found = images.find(name, path)
            pictures[split, name] = AnnotatedImage(
                file_found, name, [], [], [], sizes[row]
            )
        if has_box[row]:
            picture = pictures[split, name]
            picture.boxes.append(boxes[row].tolist())
            picture.labels.append(numbers[labels[row]])
            picture.ignored.append(False)
    by_split: dict[str, list[AnnotatedImage]] = {}
    for (split, _), picture in pictures.items():
        by_split.setdefault(split, []).append(picture)
    return box_files.source(path, by_split, class_names, read.notes)


def _sizes(read: Table) -> list[tuple[int, int]]:
    """Height and width of the image of each row; 0 if the table does not say it."""
    sides = []
    for name in ("height", "width"):
        title = read.find(name)
        numbers = read.numbers(title) if title else None
        if numbers is None:
            return [(0, 0)] * len(read)
        sides.append(np.nan_to_num(numbers).astype(int).tolist())
    return list(zip(*sides, strict=True))


def _require(read: Table, usual: tuple[str, ...], what: str) -> str:
    title = names.first(usual, read.columns)
    if title is None:
        raise UsageError(
            f"{read.name} has boxes, but no {read.key} of {what}, such as"
            f" {', '.join(usual[:3])}; it has {', '.join(read.columns)}"
        )
    return title


def _numbers(read: Table, name: str) -> np.ndarray:
    """A side of the boxes, float64 (rows,), NaN where there is none."""
    title = str(read.find(name))
    numbers = read.numbers(title)
    if numbers is None:
        row = read.not_numbers(title)[0]
        cell = table.quote_cell(read.columns[title], row)
        raise UsageError(
            f"{read.where(row)}: {cell} in the {read.key} {title!r} is not a number;"
            " correct it"
        )
    return numbers
