"""An `.npz` file with the keys `images` and `labels`, or a directory of such `.npy` files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil

from pipeline.contracts import Source
from pipeline.data import split_names
from pipeline.data.seeds import stable_hash
from pipeline.data.sources import _label_names
from pipeline.data.sources._array_source import ArraySource
from pipeline.utils import npz
from pipeline.utils.errors import UsageError, reason


def arrays(*, path: Annotated[Path, "exists"]) -> Source:
    """NumPy arrays of images and labels. The id of an example is its index.

    Args:
        path: An `.npz` file; or a directory with `KEY.npy` for each key, which is read in pieces
            and may be larger than memory; or a directory of such directories: train, and optionally
            validation (valid, val) and test. Keys: `images`, uint8 of shape (n, height, width) or
            (n, height, width, channels); `labels`, integers 0 ... classes - 1 of shape (n,) or
            (n, 1); `groups` (optional), integers or strings of shape (n,): examples with the same
            value stay in one split; `class_names` (optional, in train), strings of shape
            (classes,): by default, the classes are named "0", "1", ...
    """
    try:
        folders = _folders(path) if path.is_dir() else {"train": path}
        found = {split: _read(folder) for split, folder in folders.items()}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    splits = {split: _examples(found[split], folder) for split, folder in folders.items()}
    given = found["train"].get("class_names")
    if given is None:
        names = _label_names.from_labels(splits["train"]["label"], str(path), "class_names")
    else:
        strings = given.dtype.kind == "U" and given.ndim == 1
        names = _label_names.distinct(given.tolist() if strings else (), f"{path}: class_names")
    shape = splits["train"]["image"].shape[1:]
    for split, folder in folders.items():
        other = splits[split]["image"].shape[1:]
        if other != shape:
            raise UsageError(
                f"{folder}: images have shape {other}, but images of train have shape {shape}"
            )
        if found[split].get("class_names", np.array(names)).tolist() != list(names):
            raise UsageError(
                f"{folder}/class_names.npy differs from that of train; use the same in all splits"
            )
    train = splits.pop("train")
    return ArraySource(train, splits, class_names=names, name=path.name)


def _folders(root: Path) -> dict[str, Path]:
    found = split_names.directories(root, [p.name for p in root.iterdir() if p.is_dir()])
    return found if "train" in found else {"train": root}


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive, or of a directory, where their content stays in the files."""
    if path.is_dir():
        return {file.stem: _mapped(file) for file in sorted(path.glob("*.npy"))}
    try:
        return npz.read(path, psutil.virtual_memory().available)
    except ValueError as error:
        raise UsageError(
            f"{path} is not an .npz of plain arrays, or does not fit into memory "
            f"({reason(error)}); write it with numpy.savez(path, images=images, labels=labels), or "
            "save images.npy and labels.npy in a directory, which is read in pieces"
        ) from None


def _mapped(path: Path) -> np.memmap:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception:  # NumPy raises many types of exceptions for damaged files
        raise UsageError(
            f"{path} is not a complete .npy file of a plain array; write it with numpy.save"
        ) from None


def _examples(columns: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """The fields `label`, `image` with an axis for the channels, and `group` if present."""
    for key in ("images", "labels"):
        if key not in columns:
            raise UsageError(f"{path} has no {key}; it has {', '.join(columns) or 'no arrays'}")
    images, labels = _pixels(columns["images"], path), columns["labels"]
    if labels.ndim == 2 and labels.shape[1] == 1:  # as in keras.datasets
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UsageError(
            f"{path}: labels must be integers of shape (n,); got {labels.dtype} of shape "
            f"{labels.shape}; for one-hot labels, save np.argmax(labels, 1)"
        )
    if len(images) != len(labels) or not len(labels):
        raise UsageError(f"{path}: {len(images)} images but {len(labels)} labels")
    short = {"label": np.array(labels, np.int64)}
    if "groups" in columns:
        short["group"] = _groups(columns["groups"], len(images), path)
    return {**short, "image": images}


def _pixels(images: Any, path: Path) -> Any:
    shaped = images[..., None] if images.ndim == 3 else images
    if images.dtype != np.uint8 or shaped.ndim != 4 or shaped.shape[3] not in (1, 3):
        raise UsageError(
            f"{path}: images must be uint8 of shape (n, height, width[, 1 or 3]); "
            f"got {images.dtype} of shape {images.shape}; for images from 0 to 1, save "
            "np.rint(images * 255).astype(np.uint8)"
        )
    if 0 in shaped.shape[1:] or not shaped.flags.c_contiguous:
        raise UsageError(
            f"{path}: images must not be empty, and must be in C order: "
            "numpy.ascontiguousarray(images)"
        )
    return shaped


def _groups(groups: np.ndarray, count: int, path: Path) -> np.ndarray:
    if groups.shape != (count,) or groups.dtype.kind not in "iuU":
        raise UsageError(
            f"{path}: groups must be integers or strings of shape ({count},); "
            f"got {groups.dtype} of shape {groups.shape}"
        )
    if groups.dtype.kind != "U":
        return np.array(groups, np.int64)
    texts, places = np.unique(groups, return_inverse=True)
    hashes = [stable_hash(text.encode("utf-8", "surrogatepass")) for text in texts]
    return np.array(hashes, np.int64)[places]
