"""An `.npz` file with the keys `images` and `labels`, and perhaps `class_names`."""

from pathlib import Path

import numpy as np

from pipeline.array_source import ArraySource
from pipeline.contracts import Source
from pipeline.errors import UsageError


def source(*, path: Path) -> Source:
    """One split `train`; the id of an example is its position in the file.

    Args:
        path: The file. `images`: uint8 of shape (n, height, width) or (n, height, width, channels);
            `labels`: whole numbers of shape (n,), 0 ... classes - 1; `class_names` (optional):
            strings of shape (classes,), otherwise the classes are named "0", "1", ...
    """
    columns = _read(path)
    images, labels = _images(columns, path), _labels(columns, path)
    if len(images) != len(labels):
        raise UsageError(f"{path}: {len(images)} images but {len(labels)} labels")
    if not len(images):
        raise UsageError(f"{path} holds no examples")
    examples = {"image": images, "label": labels.astype(np.int64)}
    return ArraySource(examples, class_names=_class_names(columns, labels, path))


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        # A pickle could run code. `np.load` leaves a path it cannot read open, so it gets a file.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            columns = {key: file[key] for key in file.files}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception:  # whatever a damaged archive makes zipfile, zlib or NumPy raise
        raise UsageError(
            f"{path} is no .npz of plain arrays; write it with "
            "numpy.savez(path, images=images, labels=labels)"
        ) from None
    for key in ("images", "labels"):
        if key not in columns:
            raise UsageError(f"{path} has no key {key!r}; it has {', '.join(columns) or 'none'}")
    return columns


def _images(columns: dict[str, np.ndarray], path: Path) -> np.ndarray:
    images = columns["images"]
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise UsageError(
            f"{path}: images must be uint8 of shape (n, height, width[, channels]), "
            f"received {images.dtype} of shape {images.shape}"
        )
    images = images[..., None] if images.ndim == 3 else images
    if images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
        raise UsageError(
            f"{path}: images must have pixels and 1 or 3 channels, received {images.shape}"
        )
    return images


def _labels(columns: dict[str, np.ndarray], path: Path) -> np.ndarray:
    labels = columns["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iuf":
        raise UsageError(
            f"{path}: labels must be whole numbers of shape (n,), "
            f"received {labels.dtype} of shape {labels.shape}"
        )
    with np.errstate(invalid="ignore"):
        wrong = ~np.isfinite(labels) | (labels != np.floor(labels)) | (labels < 0)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise UsageError(
            f"{path}: label {labels[at]} of example {at} is no class "
            f"({int(wrong.sum())} such labels); classes are 0, 1, 2, ..."
        )
    return labels


def _names(given: np.ndarray, path: Path) -> tuple[str, ...]:
    names = tuple(str(name) for name in np.ravel(given))
    if given.dtype.kind != "U" or not all(names) or len(set(names)) != len(names):
        raise UsageError(f"{path}: class_names must be different strings, none empty")
    return names


def _class_names(columns: dict[str, np.ndarray], labels: np.ndarray, path: Path) -> tuple[str, ...]:
    if "class_names" in columns:
        names = _names(columns["class_names"], path)
        if labels.max() >= len(names):
            at = int(labels.argmax())
            raise UsageError(
                f"{path}: label {labels[at]} of example {at} is out of range: "
                f"class_names has {len(names)} names"
            )
        return names
    present = np.unique(labels)
    if len(present) != present[-1] + 1:
        missing = int(np.setdiff1d(np.arange(len(present)), present)[0])
        raise UsageError(
            f"{path}: labels go up to {int(present[-1])} but no example has label {missing}; "
            "number the classes 0, 1, 2, ... or add the key class_names"
        )
    return tuple(str(int(label)) for label in present)
