"""Arrays in an `.npz` file or a directory of `.npy` files."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil

from pipeline.config.registry import register
from pipeline.contracts import Source
from pipeline.data import split_names
from pipeline.data.array_source import ArraySource
from pipeline.data.arrays import Examples, examples, find_key, match_fields
from pipeline.data.labels import class_names_of, encode_targets
from pipeline.data.seeds import stable_hash
from pipeline.utils import npz
from pipeline.utils.errors import UsageError, reason

# Key of the input -> its kind, and of the target: None is recognized.
_INPUT_KEYS = {"images": "image", "features": "features", "x": None}
_TARGET_KEYS = {"labels": "classes", "targets": "number", "masks": "mask", "y": None}


@register
def arrays(
    *, path: Annotated[Path, "exists"], class_names: tuple[str, ...] = ()
) -> Source:
    """NumPy arrays of inputs and targets. The id of an example is its index.

    Args:
        path: An `.npz` file; or a directory with `KEY.npy` for each key, which is read
            in pieces and may be larger than memory; or a directory of such directories:
            train, and optionally validation (valid, val) and test. Keys, one of the
            inputs and one of the targets: `images`, uint8, uint16 or float32 of shape
            (n, height, width) or (n, height, width, channels); `features`, numbers of
            shape (n,) to (n, ..., ..., ...); `x`, either of them, told by its shape and
            dtype; `labels`, the whole numbers 0 ... classes - 1 of any dtype, or
            strings, of shape (n,) or (n, 1), or one-hot; `targets`, numbers to predict,
            of shape (n,) or (n, numbers); `masks`, the class of each pixel, integers of
            shape (n, height, width); `y`, any of them, or several labels per example as
            0 and 1 of shape (n, classes); `groups` (optional), integers or strings of
            shape (n,): examples with the same value stay in one split; `class_names`
            (optional, in train), strings of shape (classes,): by default, the classes
            are named "0", "1", ...
        class_names: Names of the classes 0, 1, ... if the data have none.
    """
    try:
        folders = _folders(path) if path.is_dir() else {"train": path}
        arrays = {split: _read(folder) for split, folder in folders.items()}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    names_by_split = {}
    for split, folder in folders.items():
        if "class_names" in arrays[split]:
            where = f"{folder}: class_names"
            names_by_split[split] = class_names_of(arrays[split]["class_names"], where)
    names = names_by_split.get("train", class_names or None)
    options: dict[str, Any] = {"has_class_names": names is not None}
    by_split = {}
    for split in sorted(arrays, key=lambda split: split != "train"):
        by_split[split] = _examples(arrays[split], folders[split], options)
        options |= by_split["train"].kinds
    splits = {split: part.columns for split, part in by_split.items()}
    match_fields(splits)
    names = encode_targets(splits, names, f"class_names in {path}")
    for split, folder in folders.items():
        if names_by_split.get(split, names) != names:
            raise UsageError(
                f"{folder}/class_names.npy differs from that of train; use the same in"
                " all splits"
            )
    groups = arrays["train"].get("groups")
    group_names = None
    if groups is not None and groups.dtype.kind == "U":
        group_names = {name: _hash(name) for name in np.unique(groups).tolist()}
    source = ArraySource(
        splits.pop("train"),
        splits,
        class_names=names,
        name=path.name,
        group_names=group_names,
    )
    notes = (*source.info.notes, *by_split["train"].notes)
    source.info = dataclasses.replace(source.info, notes=notes)
    return source


def _folders(root: Path) -> dict[str, Path]:
    names = [path.name for path in root.iterdir() if path.is_dir()]
    folders = split_names.directories(root, names)
    return folders if "train" in folders else {"train": root}


def _read(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of an archive, or maps the files of a directory into memory."""
    if path.is_dir():
        return {file.stem: _memory_map(file) for file in sorted(path.glob("*.npy"))}
    try:
        return npz.read(path, psutil.virtual_memory().available)
    except ValueError as error:
        raise UsageError(
            f"{path} is not an .npz of plain arrays, or does not fit into memory"
            f" ({reason(error)}); write it with numpy.savez(path, images=images,"
            " labels=labels), or save images.npy and labels.npy in a directory, which"
            " is read in pieces"
        ) from None


def _memory_map(path: Path) -> np.memmap:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception:  # NumPy raises many types of exceptions for damaged files
        raise UsageError(
            f"{path} is not a complete .npy file of a plain array; write it with"
            " numpy.save"
        ) from None


def _examples(
    columns: Mapping[str, np.ndarray], path: Path, options: Mapping[str, Any]
) -> Examples:
    """The fields of examples, and `group` if present; options of `examples`."""
    input_key = find_key(columns, [*_INPUT_KEYS], str(path))
    target_key = find_key(columns, [*_TARGET_KEYS], str(path))
    kinds = {"input": _INPUT_KEYS[input_key], "target": _TARGET_KEYS[target_key]}
    kinds = {name: kind for name, kind in kinds.items() if kind is not None}
    fields = examples(
        str(path), columns[input_key], columns[target_key], **{**options, **kinds}
    )
    if "groups" in columns:
        count = len(columns[target_key])
        fields.columns["group"] = _groups(columns["groups"], count, path)
    return fields


def _groups(groups: np.ndarray, count: int, path: Path) -> np.ndarray:
    if groups.shape != (count,) or groups.dtype.kind not in "iuU":
        raise UsageError(
            f"{path}: groups must be integers or strings of shape ({count},); "
            f"got {groups.dtype} of shape {groups.shape}"
        )
    if groups.dtype.kind != "U":
        return np.array(groups, np.int64)
    texts, indices = np.unique(groups, return_inverse=True)
    hashes = [_hash(text) for text in texts.tolist()]
    return np.array(hashes, np.int64)[indices]


def _hash(group: str) -> int:
    return stable_hash(group.encode("utf-8", "surrogatepass"))
