"""A directory of images and of masks with a class for each pixel."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np

from pipeline.config.registry import register
from pipeline.contracts import Source
from pipeline.data import mask_files, names, split_names
from pipeline.data.box_files import split_name
from pipeline.data.file_list import FileList
from pipeline.data.file_source import FileSource
from pipeline.data.labels import distinct
from pipeline.data.seeds import stable_hash
from pipeline.utils import image_formats
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError

_Key = tuple[str, ...]
_Pair = tuple[str, str]  # the files of an image and of its mask


@register
def masks(
    *,
    path: Annotated[Path, "directory"],
    class_names: tuple[str, ...] = (),
    group: str | None = None,
) -> Source:
    """Images and their masks, of equal names in `images/` and `masks/`.

    The folders of masks may also be called `labels`, `annotations` (also with `trimaps`
    in it), `SegmentationClass`, or as those of the images with `_masks` at the end; or
    the names of masks end in `_mask`. The folder of images or any above it may be
    named as a split. Of PASCAL VOC, splits are the lists in `ImageSets/Segmentation`.
    Masks are files of class numbers, of a palette or of colors; `labelmap.txt` or
    `class_dict.csv` names the classes of colors. The id of an example is a hash of the
    path of its image below the directory.

    Args:
        path: The directory.
        class_names: Names of the classes, in the order of the values in masks. By
            default the values themselves, or those of PASCAL VOC.
        group: Regular expression to search for in the path of each image; images with
            the same match (of its first group, if it has one) stay in one split, such
            as slices of a patient.

    Raises:
        UsageError: No image has a mask, or one has several or of another size.
    """
    pairs, notes = _pairs(path)
    pairs_by_split, unlisted = _by_split(path, pairs)
    titles, class_values = mask_files.classes(path, class_names)
    if titles is None and (path / "SegmentationClass").is_dir():
        titles = mask_files.VOC_CLASSES
    root = os.path.abspath(path)
    files: dict[str, dict[str, FileList]] = {}
    columns: dict[str, Mapping[str, np.ndarray]] = {}
    for split, of_split in pairs_by_split.items():
        of_images, of_masks = zip(*of_split, strict=True)
        ids = [os.fsencode(os.path.relpath(file, root)) for file in of_images]
        columns[split] = {"id": np.array([*map(stable_hash, ids)], np.int64)}
        files[split] = {
            "image": FileList.of(of_images, root),
            "mask": FileList.of(of_masks, root),
        }
    return FileSource(
        files,
        columns,
        titles and distinct(titles, "--source.class-names"),
        class_values=class_values,
        notes=(*notes, *unlisted),
        group=group,
    )


def _pairs(path: Path) -> tuple[dict[_Key, _Pair], list[str]]:
    """The images with their masks, and notes about what is alone."""
    images, masks = _find(path)
    pairs = {}
    for key in images.keys() & masks.keys():
        for kind, files in (("images", images[key]), ("masks", masks[key])):
            if len(files) > 1:
                raise UsageError(
                    f"{path}: {files[0]} and {files[1]} are two {kind} of one name;"
                    " keep one image and one mask of each name"
                )
        pairs[key] = (images[key][0], masks[key][0])
    notes = []
    for word, other, found in (
        ("image", "a mask", images),
        ("mask", "an image", masks),
    ):
        alone = [files[0] for key, files in found.items() if key not in pairs]
        if alone:
            notes.append(
                f"{path}: {pluralize(len(alone), word)} without {other} of the same"
                f" name, such as {os.path.relpath(alone[0], path)}; left out"
            )
    if not pairs:
        reason = f": {notes[0]}" if notes else ""
        raise UsageError(f"{path} has no images with masks{reason}")
    return dict(sorted(pairs.items())), notes


def _by_split(
    path: Path, pairs: Mapping[_Key, _Pair]
) -> tuple[dict[str, list[_Pair]], list[str]]:
    """Split -> its images with their masks, and a note about those in no list."""
    lists = _lists(path / "ImageSets" / "Segmentation")
    by_split: dict[str, list[_Pair]] = {}
    unlisted = 0
    for key, pair in pairs.items():
        splits = filter(None, map(split_names.split_of_folder, key[:-1]))
        split = next(splits, "train")
        if lists:
            split = lists.get(key[-1], "")
        if split:
            by_split.setdefault(split, []).append(pair)
        else:
            unlisted += 1
    if "train" not in by_split:
        raise UsageError(f"{path} has no images with masks for training")
    if not unlisted:
        return by_split, []
    images = pluralize(unlisted, "image")
    return by_split, [
        f"{path}: {images} in no list of ImageSets/Segmentation; left out"
    ]


def _find(path: Path) -> tuple[dict[_Key, list[str]], dict[_Key, list[str]]]:
    """The images and the masks below a directory by what an image and its mask share:
    the folders without the words for images and masks, and the stem, in lower case.
    """
    images: dict[_Key, list[str]] = {}
    masks: dict[_Key, list[str]] = {}
    root = os.path.abspath(path)
    for folder, _, files in image_formats.walk(root):
        folders = Path(os.path.relpath(folder, root)).parts
        if not names.INSTANCE_FOLDERS.isdisjoint(map(str.lower, folders)):
            continue
        for name in sorted(files):
            if not name.lower().endswith(image_formats.SUFFIXES):
                continue
            key, is_mask = _key(folders, os.path.splitext(name)[0])
            kind = masks if is_mask else images
            kind.setdefault(key, []).append(os.path.join(folder, name))
    return images, masks


def _key(folders: tuple[str, ...], stem: str) -> tuple[_Key, bool]:
    is_mask = False
    parts = []
    for name in map(str.lower, folders):
        plain = names.MASK_SUFFIX.sub("", name)
        is_of_masks = name in names.MASK_FOLDERS or plain != name
        plain = names.IMAGE_SUFFIX.sub("", plain)
        is_mask |= is_of_masks
        if name not in names.MASK_FOLDERS | names.IMAGE_FOLDERS:
            parts.append(plain)
    plain = names.MASK_SUFFIX.sub("", stem.lower())
    is_mask |= plain != stem.lower()
    return (*parts, plain), is_mask


def _lists(folder: Path) -> dict[str, str]:
    """Stem of an image in lower case -> its split; empty without lists."""
    splits: dict[str, str] = {}
    for word in ("train", "val", "test"):
        file = folder / f"{word}.txt"
        if file.is_file():
            for line in file.read_text(errors="replace").splitlines():
                splits.setdefault(line.strip().lower(), split_name(word))
    return splits
