"""Arrays of images and labels in an `.npz` file or a directory of `.npy` files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil

from pipeline.contracts import Source
from pipeline.data import split_names
from pipeline.data.array_source import ArraySource, examples
from pipeline.data.labels import class_names_of, encode_labels
from pipeline.data.seeds import stable_hash
from pipeline.utils import npz
from pipeline.utils.errors import UsageError, reason


def arrays(
    *, path: Annotated[Path, "exists"], class_names: tuple[str, ...] = ()
) -> Source:
    """NumPy arrays of images and labels. The id of an example is its index.

    Args:
        path: An `.npz` file; or a directory with `KEY.npy` for each key, which is read
            in pieces and may be larger than memory; or a directory of such directories:
            train, and optionally validation (valid, val) and test. Keys: `images`,
            uint8, uint16 or float32 of shape (n, height, width) or (n, height, width,
            channels); `labels`, the whole numbers 0 ... classes - 1 of any dtype, or
            strings, of shape (n,) or (n, 1), or one-hot; `groups` (optional), integers
            or strings of shape (n,): examples with the same value stay in one split;
            `class_names` (optional, in train), strings of shape (classes,): by default,
            the classes are named "0", "1", ...
        class_names: Names of the labels 0, 1, ... if the data have none.
    """
    try:
        folders = _folders(path) if path.is_dir() else {"train": path}
        arrays = {split: _read(folder) for split, folder in folders.items()}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    splits = {
        split: _examples(arrays[split], folder) for split, folder in folders.items()
    }
    names_by_split = {}
    for split, folder in folders.items():
        if "class_names" in arrays[split]:
            where = f"{folder}: class_names"
            names_by_split[split] = class_names_of(arrays[split]["class_names"], where)
    names = names_by_split.get("train", class_names or None)
    names = encode_labels(splits, names, f"class_names in {path}")
    for split, folder in folders.items():
        if names_by_split.get(split, names) != names:
            raise UsageError(
                f"{folder}/class_names.npy differs from that of train; use the same in"
                " all splits"
            )
    train = splits.pop("train")
    groups = arrays["train"].get("groups")
    group_names = None
    if groups is not None and groups.dtype.kind == "U":
        group_names = {name: _hash(name) for name in np.unique(groups).tolist()}
    return ArraySource(
        train, splits, class_names=names, name=path.name, group_names=group_names
    )


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


def _examples(columns: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """The fields `image` with an axis for channels, `label`, and `group` if present."""
    for key in ("images", "labels"):
        if key not in columns:
            names = ", ".join(columns) or "no arrays"
            raise UsageError(
                f"{path} has no {key}; it has {names}; expected are images and labels"
            )
    fields = examples(str(path), columns["images"], columns["labels"])
    if "label" not in fields:
        raise UsageError(
            f"{path}: images must have shape (n, height, width[, channels])"
        )
    if "groups" in columns:
        fields["group"] = _groups(columns["groups"], len(fields["label"]), path)
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
