"""Which examples are trained on and which are held out, by hashes that others do not change."""

import dataclasses
import hashlib
import io
import itertools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline.config.config import Data
from pipeline.contracts import Example, Source
from pipeline.data import seeds
from pipeline.data.example_store import Store
from pipeline.utils import files, npz
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import chosen

PARTS = ("train", "validation", "test")
_ANEW = "start again in a new --run-directory"


@dataclasses.dataclass(frozen=True)
class Split:
    """Decoded examples of one split: some rows of a store that several splits may share."""

    store: Store
    rows: np.ndarray
    """int64, (examples,): which rows, in the order of the source."""

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> np.ndarray:
        """One field of all examples of the split, (examples, ...)."""
        if name in self.store.short:
            return self.store.short[name][self.rows]
        return self.store.take(self.rows)[name]

    def take(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The examples at these positions of the split, column by column."""
        return self.store.take(self.rows[np.asarray(positions)])

    def first(self, count: int) -> "Split":
        """The first examples of it."""
        return Split(self.store, self.rows[:count])


def shares(
    there: Collection[str], options: Data, known: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Part that is held out of `train` -> its share.

    Args:
        there: The splits of the source, which are not divided.
        options: Of the config.
        known: Part -> ids of an earlier run, if the splits of one are kept.
    """
    asked = {"validation": options.validation, "test": options.test}
    return {n: s for n, s in asked.items() if n not in there and (s or len(known.get(n, ())))}


def parts(
    columns: Mapping[str, np.ndarray],
    shares: Mapping[str, float],
    seed: int,
    known: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Which part each example of `train` belongs to: positions in `PARTS`, int64 (examples,).

    A hash of the seed and the id, or of the group where there are groups, is compared with the
    shares. Nothing else is in the hash: an example does not move when others, or other classes, are
    added or removed. Shares are met up to the noise of a coin toss for each example or group.

    Args:
        columns: `id`, and `group` if there are groups, int64 (examples,).
        shares: Of validation and test; a part that is not in it has no share.
        seed: Of the hash.
        known: Part -> ids of an earlier run that stay in it; a new example of a known group goes
            where the group is.
    """
    ids = columns["id"]
    keys = columns.get("group", ids)
    place = seeds.uniform(seeds.example_seeds(seed, 0, keys)).numpy()
    part = np.zeros(len(ids), np.int64)
    # From the two ends, so that another share for validation moves no example into the test.
    part[place < shares.get("validation", 0.0)] = PARTS.index("validation")
    part[place >= 1.0 - shares.get("test", 0.0)] = PARTS.index("test")
    members = [np.isin(ids, known.get(name, ())) for name in PARTS]
    for number, mine in enumerate(members):
        part[np.isin(keys, keys[mine])] = number
    for number, mine in enumerate(members):
        part[mine] = number
    return part


def divide(
    train: Split, shares: Mapping[str, float], seed: int, known: Mapping[str, np.ndarray]
) -> dict[str, Split]:
    """Holds parts of `train` out, and what remains as `train`; arguments as for `parts`."""
    columns = {name: train.column(name) for name in ("id", "group") if name in train.store.short}
    part = parts(columns, shares, seed, known)
    return {
        name: Split(train.store, train.rows[part == number])
        for number, name in enumerate(PARTS)
        if name in shares or name == "train"
    }


def require_apart(
    splits: Mapping[str, Split], locate: Callable[[int], str], kept: Path | None = None
) -> None:
    """Raises UsageError where splits share a group, or an id.

    Args:
        splits: As the source, or `divide`, has made them.
        locate: What a person calls the example of an id.
        kept: The earlier run whose splits are kept, if any: it may have had no groups.
    """
    for (one, first), (other, second) in itertools.combinations(splits.items(), 2):
        ids = np.intersect1d(first.column("id"), second.column("id"))
        if len(ids):
            raise UsageError(
                f"the source gives {len(ids):,} examples of {one} ids that {other} has, such as "
                f"{ids[0]}: they would be taken for the same; give each its own"
            )
        if "group" not in first.store.short or "group" not in second.store.short:
            continue
        groups = np.intersect1d(first.column("group"), second.column("group"))
        if len(groups):
            names = (
                locate(int(split.column("id")[split.column("group") == groups[0]][0]))
                for split in (first, second)
            )
            remedy = "move each group into one split, or give no groups"
            if kept:
                remedy = f"give no groups, or leave out --data.splits {kept}"
            raise UsageError(
                f"{len(groups):,} groups are in {one} and in {other}: {' and '.join(names)} belong "
                f"together; {remedy}"
            )


def copies(splits: Mapping[str, Split]) -> dict[str, tuple[int, int, int]]:
    """Which splits have images of the same pixels as a split before them.

    Returns:
        Split -> how many, the id of the first of them, and that of the image it equals. Nothing
        where images are not kept decoded: none is read for this.
    """
    found: dict[str, tuple[int, int, int]] = {}
    digests, ids = np.empty((2, 0), np.int64)  # of the splits before
    for name, split in splits.items():
        if split.store.digest is None:
            return {}
        own, own_ids = split.store.digest[split.rows], split.column("id")
        if len(again := np.flatnonzero(np.isin(own, digests))):
            first = again[0]
            found[name] = len(again), int(own_ids[first]), int(ids[digests == own[first]][0])
        digests, ids = np.append(digests, own), np.append(ids, own_ids)
    return found


def without_copies(
    splits: Mapping[str, Split], groups: Mapping[int, int]
) -> tuple[dict[str, Split], dict[str, int]]:
    """Leaves out of train what validation or test has too, and of validation what test has.

    Args:
        splits: Parts of one split of the source.
        groups: Id -> group of those that are alike; the others are like none.

    Returns:
        What is left of the splits, and split -> how many are left out, where there are any.
    """
    left, counts, held_out = dict(splits), {}, set()
    for name in reversed(PARTS):
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
    """Some examples of a source, as if it had no others.

    Args:
        whole: The source.
        rows: Split -> positions in it, int64, in ascending order.
    """

    def __init__(self, whole: Source, rows: Mapping[str, np.ndarray]) -> None:
        self.whole = whole
        self._rows = dict(rows)
        self._columns = {
            split: {name: column[some] for name, column in whole.columns(split).items()}
            for split, some in rows.items()
        }
        counts = {split: len(some) for split, some in rows.items()}
        self.info = dataclasses.replace(whole.info, splits=counts)

    def examples(self, split: str) -> tf.data.Dataset:
        rows, reader = self._rows[split], self.whole.reader(split)
        if reader is None:
            return chosen(self.whole.examples(split), rows)
        positions = tf.data.Dataset.from_tensor_slices(rows)
        return positions.map(reader, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def reader(self, split: str) -> Callable[[tf.Tensor], Example] | None:
        reader, rows = self.whole.reader(split), tf.constant(self._rows[split])
        return None if reader is None else lambda position: reader(tf.gather(rows, position))

    def columns(self, split: str) -> Mapping[str, np.ndarray]:
        """From memory."""
        return dict(self._columns[split])

    def fingerprint(self) -> str | None:
        """Hash of the source's own and of the ids."""
        whole = self.whole.fingerprint()
        ids = b"".join(columns["id"].tobytes() for columns in self._columns.values())
        return whole and hashlib.sha256(whole.encode() + ids).hexdigest()

    def location(self, id: int) -> str:
        """As the source says."""
        return self.whole.location(id)


def limited(source: Source, options: Data, known: Mapping[str, np.ndarray]) -> Source:
    """At most `options.limit` examples of each split of a source, by `sample`; itself if none.

    The parts that will be held out of `train` have the same shares in the sample. Only the short
    fields of the source are read. `known` is as for `parts`.
    """
    limit, seed = options.limit, options.split_seed
    if limit is None or limit >= max(source.info.splits.values()):
        return source
    held_out = shares(source.info.splits, options, known)
    rows = {}
    for split in source.info.splits:
        columns = source.columns(split)
        part = np.zeros(len(columns["id"]), np.int64)
        if split == "train":
            part = parts(columns, held_out, seed, known)
        rows[split] = sample(columns["id"], columns.get("label"), part, limit, seed)
    return Sampled(source, rows)


def sample(
    ids: np.ndarray, labels: np.ndarray | None, part: np.ndarray, count: int, seed: int
) -> np.ndarray:
    """Positions of `count` examples, or of all if there are fewer, int64 in ascending order.

    Each part has its share of the sample, and in it each class, by the smallest hashes of the ids:
    examples that are added to a class replace only as many as have larger hashes. Where `count`
    allows, each part has an example and part 0 one of each class.

    Args:
        ids: int64 (examples,).
        labels: Classes, whole numbers (examples,); anything else counts as one class.
        part: Number of the part of each example, int64 (examples,).
        count: Of the sample.
        seed: Of the hash.
    """
    is_class = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu"
    classes = np.unique(labels, return_inverse=True)[1] if is_class else np.zeros_like(ids)
    # Not the hash that divides: its smallest values are all of one part.
    hashes = seeds.fold(seeds.example_seeds(seed, 0, ids), 1).numpy()
    rank, size = _ranks(part * len(ids) + classes, hashes)
    first = rank == 0
    place, whole = _ranks(part, hashes, np.where(first, 0, (rank + 0.5) / size))
    later = np.where(place == 0, 0, np.where(first & (part == 0), 1, 2))
    return np.sort(np.lexsort(((place + 0.5) / whole, later))[:count])


def _ranks(of: np.ndarray, *by: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each element's rank among those of the same value, and how many these are, (elements,).

    The last of `by` decides first, as in `numpy.lexsort`.
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
    """Raises UsageError if a run that began with other examples has written its own to `path`.

    Args:
        path: Written by `write_examples`; nothing is required if it is not there.
        splits: Those of now.
        locate: What a person calls the example of an id.
    """
    if not path.exists():
        return
    ids = read_examples(path)
    if not splits.keys() <= ids.keys():
        raise UsageError(f"{path} is damaged; {_ANEW}")
    for name in {**ids, **splits}:
        old, new = ids.get(name, []), splits[name].column("id") if name in splits else []
        if np.array_equal(old, new):
            continue
        added, gone = np.setdiff1d(new, old), np.setdiff1d(old, new)
        of = f" (such as {locate(int([*added, *gone][0]))})" if len(added) or len(gone) else ""
        raise UsageError(
            f"the examples of {name} are not those that the run in {path.parent} began with: "
            f"{len(added)} were added and {len(gone)} are gone{of}; bring the data back, or give a "
            f"new --run-directory; with --data.splits {path.parent} the examples of this run stay "
            "in their splits"
        )


def write_examples(path: Path, splits: Mapping[str, Split]) -> None:
    """The ids of each split in their order, int64, as an `.npz`."""
    contents = io.BytesIO()
    np.savez(contents, **{name: split.column("id") for name, split in splits.items()})
    files.write_bytes(path, contents.getvalue())


def read_examples(path: Path, remedy: str = _ANEW) -> dict[str, np.ndarray]:
    """What `write_examples` has written; UsageError with a remedy if it is damaged."""
    try:
        # Written without compression: it holds no more than it is long.
        ids = npz.read(path, path.stat().st_size)
        whole = all(column.dtype == np.int64 and column.ndim == 1 for column in ids.values())
    except (OSError, ValueError):
        whole = False
    if not whole or not ids.keys() <= set(PARTS):
        raise UsageError(f"{path} is damaged; {remedy}")
    return ids
