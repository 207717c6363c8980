"""Divides examples into training and held-out examples, by hashes of their ids."""

import dataclasses
import difflib
import hashlib
import itertools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline.config.sections import DataConfig
from pipeline.contracts import Decision, Example, Source
from pipeline.data import folds, seeds
from pipeline.data.example_store import Store
from pipeline.data.raw_split import RawSplit
from pipeline.data.split_names import SPLITS
from pipeline.utils import npz
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError, did_you_mean

_MANY_GROUPS = 20
_CHUNK_ROWS = 1 << 17  # whose ids or groups are hashed or sorted at once


@dataclasses.dataclass(frozen=True)
class Split:
    """Decoded examples of one split: rows of a store, which splits may share."""

    store: Store
    rows: np.ndarray
    """Rows of the store, int64 (examples,), in the order of the source."""
    raw_split: RawSplit | None = None
    """The same examples in the source; None if the columns of the store were made."""

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

    def raw(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The raw examples at these positions of the split, read from the source.

        A field is an array (positions, ...); texts and encoded files are bytes in an
        object array (positions,), as are arrays whose shapes differ. Raises UsageError
        that names the first example that cannot be read.
        """
        if self.raw_split is None:
            raise ValueError("the examples of this split have no source")
        return self.raw_split.take(positions)


def included(source: Source, excluded: Collection[int] = ()) -> dict[str, RawSplit]:
    """The splits of a source without the examples of these ids."""
    ids = np.fromiter(excluded, np.int64)
    parts = {}
    for name in source.info.splits:
        columns = source.split_keys(name)
        positions = np.flatnonzero(~np.isin(columns["id"], ids))
        parts[name] = RawSplit(source, name, positions, columns)
    return parts


def divide(
    parts: Mapping[str, RawSplit],
    options: DataConfig,
    near_duplicates: Mapping[int, int] | None = None,
    label: str = "label",
) -> tuple[dict[str, RawSplit], list[Decision]]:
    """Takes the missing splits from `train`; no example is decoded.

    `parts` are those of `included`. `near_duplicates` maps ids to groups of near
    duplicates, of which only held-out examples are kept. `label` is the field of the
    class, of which each fold gets an equal share. Raises UsageError if a split is
    empty, or if splits share an id or a group.
    """
    source = parts["train"].source
    held_out = shares(source.info.splits, options)
    named = named_groups(source, options)
    splits = dict(parts)
    decisions = []
    if options.folds is not None:
        if named:
            splits, reason = _hold_out({}, named, splits, options)
            decisions.append(Decision("splits", _listing({}, options), reason))
            named = {}
        splits, decision = _hold_out_fold(splits, options, label)
        decisions.append(decision)
    if held_out or named:
        splits, reason = _hold_out(held_out, named, splits, options)
        decisions.append(Decision("splits", _listing(held_out, options), reason))
    if decisions:
        changed = {
            name: part for name, part in splits.items() if part is not parts.get(name)
        }
        changed, counts = exclude_near_duplicates(changed, near_duplicates or {})
        splits.update(changed)
        if counts:
            value = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
            reason = (
                "near duplicates of examples that are held out for test or validation"
            )
            decisions.append(Decision("excluded", value, reason))
    require_disjoint(splits, source.location)
    for name, part in splits.items():
        if not len(part):
            flags = "--data.validation, --data.test"
            flags += "".join(
                f", --data.{split}-groups" for split in _requested_groups(options)
            )
            if near_duplicates:
                flags += ", --clean.no-near"
            hint = "" if name == "train" else f" (such as --data.{name} 0.2)"
            raise UsageError(
                f"the split {name!r} is empty; change {flags}{hint} or the source"
            )
    return {name: splits[name] for name in SPLITS if name in splits}, decisions


def _hold_out(
    shares: Mapping[str, float],
    named: Mapping[str, Collection[int]],
    splits: Mapping[str, RawSplit],
    options: DataConfig,
) -> tuple[dict[str, RawSplit], str]:
    """The splits with new ones taken from `train`, and how they were chosen."""
    train = splits["train"]
    indices, reason = split_indices(train.keys(), shares, options.split_seed, named)
    names = [name for name in SPLITS if name in {"train", *shares, *named}]
    divided = {name: train.select(indices == SPLITS.index(name)) for name in names}
    return {**splits, **divided}, reason


def _hold_out_fold(
    splits: Mapping[str, RawSplit], options: DataConfig, label: str
) -> tuple[dict[str, RawSplit], Decision]:
    """The splits of the run of a fold: a part of `train` takes the place of `test`.

    The run of all folds has the whole `train`.
    """
    train = splits["train"]
    count = int(options.folds or 0)
    if options.fold is None:
        reason = f"the runs of {count} folds test it"
        return dict(splits), Decision("splits", "all of train is kept", reason)
    labels = None
    spec = train.source.info.fields.get(label)
    if spec is not None and spec.dtype.is_integer and spec.shape.rank == 0:
        labels = train.column(label)
    keys = train.keys()
    units = keys.get("group", keys["id"])
    fold = folds.assign(units, labels, count, options.split_seed)
    if labels is not None:
        folds.require_two_classes(labels, fold, count)
    is_test = fold == options.fold - 1
    reason = "equal shares of each class" if labels is not None else "random examples"
    if "group" in keys:
        reason += "; the examples of a group stay together"
    divided = {"train": train.select(~is_test), "test": train.select(is_test)}
    value = f"fold {options.fold} of {count} for test"
    return {**splits, **divided}, Decision("splits", value, reason)


def _listing(shares: Mapping[str, float], options: DataConfig) -> str:
    """For example, `0.1 for validation, 2 groups (ward 3, ward 4) for test`."""
    parts = [f"{share:g} for {name}" for name, share in shares.items()]
    for name, groups in _requested_groups(options).items():
        listing = ", ".join(groups[:3])
        if len(groups) > 3:
            listing += ", ..."
        parts.append(f"{pluralize(len(groups), 'group')} ({listing}) for {name}")
    return ", ".join(parts)


def shares(existing: Collection[str], options: DataConfig) -> dict[str, float]:
    """Maps the splits to take from `train` to their fractions.

    Splits in `existing`, which the source has, and splits whose groups are named are
    not among them. With folds, nothing else is held out, except that the run of a fold
    may need a validation split to end early.
    """
    fractions = {"validation": options.validation, "test": options.test}
    if options.folds is not None:
        fractions = {"validation": options.validation if options.fold else 0.0}
    taken = {*existing, *_requested_groups(options)}
    return {
        name: share for name, share in fractions.items() if share and name not in taken
    }


def _requested_groups(options: DataConfig) -> dict[str, tuple[str, ...]]:
    """Maps splits to the names of their groups; only splits that have any."""
    groups = {"validation": options.validation_groups, "test": options.test_groups}
    return {split: names for split, names in groups.items() if names}


def named_groups(source: Source, options: DataConfig) -> dict[str, list[int]]:
    """Maps splits to the values of the groups that the user has named for them.

    Raises UsageError if the source has such a split, no groups, or no group of a name.
    """
    values: dict[str, list[int]] = {}
    for split, names in _requested_groups(options).items():
        flag = f"--data.{split}-groups"
        if split in source.info.splits:
            raise UsageError(
                f"{flag}: the source has a split {split!r}; remove the option"
            )
        if "group" not in source.info.fields:
            raise UsageError(
                f"{flag}: the source has no groups; set --source.group, if it has this"
                " option"
            )
        group_values = source.group_names()
        for name in names:
            if name not in group_values:
                closest = difflib.get_close_matches(name, group_values, n=3, cutoff=0)
                raise UsageError(
                    f"{flag}: train has no group {name!r}; {did_you_mean(closest)}"
                )
        values[split] = [group_values[name] for name in names]
    return values


def split_indices(
    columns: Mapping[str, np.ndarray],
    shares: Mapping[str, float],
    seed: int,
    named: Mapping[str, Collection[int]],
) -> tuple[np.ndarray, str]:
    """The split of each example of `train`, and a text that says how it was chosen.

    The split is an index of `SPLITS`, int64 (examples,). A hash of the seed and the id,
    or of the group if there are groups, is compared with the fractions. The hash
    depends on nothing else, so no example moves when other examples or classes are
    added or removed. The actual fractions vary, because each example or group is
    assigned independently. Fewer than 20 groups are ranked by their hashes instead, so
    that each split gets a group; no example moves unless a group is added or removed.

    `named` maps splits to the values of their groups, which are not hashed.
    """
    key = "group" if "group" in columns else "id"
    keys = columns[key]
    indices = np.zeros(len(keys), np.int64)
    for name, groups in named.items():
        indices[np.isin(keys, [*groups])] = SPLITS.index(name)
    if not shares:
        return indices, "taken from train by name"
    is_free = indices == 0
    few = _few_groups(keys[is_free] if named else keys) if key == "group" else None
    if few is not None:
        for name, part in _rank_groups(few, shares, seed).items():
            indices[np.isin(keys, part)] = SPLITS.index(name)
        count = pluralize(len(few), "group")
        return indices, f"random, by the rank of a hash of each of {count} of train"
    hashes = _hashes(keys, seed)
    # From both ends: changing the fraction of validation moves no example into test.
    for name, is_part in (
        ("validation", hashes < shares.get("validation", 0.0)),
        ("test", hashes >= 1.0 - shares.get("test", 0.0)),
    ):
        indices[is_part & is_free] = SPLITS.index(name)
    if key == "group":
        return indices, "random groups of train, by a hash of the group"
    return indices, "random examples of train, by a hash of the ids"


def _hashes(keys: np.ndarray, seed: int) -> np.ndarray:
    """A number in [0, 1) for each key, float32 (keys,)."""
    hashes = np.empty(len(keys), np.float32)
    for start in range(0, len(keys), _CHUNK_ROWS):  # to save memory
        rows = slice(start, start + _CHUNK_ROWS)
        hashes[rows] = seeds.uniform(seeds.example_seeds(seed, 0, keys[rows])).numpy()
    return hashes


def _few_groups(groups: np.ndarray) -> np.ndarray | None:
    """The distinct groups; None if there are `_MANY_GROUPS` or more."""
    distinct = np.empty(0, groups.dtype)
    for start in range(0, len(groups), _CHUNK_ROWS):  # sorting all takes long
        chunk = groups[start : start + _CHUNK_ROWS]
        distinct = np.union1d(distinct, chunk[~np.isin(chunk, distinct)])
        if len(distinct) >= _MANY_GROUPS:
            return None
    return distinct


def _rank_groups(
    groups: np.ndarray, shares: Mapping[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Maps splits to groups: as many as their fractions, but at least one of each.

    If there are too few groups, `train` comes first.
    """
    counts = {
        name: max(1, round(share * len(groups))) for name, share in shares.items()
    }
    while sum(counts.values()) >= max(1, len(groups)):
        counts[max(counts, key=lambda name: counts[name])] -= 1
    ranked = groups[np.lexsort((groups, _hashes(groups, seed)))]
    last = len(ranked) - counts.get("test", 0)
    return {"validation": ranked[: counts.get("validation", 0)], "test": ranked[last:]}


def require_disjoint(
    splits: Mapping[str, RawSplit], locate: Callable[[int], str]
) -> None:
    """Raises UsageError if splits share an id or a group.

    `locate` maps the id of an example to its name in messages.
    """
    ids_of = {name: _distinct(split.column("id")) for name, split in splits.items()}
    groups_of = {
        name: _distinct(split.column("group"))
        for name, split in splits.items()
        if "group" in split.columns
    }
    for name_a, name_b in itertools.combinations(splits, 2):
        ids = _shared(ids_of[name_a], ids_of[name_b])
        if len(ids):
            raise UsageError(
                f"{name_a} and {name_b} share {len(ids):,} ids, such as {ids[0]}; each"
                " example of a source must have a unique id"
            )
        if name_a not in groups_of or name_b not in groups_of:
            continue
        groups = _shared(groups_of[name_a], groups_of[name_b])
        if len(groups):
            split_a = splits[name_a]
            id = split_a.column("id")[split_a.column("group") == groups[0]][0]
            raise UsageError(
                f"{len(groups):,} groups are in both {name_a} and {name_b}, such as the"
                f" group of {locate(int(id))}; move each group into one split, or"
                " remove the groups"
            )


def _distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values, sorted.

    For 20 million ids, `numpy.unique` takes ten times as long.
    """
    values = np.sort(values)
    is_first = np.ones(len(values), bool)
    is_first[1:] = values[1:] != values[:-1]
    return values[is_first]


def _shared(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The values that are in both of two sorted arrays of distinct values."""
    few, many = sorted((a, b), key=len)
    if not len(many):
        return many
    places = np.minimum(np.searchsorted(many, few), len(many) - 1)
    return few[many[places] == few]


def exclude_near_duplicates(
    splits: Mapping[str, RawSplit], groups: Mapping[int, int]
) -> tuple[dict[str, RawSplit], dict[str, int]]:
    """Excludes near duplicates of test examples, then of validation examples.

    `groups` maps ids to groups of near duplicates. Returns the remaining splits, and
    the number of excluded examples of each split that has any.
    """
    remaining = dict(splits)
    counts: dict[str, int] = {}
    if not groups:
        return remaining, counts
    held_out: set[int] = set()
    for name in reversed(SPLITS):
        if name not in splits:
            continue
        split = splits[name]
        split_groups = [groups.get(id) for id in split.column("id").tolist()]
        is_copy = np.array([group in held_out for group in split_groups], bool)
        if is_copy.any():
            remaining[name] = split.select(~is_copy)
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

    def arrays(self, split: str) -> Mapping[str, np.ndarray] | None:
        columns = self.whole.arrays(split)
        if columns is None:
            return None
        return {name: column[self._rows[split]] for name, column in columns.items()}

    def group_names(self) -> Mapping[str, int]:
        return self.whole.group_names()

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
    # The same sample for all folds.
    held_out = {} if options.folds else shares(source.info.splits, options)
    named = named_groups(source, options)
    rows = {}
    for split in source.info.splits:
        columns = source.columns(split)
        part = np.zeros(len(columns["id"]), np.int64)
        if split == "train":
            part, _ = split_indices(columns, held_out, seed, named)
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
    path: Path, splits: Mapping[str, Split | RawSplit], locate: Callable[[int], str]
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
