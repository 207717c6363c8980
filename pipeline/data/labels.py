"""Labels and names of classes, the same for every source."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.utils.errors import UsageError


def labels_of(labels: np.ndarray, where: str) -> np.ndarray:
    """Labels as int64 or strings, (n,)."""
    if labels.ndim == 2 and np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all():
        labels = labels.argmax(axis=1)  # one-hot
    if labels.dtype == object and all(isinstance(one, str) for one in labels):
        labels = labels.astype(str)
    if labels.ndim != 1 or labels.dtype.kind not in "iubU":
        raise UsageError(
            f"{where}: labels must be whole numbers or strings of shape (n,), or one-hot; got "
            f"{labels.dtype} of shape {labels.shape}"
        )
    return labels if labels.dtype.kind == "U" else labels.astype(np.int64)


def numbered(
    tables: Mapping[str, dict[str, np.ndarray]], names: tuple[str, ...] | None, option: str
) -> tuple[str, ...]:
    """Replaces labels that are strings by their numbers; returns the names of the classes.

    If `names` is None, they are the labels themselves, strings in alphabetical order. `option` is
    where names of classes can be given.
    """
    train = tables["train"]["label"]
    if names is None and train.dtype.kind == "U":
        names = distinct(sorted({*train.tolist()}), "the labels")
    names = names or from_labels(train, "the labels", option)
    for split, table in tables.items():
        if table["label"].dtype.kind != "U":
            continue  # the task checks them, after cleaning
        if unknown := sorted({*table["label"].tolist()} - {*names}):
            raise UsageError(f"{split}: the label {unknown[0]!r} is not one of the classes")
        numbers = {name: number for number, name in enumerate(names)}
        table["label"] = np.array([numbers[one] for one in table["label"].tolist()], np.int64)
    return names


def distinct(names: Sequence[str], where: str) -> tuple[str, ...]:
    """The names of the classes; UsageError unless they are distinct, non-empty Unicode strings."""
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where} must be Unicode text") from None
    if not names or not all(names) or len(set(names)) != len(names):
        raise UsageError(f"{where} must be distinct, non-empty strings")
    return tuple(names)


def from_labels(labels: np.ndarray, where: str, option: str) -> tuple[str, ...]:
    """The classes 0, 1, ..., named by their numbers; UsageError if a number in between is missing.

    Negative labels are rejected by the task later, unless cleaning excludes them.
    """
    present = np.unique(labels[labels >= 0])
    if not len(present) or len(present) != present[-1] + 1:
        missing = int(np.setdiff1d(np.arange(len(present) + 1), present)[0])
        raise UsageError(
            f"{where}: no example has label {missing}; number the classes 0, 1, 2, ... or name all "
            f"of them ({option})"
        )
    return tuple(str(int(label)) for label in present)
