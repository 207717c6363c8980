"""What a scan says of each example: unfit, there twice, under two labels, in two splits.

What is done follows from what it costs to be wrong. Left out is what teaches nothing (no pixels,
no such class, the same picture again) or what contradicts itself (the same pixels under two labels:
nobody knows which is right, so both go). A picture in two splits stops the run, because its test
would be worth less than it says. What needs a person's eye is kept and listed. A manifest can be
edited.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.contracts import Source
from pipeline.data.cleaning import manifest, near_duplicates
from pipeline.data.cleaning.manifest import Entry
from pipeline.data.cleaning.scan import Scan

ACTIONS = {
    "undecodable": "drop",
    "bomb": "drop",
    "label out of range": "drop",
    "blank": "drop",
    "tiny": "drop",
    "extreme aspect": "keep",
    "duplicate": "drop",
    "two labels": "drop",
    "leakage": "stop",
    "near leakage": "stop",
    "near duplicate": "keep",
    "near duplicate, two labels": "keep",
    "all alike": "keep",
    "label noise": "keep",
}
# A constant picture that went through JPEG varies by 1 or 2 levels of 256.
_BLANK = 3
# Pixels of the shorter side; where most pictures are small, half of what is usual among them.
_TINY = 8
_ASPECT = 8  # longer side over the shorter
_IMBALANCE = 10  # largest class over the smallest
_FEW = 20  # among fewer pictures, copies may well be most of them
_BOMB = "more than the limit of"  # what decoding says of one
_RANK = ("train", "validation", "test")  # the later one keeps its examples


@dataclasses.dataclass(frozen=True)
class _Found:
    row: int
    reason: str
    of: int | None = None
    """Row of the other example."""
    detail: str = ""


def find(source: Source, scan: Scan, near: bool = True) -> list[Entry]:
    """Entries of a manifest, in the order of the scan.

    An entry of leakage is about the copy in train (in validation, if the other is in the test).

    Args:
        source: Says what the examples and classes are called.
        scan: Of this source.
        near: Search for near duplicates too.
    """
    found = list(_unfit(scan, len(source.info.class_names or ())))
    fit = np.ones(len(scan), bool)
    fit[[one.row for one in found if ACTIONS[one.reason] == "drop"]] = False
    again, across = _exact(scan, np.flatnonzero(fit))
    found += again
    fit[[one.row for one in again]] = False
    none = np.zeros(len(across[0]))
    found += _leaking(scan, *across, none, "leakage")
    if near:
        rows = np.flatnonzero(fit)
        pairs = near_duplicates.near(scan.thumbnails(rows))
        columns = first, second, _ = rows[pairs.first], rows[pairs.second], pairs.distance
        new = (scan.digest[first] != scan.digest[second]).any(axis=1)  # else it has been found
        apart = scan.split[first] != scan.split[second]
        alike = pairs.crowded.copy()
        alike[pairs.first[new]] = alike[pairs.second[new]] = True
        # Where most are crowded, nearness says nothing of copies. Pairs do not count: if each
        # image has a copy, all are in pairs.
        if len(rows) >= _FEW and pairs.crowded.mean() > 0.5:
            found += [_Found(row, "all alike") for row in rows[alike].tolist()]
        else:
            found += _leaking(scan, *(c[new & apart] for c in columns), "near leakage")
            found += _alike(scan, *(c[~apart] for c in columns))
    order = list(ACTIONS)
    found.sort(key=lambda one: (one.row, order.index(one.reason)))
    return [_entry(source, scan, one) for one in found]


def doubted(source: Source, scan: Scan, details: Mapping[int, str]) -> list[Entry]:
    """Entries for labels that are probably wrong, in their order: id -> what is said of each."""
    row_of = {int(scan.id[row]): int(row) for row in scan.rows(details)}
    return [
        _entry(source, scan, _Found(row_of[id], "label noise", detail=detail))
        for id, detail in details.items()
        if id in row_of
    ]


def notes(source: Source, scan: Scan, entries: list[Entry]) -> list[str]:
    """What a person should know of the whole: all is alike, or a class is missing or rare."""
    lines = []
    if alike := sum(entry["reason"] == "all alike" for entry in entries):
        lines.append(
            f"{alike:,} of {len(scan):,} pictures are as near to others as copies would be: these "
            "pictures are all alike, so only exact copies are taken for duplicates or leakage; "
            "name what must stay in one split with --source.group; --clean.no-near leaves this "
            "search out"
        )
    names = source.info.class_names
    train = scan.split == scan.splits.index("train")
    left = train & ~np.isin(scan.id, list(manifest.dropped(entries)))
    labels = scan.label[left & (scan.label >= 0) & (scan.label < len(names or ()))]
    if not names:
        return lines
    counts = np.bincount(labels, minlength=len(names))
    if missing := [name for name, count in zip(names, counts, strict=True) if not count]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        lines.append(f"train has no examples of {', '.join(missing[:3])}{more}")
    low, high = (int(f(np.where(counts, counts, counts.max()))) for f in (np.argmin, np.argmax))
    if counts[high] > _IMBALANCE * counts[low]:
        lines.append(
            f"train has {counts[high]:,} examples of {names[high]} but {counts[low]:,} of "
            f"{names[low]}; --train.class-weight can even that out"
        )
    return lines


def _unfit(scan: Scan, classes: int) -> Iterator[_Found]:
    """What is wrong with single examples."""
    for row, why in scan.errors.items():
        yield _Found(row, "bomb" if _BOMB in why else "undecodable", detail=why)
    read = np.ones(len(scan), bool)
    read[list(scan.errors)] = False
    if classes:
        for row in np.flatnonzero((scan.label < 0) | (scan.label >= classes)):
            detail = f"label {scan.label[row]} of classes 0 ... {classes - 1}"
            yield _Found(int(row), "label out of range", detail=detail)
    shorter, longer = scan.size[:, :2].min(axis=1), scan.size[:, :2].max(axis=1)
    usual = np.median(shorter[read]) if read.any() else 0
    blank, tiny = scan.spread < _BLANK, shorter < min(_TINY, usual / 2)
    aspect = (longer > _ASPECT * shorter) & ~blank & ~tiny
    sizes = (("blank", blank), ("tiny", tiny), ("extreme aspect", aspect))
    for reason, wrong in sizes:
        for row in np.flatnonzero(read & wrong):
            height, width, _ = scan.size[row]
            yield _Found(int(row), reason, detail=f"{width}x{height} pixels")


def _exact(scan: Scan, rows: np.ndarray) -> tuple[list[_Found], tuple[np.ndarray, np.ndarray]]:
    """Repetitions within splits, and pairs (rows, rows) of what remains that are in two splits."""
    first = rows[near_duplicates.exact(scan.digest[rows])]
    order = np.argsort(first, kind="stable")
    _, starts, counts = np.unique(first[order], return_index=True, return_counts=True)
    found: list[_Found] = []
    across: list[tuple[int, int]] = []
    for start, count in zip(starts[counts > 1], counts[counts > 1], strict=True):
        members = rows[order[start : start + count]]
        left = []
        for split in np.unique(scan.split[members]):
            mine = members[scan.split[members] == split].tolist()
            labels = scan.label[mine]
            if (labels == labels[0]).all():
                left.append(mine[0])
                found += [_Found(row, "duplicate", mine[0]) for row in mine[1:]]
                continue
            for row, label in zip(mine, labels, strict=True):
                other = mine[int(np.argmax(labels != label))]
                found.append(_Found(row, "two labels", other))
        across += itertools.combinations(left, 2)
    pairs = np.array(across, np.int64).reshape(-1, 2)
    return found, (pairs[:, 0], pairs[:, 1])


def _leaking(
    scan: Scan, first: np.ndarray, second: np.ndarray, distance: np.ndarray, reason: str
) -> list[_Found]:
    """Each example that a held-out split has too, with the nearest one there."""
    rank = np.array([_RANK.index(name) for name in scan.splits])[scan.split]
    lower = rank[first] < rank[second]
    copy, held_out = np.where(lower, (first, second), (second, first))
    order = np.lexsort((held_out, distance, copy))
    _, nearest = np.unique(copy[order], return_index=True)
    return [
        _Found(int(copy[at]), reason, int(held_out[at]), _said(scan, copy[at], held_out[at]))
        for at in order[nearest]
    ]


def _alike(scan: Scan, first: np.ndarray, second: np.ndarray, distance: np.ndarray) -> list[_Found]:
    """Each example of a cluster but one, with the neighbour through which it hangs together.

    The links are the cluster's minimum spanning tree, so that a cluster of n has n - 1 entries and
    each of them shows two pictures that are as near as can be.
    """
    if not len(first):
        return []
    rows, places = np.unique([first, second], return_inverse=True)
    i, j = places.reshape(2, -1)
    tied = near_duplicates.forest(len(rows), i, j, distance)
    found = []
    for at in np.flatnonzero(tied >= 0):
        row, other = int(rows[at]), int(rows[tied[at]])
        differ = scan.label[row] != scan.label[other]
        found.append(
            _Found(row, "near duplicate, two labels" if differ else "near duplicate", other)
        )
    return found


def _said(scan: Scan, row: int, other: int) -> str:
    return "under another label" if scan.label[row] != scan.label[other] else ""


def _entry(source: Source, scan: Scan, found: _Found) -> Entry:
    def of(row: int, prefix: str = "") -> dict[str, object]:
        names, label = source.info.class_names or (), int(scan.label[row])
        return {
            f"{prefix}file": source.location(int(scan.id[row])),
            f"{prefix}split": scan.splits[scan.split[row]],
            f"{prefix}label": names[label] if 0 <= label < len(names) else label,
        }

    entry = {"id": int(scan.id[found.row]), **of(found.row), "reason": found.reason}
    entry["action"] = ACTIONS[found.reason]
    if found.of is not None:
        entry |= {"of": int(scan.id[found.of]), **of(found.of, "of_")}
    return entry | ({"detail": found.detail} if found.detail else {})
