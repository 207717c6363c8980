"""An `.npz` file with the keys `images` and `labels`, or a directory of such `.npy` files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil

from pipeline.contracts import Source
from pipeline.data import split_names
from pipeline.data.sources import _label_names
from pipeline.data.sources._array_source import ArraySource
from pipeline.data.sources._npy_source import NpySource
from pipeline.utils import npz
from pipeline.utils.errors import UsageError

_KEYS = ("images", "labels", "groups", "class_names")
_LARGEST = 2**31 - 1  # of a label; larger ones are never classes


def arrays(*, path: Annotated[Path, "exists"]) -> Source:
    """Arrays of the same length; a file is the split `train`, and an example's id is its index.

    Args:
        path: A file, or a directory with `KEY.npy` for each key, which is read in pieces and may be
            larger than the memory; or a directory with such directories train, and perhaps
            validation (valid, val) and test. `images`: uint8 of shape (n, height, width) or (n,
            height, width, channels); `labels`: whole numbers of shape (n,) or (n, 1), 0 ... classes
            - 1; `groups` (optional): whole numbers or strings of shape (n,), examples with the same
            value stay in one split; `class_names` (optional, in the directory of train): strings of
            shape (classes,), otherwise the classes are named "0", "1", ...

    Raises:
        UsageError: A file or key is missing, cannot be read, or is not as described above.
    """
    return _directory(path) if path.is_dir() else _archive(path)


def _archive(path: Path) -> Source:
    columns = _read(path)
    for key in ("images", "labels"):
        if key not in columns:
            keys = ", ".join(npz.names(path)) or "none"
            raise UsageError(f"{path} has no key {key!r}; its keys are {keys}")
    short = _short(columns, path)
    names = _class_names(short["label"], columns.get("class_names"), path)
    examples = {"image": _pixels(columns["images"], path), **short}
    return ArraySource(examples, class_names=names, name=path.name)


def _directory(root: Path) -> Source:
    folders = split_names.directories(root, [p.name for p in _files(root) if p.is_dir()])
    folders = folders if "train" in folders else {"train": root}
    images: dict[str, np.memmap] = {}
    short: dict[str, dict[str, np.ndarray]] = {}
    names: tuple[str, ...] = ()
    for split, folder in folders.items():
        paths = [path for path in _files(folder) if path.suffix == ".npy" and path.stem in _KEYS]
        columns = {path.stem: _load(path) for path in paths}
        for key in ("images", "labels"):
            if key not in columns:
                raise UsageError(f"{folder} has no {key}.npy")
        short[split] = _short(columns, folder)
        images[split] = _pixels(columns["images"], folder / "images.npy")
        if not images[split].flags.c_contiguous:
            raise UsageError(
                f"{folder}/images.npy is in Fortran order; save numpy.ascontiguousarray(images)"
            )
        if images[split].shape[1:] != images["train"].shape[1:]:
            raise UsageError(
                f"{folder}: images have shape {images[split].shape[1:]}, but those of train "
                f"{images['train'].shape[1:]}"
            )
        given = columns.get("class_names")
        if split == "train":
            names = _class_names(short["train"]["label"], given, folder)
        elif given is not None and given.tolist() != list(names):
            raise UsageError(
                f"{folder}/class_names.npy differs from that of train; use the same in all splits"
            )
    return NpySource(images, short, names)


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from None


def _load(path: Path) -> np.memmap:
    """An array whose content stays in its file."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception:  # NumPy raises many kinds for damaged files
        raise UsageError(
            f"{path} is not a complete .npy file of a plain array; write it with numpy.save"
        ) from None


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        return npz.read(path, psutil.virtual_memory().available, _KEYS)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except npz.TooLarge as error:
        raise UsageError(
            f"{path} does not fit into the free memory: {error}; save images.npy and labels.npy "
            "into a directory, which is read in pieces"
        ) from None
    except ValueError:
        raise UsageError(
            f"{path} is not an .npz of plain arrays; write it with "
            "numpy.savez(path, images=images, labels=labels)"
        ) from None


def _pixels(images: Any, path: Path) -> Any:
    """The images, with an axis for the channels."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise UsageError(
            f"{path}: images must be uint8 of shape (n, height, width[, channels]); "
            f"got {images.dtype} of shape {images.shape}; for images from 0 to 1 save "
            "np.rint(images * 255).astype(np.uint8)"
        )
    images = images[..., None] if images.ndim == 3 else images
    if images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
        raise UsageError(f"{path}: images must have pixels and 1 or 3 channels; got {images.shape}")
    return images


def _short(columns: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """The fields `label` and perhaps `group`, int64, of as many examples as there are images."""
    images, labels = columns["images"], columns["labels"]
    count = len(images) if images.ndim else 0
    if labels.ndim == 2 and labels.shape[1] == 1:  # as in keras.datasets
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iuf":
        one_hot = "; for one-hot labels save np.argmax(labels, 1)" if labels.ndim == 2 else ""
        raise UsageError(
            f"{path}: labels must be whole numbers of shape (n,); got {labels.dtype} of shape "
            f"{labels.shape}{one_hot}"
        )
    if count != len(labels):
        raise UsageError(f"{path}: {count} images but {len(labels)} labels")
    if not count:
        raise UsageError(f"{path} has no examples")
    values = labels.astype(np.float64)
    wrong = ~((values == np.floor(values)) & (np.abs(values) <= _LARGEST))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise UsageError(
            f"{path}: label {labels[at]} of example {at} is not a class "
            f"({int(wrong.sum())} such labels); classes are 0, 1, 2, ..."
        )
    short = {"label": labels.astype(np.int64)}
    if "groups" in columns:
        short["group"] = _groups(columns["groups"], count, path)
    return short


def _groups(groups: np.ndarray, count: int, path: Path) -> np.ndarray:
    if groups.shape != (count,) or groups.dtype.kind not in "iuU":
        raise UsageError(
            f"{path}: groups must be whole numbers or strings of shape ({count},); "
            f"got {groups.dtype} of shape {groups.shape}"
        )
    if groups.dtype.kind != "U":
        return groups.astype(np.int64)
    texts, places = np.unique(groups, return_inverse=True)
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    hashes = [int.from_bytes(digest[:8], "big") >> 1 for digest in digests]
    return np.array(hashes, np.int64)[places]


def _class_names(labels: np.ndarray, given: np.ndarray | None, path: Path) -> tuple[str, ...]:
    if given is None:
        return _label_names.from_labels(labels, str(path), "class_names")
    strings = given.dtype.kind == "U" and given.ndim == 1
    return _label_names.distinct(given.tolist() if strings else (), f"{path}: class_names")
