"""Divides examples into training and held-out examples, by hashes of their ids."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline.config.config import DataConfig
from pipeline.contracts import Example, Source
from pipeline.data import seeds
from pipeline.data.example_store import Store
from pipeline.data.split_names import SPLITS
from pipeline.utils import npz
from pipeline.utils.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Split:
    """Decoded examples of one split: rows of a store, which several splits
    may share.
    """

    store: Store
    rows: np.ndarray
    """Rows of the store, int64 (examples,), in the order of the source."""

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> np.ndarray:
        """One field of all examples of the split, (examples, ...)."""
        if name in self.store.short:
            return self.store.short[name][self.rows]
        return self.store.take(self.rows)[name]

    def take(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of the examples at these positions of the split."""
        return self.store.take(self.rows[np.asarray(positions)])


def shares(existing: Collection[str], options: DataConfig) -> dict[str, float]:
    """Maps splits taken from `train` to their fractions; `existing` splits are not
    divided.
    """
    requested = {"validation": options.validation, "test": options.test}
    return {
        name: share
        for name, share in requested.items()
        if share and name not in existing
    }


def parts(
    columns: Mapping[str, np.ndarray], shares: Mapping[str, float], seed: int
) -> np.ndarray:
    """The split of each example of `train`, as an index of `SPLITS`, int64 (examples,).

    A hash of the seed and the id, or of the group if there are groups, is compared with
    the fractions. The hash depends on nothing else, so no example moves when other
    examples or classes are added or removed. The actual fractions vary, because each
    example or group is assigned independently.
    """
    keys = columns.get("group", columns["id"])
    place = seeds.uniform(seeds.example_seeds(seed, 0, keys)).numpy()
    part = np.zeros(len(keys), np.int64)
    # From both ends: a different fraction for validation moves no example into the test
    # split.
    part[place < shares.get("validation", 0.0)] = SPLITS.index("validation")
    part[place >= 1.0 - shares.get("test", 0.0)] = SPLITS.index("test")
    return part


def divide(train: Split, shares: Mapping[str, float], seed: int) -> dict[str, Split]:
    """Divides `train` into splits with these fractions and the rest; arguments as for
    `parts`.
    """
    names: tuple[str, ...] = ("id", "group")
    columns = {name: train.column(name) for name in names if name in train.store.short}
    part = parts(columns, shares, seed)
    return {
        name: Split(train.store, train.rows[part == number])
        for number, name in enumerate(SPLITS)
        if name in shares or name == "train"
    }


def require_disjoint(splits: Mapping[str, Split], locate: Callable[[int], str]) -> None:
    """Raises UsageError if splits share an id or a group; `locate` maps an id to a
    name.
    """
    for (one, first), (other, second) in itertools.combinations(splits.items(), 2):
        ids = np.intersect1d(first.column("id"), second.column("id"))
        if len(ids):
            raise UsageError(
                f"{one} and {other} share {len(ids):,} ids, such as {ids[0]}; each"
                " example of a source must have a unique id"
            )
        if "group" not in first.store.short or "group" not in second.store.short:
            continue
        groups = np.intersect1d(first.column("group"), second.column("group"))
        if len(groups):
            id = first.column("id")[first.column("group") == groups[0]][0]
            raise UsageError(
                f"{len(groups):,} groups are in both {one} and {other}, such as that of"
                f" {locate(int(id))}; move each group into one split, or remove the"
                " groups"
            )


def without_copies(
    splits: Mapping[str, Split], groups: Mapping[int, int]
) -> tuple[dict[str, Split], dict[str, int]]:
    """Excludes near duplicates of held-out examples: those of test, then those of
    validation.

    `groups` maps ids to groups of near duplicates. Returns the remaining splits, and
    the number of excluded examples of each split that has any.
    """
    left, counts = dict(splits), {}
    held_out: set[int] = set()
    for name in reversed(SPLITS):
        if name not in splits:
            continue
        mine = [groups.get(id) for id in splits[name].column("id").tolist()]
        copy = np.array([group in held_out for group in mine], bool)
        if copy.any():
            left[name] = Split(splits[name].store, splits[name].rows[~copy])
            counts[name] = int(copy.sum())
        held_out.update(group for group in mine if group is not None)
    return left, counts


class Sampled(Source):
    """A subset of a source's examples: split -> positions in it, int64, in ascending
    order.
    """

    def __init__(self, whole: Source, rows: Mapping[str, np.ndarray]) -> None:
        self.whole = whole
        self._rows = rows
        self._columns = {
            split: {name: column[some] for name, column in whole.columns(split).items()}
            for split, some in rows.items()
        }
        counts = {split: len(some) for split, some in rows.items()}
        self.info = dataclasses.replace(whole.info, splits=counts)

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        reader, rows = self.whole.reader(split), tf.constant(self._rows[split])
        return lambda position: reader(tf.gather(rows, position))

    def columns(self, split: str) -> Mapping[str, np.ndarray]:
        return dict(self._columns[split])

    def fingerprint(self) -> str | None:
        """Hash of the source's fingerprint and of the ids."""
        whole = self.whole.fingerprint()
        ids = b"".join(columns["id"].tobytes() for columns in self._columns.values())
        return whole and hashlib.sha256(whole.encode() + ids).hexdigest()

    def location(self, id: int) -> str:
        return self.whole.location(id)


def limited(source: Source, options: DataConfig) -> Source:
    """The source with at most `options.limit` examples of each split, chosen by
    `sample`.

    The splits that are taken from `train` later have the same fractions in the sample.
    Only the short fields of the source are read.
    """
    limit, seed = options.limit, options.split_seed
    if limit is None or limit >= max(source.info.splits.values()):
        return source
    held_out = shares(source.info.splits, options)
    rows = {}
    for split in source.info.splits:
        columns = source.columns(split)
        part = np.zeros(len(columns["id"]), np.int64)
        if split == "train":
            part = parts(columns, held_out, seed)
        rows[split] = sample(columns["id"], columns.get("label"), part, limit, seed)
    return Sampled(source, rows)


def sample(
    ids: np.ndarray, labels: np.ndarray | None, part: np.ndarray, count: int, seed: int
) -> np.ndarray:
    """Positions of `count` examples, or of all if there are fewer, int64 in ascending
    order.

    Each part, and each class within it (`labels`, if integers), keeps its fraction. The
    examples with the smallest hashes of the ids are chosen: examples that are added to
    a class only replace examples with larger hashes. If `count` is large enough, each
    part has an example, and part 0 has one of each class.
    """
    classes = np.zeros_like(ids)
    if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
        classes = np.unique(labels, return_inverse=True)[1]
    # Not the hash used for splitting, whose smallest values all belong to one part.
    hashes = seeds.fold(seeds.example_seeds(seed, 0, ids), 1).numpy()
    rank, size = _ranks(part * len(ids) + classes, hashes)
    first = rank == 0
    place, whole = _ranks(part, hashes, np.where(first, 0, (rank + 0.5) / size))
    later = np.where(place == 0, 0, np.where(first & (part == 0), 1, 2))
    return np.sort(np.lexsort(((place + 0.5) / whole, later))[:count])


def _ranks(of: np.ndarray, *by: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each element among the elements with the same value, and their
    number.

    The last of `by` is the primary key, as in `numpy.lexsort`.
    """
    order = np.lexsort((*by, of))
    _, starts, counts = np.unique(of[order], return_index=True, return_counts=True)
    rank, size = np.empty_like(order), np.empty_like(order)
    rank[order] = np.arange(len(of)) - np.repeat(starts, counts)
    size[order] = np.repeat(counts, counts)
    return rank, size


def require_same_examples(
    path: Path, splits: Mapping[str, Split], locate: Callable[[int], str]
) -> None:
    """Raises UsageError if the splits differ from those that `write_examples` wrote, if
    any.
    """
    if not path.exists():
        return
    try:
        before = npz.read(path, path.stat().st_size)  # written without compression
    except (OSError, ValueError):
        raise UsageError(
            f"{path} is damaged; start again in a new --run-directory"
        ) from None
    for name in before.keys() | splits.keys():
        old = before.get(name, np.empty(0, np.int64))
        new = splits[name].column("id") if name in splits else np.empty(0, np.int64)
        if np.array_equal(old, new):
            continue
        added, gone = np.setdiff1d(new, old), np.setdiff1d(old, new)
        example = f" (such as {locate(int(added[0]))})" if len(added) else ""
        raise UsageError(
            f"the examples of {name} differ from those that the run in {path.parent}"
            f" started with: {len(gone)} missing, {len(added)} added{example}; restore"
            " the data, or use a new --run-directory"
        )


def write_examples(path: Path, splits: Mapping[str, Split]) -> None:
    """Writes the ids of each split in their order, int64, as an `.npz`."""
    npz.write(path, {name: split.column("id") for name, split in splits.items()})
