"""Which examples are trained on, which are held out: splits that stay when examples are added."""

import dataclasses
import io
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pipeline import archives, files, seeds
from pipeline.errors import UsageError
from pipeline.stores import Store


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


def divide(
    train: Split, shares: Mapping[str, float], seed: int, groups: Mapping[int, int]
) -> dict[str, Split]:
    """Holds parts of `train` out, and what remains as `train`.

    Where an example goes depends on the seed, its class (where it has one) and its id alone, by
    comparing a hash with the shares: an example never moves when others are added or removed,
    and each class is divided on its own (shares are met up to the noise of a coin toss each).
    Examples with a `group`, or in `groups` (id -> group), go where their group goes, whatever
    their class.
    """
    ids = train.column("id")
    labels = np.zeros_like(ids)
    if "group" not in train.store.short and _is_class(train.store.short.get("label")):
        labels = train.column("label").astype(np.int64)
    together = _together(train, groups)
    if together is not None:
        ids, alone = together
        labels = np.where(alone, labels, 0)
    place = seeds.uniform(seeds.of_examples(seed, labels, ids)).numpy()
    # From the two ends, so that another share for validation moves no example into the test.
    validation = place < shares.get("validation", 0.0)
    test = place >= 1.0 - shares.get("test", 0.0)
    masks = {"validation": validation, "test": test, "train": ~(validation | test)}
    return {
        name: Split(train.store, train.rows[mask])
        for name, mask in masks.items()
        if name in shares or name == "train"
    }


def require_apart(splits: Mapping[str, Split], locate: Callable[[int], str]) -> None:
    """Raises UsageError where splits of a source share a group, or an id.

    Args:
        splits: As the source has them.
        locate: What a person calls the example of an id.
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
            raise UsageError(
                f"{len(groups):,} groups are in {one} and in {other}: {' and '.join(names)} belong "
                "together; move each group into one split, or give no groups"
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


def _is_class(labels: np.ndarray | None) -> bool:
    return labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu"


def _together(train: Split, groups: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    """A key for each example, the same for those that stay together, and who is alone.

    Two kinds of groups may overlap: copies of one picture may show under two patients. What is
    connected through either is one group, named by the smallest of the names of the first kind,
    else of the second.
    """
    ids = train.column("id")
    named = "group" in train.store.short
    known = np.array([id in groups for id in ids.tolist()]) if groups else np.zeros(len(ids), bool)
    own = train.column("group") if named else ids
    if not known.any():
        return (own, np.zeros(len(ids), bool)) if named else None
    # A graph of examples' own groups, joined by the groups that were given.
    names, node = np.unique(own, return_inverse=True)
    given = np.array([groups[id] for id in ids[known].tolist()])
    _, link = np.unique(given, return_inverse=True)
    size = len(names) + link.max() + 1
    edges = (np.ones(len(link), bool), (node[known], len(names) + link))
    _, part = connected_components(coo_array(edges, (size, size)), directed=False)
    smallest = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(smallest, part[: len(names)], names)
    return smallest[part[node]], ~known & ~np.full(len(ids), named)


def require_same_examples(
    path: Path, splits: Mapping[str, Split], locate: Callable[[int], str]
) -> None:
    """Raises UsageError if a run that began with other examples has written its own to `path`.

    Args:
        path: Written by `write_examples`; nothing is required if it is not there.
        splits: Those of now.
        locate: What a person calls the example of an id.
    """
    try:
        # Written without compression: it holds no more than it is long.
        ids = archives.read(path, path.stat().st_size)
        whole = splits.keys() <= ids.keys() and all(
            column.dtype == np.int64 and column.ndim == 1 for column in ids.values()
        )
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        whole = False
    if not whole:
        raise UsageError(f"{path} is damaged; start again in a new --run-directory")
    for name in {**ids, **splits}:
        old, new = ids.get(name, []), splits[name].column("id") if name in splits else []
        if np.array_equal(old, new):
            continue
        added, gone = np.setdiff1d(new, old), np.setdiff1d(old, new)
        of = f" (such as {locate(int([*added, *gone][0]))})" if len(added) or len(gone) else ""
        raise UsageError(
            f"the examples of {name} are not those that the run in {path.parent} began with: "
            f"{len(added)} were added and {len(gone)} are gone{of}; bring the data back, or give a "
            "new --run-directory"
        )


def write_examples(path: Path, splits: Mapping[str, Split]) -> None:
    """The ids of each split in their order, int64, as an `.npz`."""
    contents = io.BytesIO()
    np.savez(contents, **{name: split.column("id") for name, split in splits.items()})
    files.write_bytes(path, contents.getvalue())
