"""Divides examples into training and held-out examples, by hashes of their ids."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline.config.sections import DataConfig
from pipeline.contracts import Example, Source
from pipeline.data import seeds
from pipeline.data.example_store import Store
from pipeline.data.split_names import SPLITS
from pipeline.utils import npz
from pipeline.utils.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Split:
    """Decoded examples of one split: rows of a store, which splits may share."""

    store: Store
    rows: np.ndarray
    """Rows of the store, int64 (examples,), in the order of the source."""

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> np.ndarray:
        """A field of all examples of the split, (examples, ...)."""
        if name in self.store.short:
            return self.store.short[name][self.rows]
        return self.store.take(self.rows)[name]

    def take(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of the examples at these positions of the split."""
        return self.store.take(self.rows[np.asarray(positions)])


def shares(existing: Collection[str], options: DataConfig) -> dict[str, float]:
    """Maps the splits to take from `train` to their fractions.

    Splits in `existing`, which the source has, are not taken from `train`.
    """
    fractions = {}
    if options.validation and "validation" not in existing:
        fractions["validation"] = options.validation
    if options.test and "test" not in existing:
        fractions["test"] = options.test
    return fractions


def split_indices(
    columns: Mapping[str, np.ndarray], shares: Mapping[str, float], seed: int
) -> np.ndarray:
    """The split of each example of `train`, as an index of `SPLITS`, int64 (examples,).

    A hash of the seed and the id, or of the group if there are groups, is compared with
    the fractions. The hash depends on nothing else, so no example moves when other
    examples or classes are added or removed. The actual fractions vary, because each
    example or group is assigned independently.
    """
    keys = columns.get("group", columns["id"])
    hashes = seeds.uniform(seeds.example_seeds(seed, 0, keys)).numpy()
    indices = np.zeros(len(keys), np.int64)
    # From both ends: changing the fraction of validation moves no example into test.
    indices[hashes < shares.get("validation", 0.0)] = SPLITS.index("validation")
    indices[hashes >= 1.0 - shares.get("test", 0.0)] = SPLITS.index("test")
    return indices


def divide(train: Split, shares: Mapping[str, float], seed: int) -> dict[str, Split]:
    """Divides `train` into splits with these fractions, and the rest as `train`."""
    names: tuple[str, ...] = ("id", "group")
    columns = {name: train.column(name) for name in names if name in train.store.short}
    indices = split_indices(columns, shares, seed)
    return {
        name: Split(train.store, train.rows[indices == SPLITS.index(name)])
        for name in ("train", *shares)
    }


def require_disjoint(splits: Mapping[str, Split], locate: Callable[[int], str]) -> None:
    """Raises UsageError if splits share an id or a group.

    `locate` maps the id of an example to its name in messages.
    """
    for name_a, name_b in itertools.combinations(splits, 2):
        split_a = splits[name_a]
        split_b = splits[name_b]
        ids = np.intersect1d(split_a.column("id"), split_b.column("id"))
        if len(ids):
            raise UsageError(
                f"{name_a} and {name_b} share {len(ids):,} ids, such as {ids[0]}; each"
                " example of a source must have a unique id"
            )
        if "group" not in split_a.store.short or "group" not in split_b.store.short:
            continue
        groups = np.intersect1d(split_a.column("group"), split_b.column("group"))
        if len(groups):
            id = split_a.column("id")[split_a.column("group") == groups[0]][0]
            raise UsageError(
                f"{len(groups):,} groups are in both {name_a} and {name_b}, such as the"
                f" group of {locate(int(id))}; move each group into one split, or"
                " remove the groups"
            )


def exclude_near_duplicates(
    splits: Mapping[str, Split], groups: Mapping[int, int]
) -> tuple[dict[str, Split], dict[str, int]]:
    """Excludes near duplicates of test examples, then of validation examples.

    `groups` maps ids to groups of near duplicates. Returns the remaining splits, and
    the number of excluded examples of each split that has any.
    """
    remaining = dict(splits)
    counts: dict[str, int] = {}
    held_out: set[int] = set()
    for name in reversed(SPLITS):
        if name not in splits:
            continue
        split = splits[name]
        split_groups = [groups.get(id) for id in split.column("id").tolist()]
        is_copy = np.array([group in held_out for group in split_groups], bool)
        if is_copy.any():
            remaining[name] = Split(split.store, split.rows[~is_copy])
            counts[name] = int(is_copy.sum())
        held_out.update(group for group in split_groups if group is not None)
    return remaining, counts


class Subset(Source):
    """Some examples of a source.

    `rows` maps each split to positions in it, int64, in ascending order.
    """

    def __init__(self, whole: Source, rows: Mapping[str, np.ndarray]) -> None:
        self.whole = whole
        self._rows = rows
        self._columns = {
            split: {
                name: column[positions] for name, column in whole.columns(split).items()
            }
            for split, positions in rows.items()
        }
        counts = {split: len(positions) for split, positions in rows.items()}
        self.info = dataclasses.replace(whole.info, splits=counts)

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        read = self.whole.reader(split)
        rows = tf.constant(self._rows[split])
        return lambda position: read(tf.gather(rows, position))

    def columns(self, split: str) -> Mapping[str, np.ndarray]:
        return dict(self._columns[split])

    def fingerprint(self) -> str | None:
        """Hash of the source's fingerprint and of the ids."""
        fingerprint = self.whole.fingerprint()
        if fingerprint is None:
            return None
        ids = b"".join(columns["id"].tobytes() for columns in self._columns.values())
        return hashlib.sha256(fingerprint.encode() + ids).hexdigest()

    def location(self, id: int) -> str:
        return self.whole.location(id)


def limit_examples(source: Source, options: DataConfig) -> Source:
    """Limits each split of a source to `options.limit` examples, chosen by `sample`.

    The splits that are taken from `train` later keep their fractions. Only the short
    fields of the source are read.
    """
    limit = options.limit
    seed = options.split_seed
    if limit is None or limit >= max(source.info.splits.values()):
        return source
    held_out = shares(source.info.splits, options)
    rows = {}
    for split in source.info.splits:
        columns = source.columns(split)
        part = np.zeros(len(columns["id"]), np.int64)
        if split == "train":
            part = split_indices(columns, held_out, seed)
        rows[split] = sample(columns["id"], columns.get("label"), part, limit, seed)
    return Subset(source, rows)


def sample(
    ids: np.ndarray, labels: np.ndarray | None, part: np.ndarray, count: int, seed: int
) -> np.ndarray:
    """The positions of a stratified sample of at most `count` examples, int64, sorted.

    Each part, and each class within it (`labels`, if integers), keeps its fraction. The
    examples with the smallest hashes of the ids are chosen: examples that are added to
    a class only replace examples with larger hashes. If `count` is large enough, each
    part has an example, and part 0 has an example of each class.
    """
    classes = np.zeros_like(ids)
    if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
        classes = np.unique(labels, return_inverse=True)[1]
    # Not the hash used for splitting, whose smallest values all belong to one part.
    hashes = seeds.fold(seeds.example_seeds(seed, 0, ids), 1).numpy()
    class_rank, class_size = _ranks(part * len(ids) + classes, hashes)
    is_first_of_class = class_rank == 0
    quantile = np.where(is_first_of_class, 0, (class_rank + 0.5) / class_size)
    part_rank, part_size = _ranks(part, hashes, quantile)
    priority = np.full(len(ids), 2)
    priority[is_first_of_class & (part == 0)] = 1
    priority[part_rank == 0] = 0
    order = np.lexsort(((part_rank + 0.5) / part_size, priority))
    return np.sort(order[:count])


def _ranks(groups: np.ndarray, *keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each element within its group, and the size of the group.

    The last of `keys` is the primary key, as in `numpy.lexsort`.
    """
    order = np.lexsort((*keys, groups))
    _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(groups)) - np.repeat(starts, counts)
    size = np.empty_like(order)
    size[order] = np.repeat(counts, counts)
    return rank, size


def require_same_examples(
    path: Path, splits: Mapping[str, Split], locate: Callable[[int], str]
) -> None:
    """Raises UsageError if the splits differ from those in a file, if it exists."""
    if not path.exists():
        return
    try:
        previous = npz.read(path, path.stat().st_size)  # written without compression
    except (OSError, ValueError):
        raise UsageError(
            f"{path} is damaged; start again in a new --run-directory"
        ) from None
    for name in previous.keys() | splits.keys():
        old = previous.get(name, np.empty(0, np.int64))
        new = splits[name].column("id") if name in splits else np.empty(0, np.int64)
        if np.array_equal(old, new):
            continue
        added = np.setdiff1d(new, old)
        missing = np.setdiff1d(old, new)
        example = f" (such as {locate(int(added[0]))})" if len(added) else ""
        raise UsageError(
            f"the examples of {name} differ from those that the run in {path.parent}"
            f" started with: {len(missing)} missing, {len(added)} added{example};"
            " restore the data, or use a new --run-directory"
        )


def write_examples(path: Path, splits: Mapping[str, Split]) -> None:
    """Writes the ids of each split, int64 in their order, to an `.npz` file."""
    npz.write(path, {name: split.column("id") for name, split in splits.items()})
