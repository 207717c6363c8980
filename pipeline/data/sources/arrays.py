"""An `.npz` file with the keys `images` and `labels`, or a folder of `.npy` files so named."""

import hashlib
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil

from pipeline.contracts import Source
from pipeline.data.sources import _label_names as classes
from pipeline.data.sources._array_source import ArraySource
from pipeline.data.sources._npy_source import NpySource, Part
from pipeline.utils import npz
from pipeline.utils.errors import UsageError

_KEYS = ("images", "labels", "groups", "class_names")
_LARGEST = 2**31 - 1  # of a label; those beyond are no classes in any case
_SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}


def arrays(*, path: Annotated[Path, "exists"]) -> Source:
    """Arrays of one length; a file has the split `train`, and an example's id is its position.

    Args:
        path: A file, or a folder with `KEY.npy` for each key, which is read in pieces and may be
            larger than the memory; or a folder with such folders train, and perhaps validation
            (valid, val) and test. `images`: uint8 of shape (n, height, width) or (n, height,
            width, channels); `labels`: whole numbers of shape (n,) or (n, 1), 0 ... classes - 1;
            `groups` (optional): whole numbers or strings of shape (n,), examples of one value stay
            in one split; `class_names` (optional, in the folder of train): strings of shape
            (classes,), otherwise the classes are named "0", "1", ...

    Raises:
        UsageError: A file or key is missing, cannot be read, or does not hold what is said above.
    """
    return _folder(path) if path.is_dir() else _file(path)


def _file(path: Path) -> Source:
    columns = _read(path)
    for key in ("images", "labels"):
        if key not in columns:
            there = ", ".join(npz.names(path)) or "none"
            raise UsageError(f"{path} has no key {key!r}; it has {there}")
    short = _short(columns, path)
    names = _class_names(short["label"], columns.get("class_names"), path)
    examples = {"image": _pixels(columns["images"], path), **short}
    return ArraySource(examples, class_names=names, name=path.name)


def _folder(root: Path) -> Source:
    found = {o: [n for n in names if (root / n).is_dir()] for o, names in _SPLITS.items()}
    folders = {ours: root / theirs[0] for ours, theirs in found.items() if theirs}
    for several in found.values():
        if len(several) > 1:
            raise UsageError(f"{root} has {' and '.join(several)}, which are one split; join them")
    folders = folders if "train" in folders else {"train": root}
    parts, names = {}, None
    for split, folder in folders.items():
        columns = {key: _load(folder / f"{key}.npy") for key in _KEYS if key in _there(folder)}
        for key in ("images", "labels"):
            if key not in columns:
                raise UsageError(f"{folder} has no {key}.npy")
        short = _short(columns, folder)
        given = columns.get("class_names")
        if split != "train":
            if given is not None and given.tolist() != list(names):
                raise UsageError(
                    f"{folder}/class_names.npy names other classes than train's, or in another "
                    "order; give all splits the same"
                )
            given = np.array(names)
        names = _class_names(short["label"], given, folder)
        parts[split] = _part(folder / "images.npy", columns["images"], short)
        if parts[split].shape != parts["train"].shape:
            raise UsageError(
                f"{folder}: images of shape {parts[split].shape}, those of train have "
                f"{parts['train'].shape}"
            )
    return NpySource(parts, names)


def _part(path: Path, images: np.ndarray, short: dict[str, np.ndarray]) -> Part:
    shape = _pixels(images, path).shape[1:]
    if not images.flags.c_contiguous:
        raise UsageError(f"{path} is in Fortran's order; save numpy.ascontiguousarray(images)")
    return Part(path, images.offset, shape, short)


def _there(folder: Path) -> set[str]:
    try:
        return {file.stem for file in folder.iterdir() if file.suffix == ".npy"}
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from None


def _load(path: Path) -> np.ndarray:
    """An array whose content stays in its file."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception:  # whatever a damaged file makes NumPy raise
        raise UsageError(
            f"{path} is no whole .npy file of a plain array; write it with numpy.save"
        ) from None


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        return npz.read(path, psutil.virtual_memory().available, _KEYS)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except npz.TooLarge as error:
        raise UsageError(
            f"{path} does not fit into the free memory: {error}; save images.npy and labels.npy "
            "into a folder, which is read in pieces"
        ) from None
    except ValueError:
        raise UsageError(
            f"{path} is no .npz of plain arrays; write it with "
            "numpy.savez(path, images=images, labels=labels)"
        ) from None


def _pixels(images: np.ndarray, path: Path) -> np.ndarray:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise UsageError(
            f"{path}: images must be uint8 of shape (n, height, width[, channels]), "
            f"received {images.dtype} of shape {images.shape}; for images from 0 to 1 save "
            "np.rint(images * 255).astype(np.uint8)"
        )
    images = images[..., None] if images.ndim == 3 else images
    if images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
        raise UsageError(
            f"{path}: images must have pixels and 1 or 3 channels, received {images.shape}"
        )
    return images


def _short(columns: dict[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """The fields `label` and perhaps `group`, int64, of as many examples as there are images."""
    images, labels = columns["images"], columns["labels"]
    count = len(images) if images.ndim else 0
    if labels.ndim == 2 and labels.shape[1] == 1:  # as keras.datasets has them
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iuf":
        raise UsageError(
            f"{path}: labels must be whole numbers of shape (n,), received {labels.dtype} of shape "
            f"{labels.shape}"
            + "; for one-hot labels save np.argmax(labels, 1)"
            * (labels.ndim == 2)
        )
    if count != len(labels):
        raise UsageError(f"{path}: {count} images but {len(labels)} labels")
    if not count:
        raise UsageError(f"{path} holds no examples")
    with np.errstate(invalid="ignore"):
        wrong = ~np.isfinite(labels) | (labels != np.floor(labels))
        wrong |= (labels > _LARGEST) | (labels < -_LARGEST)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise UsageError(
            f"{path}: label {labels[at]} of example {at} is no class "
            f"({int(wrong.sum())} such labels); classes are 0, 1, 2, ..."
        )
    short = {"label": labels.astype(np.int64)}
    if "groups" in columns:
        short["group"] = _groups(columns["groups"], count, path)
    return short


def _groups(groups: np.ndarray, count: int, path: Path) -> np.ndarray:
    if groups.shape != (count,) or groups.dtype.kind not in "iuU":
        raise UsageError(
            f"{path}: groups must be whole numbers or strings of shape ({count},), "
            f"received {groups.dtype} of shape {groups.shape}"
        )
    if groups.dtype.kind != "U":
        return groups.astype(np.int64)
    texts, places = np.unique(groups, return_inverse=True)
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    hashes = [int.from_bytes(digest[:8], "big") >> 1 for digest in digests]
    return np.array(hashes, np.int64)[places]


def _class_names(labels: np.ndarray, given: np.ndarray | None, path: Path) -> tuple[str, ...]:
    names = None
    if given is not None:
        strings = given.dtype.kind == "U" and given.ndim == 1
        names = classes.distinct(given.tolist() if strings else (), f"{path}: class_names")
    return classes.named(labels, names, str(path), "class_names")
