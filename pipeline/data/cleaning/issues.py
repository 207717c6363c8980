"""Issues of examples: unfit, duplicate, labeled twice, or in two splits.

The action depends on the cost of a wrong decision. Examples are dropped if nothing can
be learned from them (no pixels, a label out of range, an exact copy) or if they
contradict each other (the same pixels with two labels, of which the right one is
unknown). An image in two splits stops the run, because the test result would be too
good. Everything that requires human judgment is kept and listed. The manifest can be
edited.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
from scipy.sparse import coo_array, csgraph

from pipeline.contracts import Source
from pipeline.data.cleaning import near_duplicates
from pipeline.data.cleaning.manifest import Entry
from pipeline.data.cleaning.scan import Scan

ACTIONS = {
    "undecodable": "drop",
    "label out of range": "drop",
    "blank": "drop",
    "tiny": "drop",
    "duplicate": "drop",
    "two labels": "drop",
    "leakage": "stop",
    "near leakage": "stop",
    "near duplicate": "keep",
    "near duplicate, two labels": "keep",
    "all alike": "keep",
    "label noise": "keep",
}
# A constant image that was encoded as JPEG varies by 1 or 2 levels of 256.
_BLANK = 3
# Pixels of the shorter side, or half of the median if this is less, for data with small
# images.
_TINY = 8
_FEW = 20  # with fewer images, most may be copies
_RANK = (
    "train",
    "validation",
    "test",
)  # of two copies, the one in the later split is kept


@dataclasses.dataclass(frozen=True)
class _Issue:
    row: int
    reason: str
    of: int | None = None
    """Row of the other example."""
    detail: str = ""


def find(source: Source, scan: Scan, near: bool = True) -> list[Entry]:
    """Entries of a manifest, in the order of the scan.

    An entry for leakage refers to the copy in train (in validation, if the other is in
    test). `near` also searches for near duplicates.
    """
    found = list(_unfit(scan, len(source.info.class_names or ())))
    fit = np.ones(len(scan), bool)
    fit[[issue.row for issue in found if ACTIONS[issue.reason] == "drop"]] = False
    copies, across = _exact(scan, np.flatnonzero(fit))
    fit[[issue.row for issue in copies]] = False
    found += copies + _leaking(
        scan, across[:, 0], across[:, 1], np.zeros(len(across)), "leakage"
    )
    if near:
        found += _near(scan, np.flatnonzero(fit))
    order = list(ACTIONS)
    found.sort(key=lambda issue: (issue.row, order.index(issue.reason)))
    return [_entry(source, scan, issue) for issue in found]


def label_noise(source: Source, scan: Scan, details: Mapping[int, str]) -> list[Entry]:
    """Entries for labels that are probably wrong; `details` maps ids to details, in
    this order.
    """
    return [
        _entry(source, scan, _Issue(scan.row_of[id], "label noise", detail=detail))
        for id, detail in details.items()
    ]


def notes(scan: Scan, entries: list[Entry]) -> list[str]:
    """Remarks on the data as a whole."""
    alike = sum(entry["reason"] == "all alike" for entry in entries)
    text = (
        f"{alike:,} of {len(scan):,} images are as close to others as copies would be:"
        " the images are all alike, so only exact copies are reported as duplicates or"
        " leakage; use --source.group to keep related images in one split;"
        " --clean.no-near skips this search"
    )
    return [text] if alike else []


def _unfit(scan: Scan, classes: int) -> Iterator[_Issue]:
    """Issues of single examples."""
    for row, why in scan.errors.items():
        yield _Issue(row, "undecodable", detail=why)
    read = np.ones(len(scan), bool)
    read[list(scan.errors)] = False
    if classes:
        for row in np.flatnonzero((scan.label < 0) | (scan.label >= classes)).tolist():
            detail = f"label {scan.label[row]}; the classes are 0 to {classes - 1}"
            yield _Issue(row, "label out of range", detail=detail)
    shorter = scan.size[:, :2].min(axis=1)
    usual = np.median(shorter[read]) if read.any() else 0
    blank, tiny = scan.spread < _BLANK, shorter < min(_TINY, usual / 2)
    for reason, wrong in (("blank", blank), ("tiny", tiny)):
        for row in np.flatnonzero(read & wrong).tolist():
            height, width, _ = scan.size[row]
            yield _Issue(row, reason, detail=f"{width}x{height} pixels")


def _exact(scan: Scan, rows: np.ndarray) -> tuple[list[_Issue], np.ndarray]:
    """Copies within splits, and pairs of remaining examples across splits, rows (pairs,
    2).
    """
    _, group = np.unique(scan.digest[rows], axis=0, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    _, starts, counts = np.unique(
        group.reshape(-1)[order], return_index=True, return_counts=True
    )
    found: list[_Issue] = []
    across: list[tuple[int, int]] = []
    for start, count in zip(starts[counts > 1], counts[counts > 1], strict=True):
        members = rows[order[start : start + count]]
        left = []
        for split in np.unique(scan.split[members]):
            same = members[scan.split[members] == split].tolist()
            labels = scan.label[same]
            if (labels == labels[0]).all():
                left.append(same[0])
                found += [_Issue(row, "duplicate", same[0]) for row in same[1:]]
                continue
            for row, label in zip(same, labels, strict=True):
                found.append(
                    _Issue(row, "two labels", same[int(np.argmax(labels != label))])
                )
        across += itertools.combinations(left, 2)
    return found, np.array(across, np.int64).reshape(-1, 2)


def _near(scan: Scan, rows: np.ndarray) -> list[_Issue]:
    """Near duplicates among the rows, unless all images are alike."""
    pairs = near_duplicates.near(scan.thumbnail[rows])
    first, second, distance = rows[pairs.first], rows[pairs.second], pairs.distance
    new = (scan.digest[first] != scan.digest[second]).any(axis=1)  # not an exact copy
    apart = scan.split[first] != scan.split[second]
    # If most images are crowded, a small distance does not indicate a copy. Being in a
    # pair is not enough: if each image has a copy, all images are in pairs.
    if len(rows) >= _FEW and pairs.crowded.mean() > 0.5:
        alike = pairs.crowded.copy()
        alike[pairs.first[new]] = alike[pairs.second[new]] = True
        return [_Issue(row, "all alike") for row in rows[alike].tolist()]
    across = new & apart
    found = _leaking(
        scan, first[across], second[across], distance[across], "near leakage"
    )
    return found + _linked(scan, first[~apart], second[~apart], distance[~apart])


def _leaking(
    scan: Scan, first: np.ndarray, second: np.ndarray, distance: np.ndarray, reason: str
) -> list[_Issue]:
    """Each example with a copy in a held-out split, and the nearest one there."""
    rank = np.array([_RANK.index(name) for name in scan.splits])[scan.split]
    lower = rank[first] < rank[second]
    copy, held_out = np.where(lower, (first, second), (second, first))
    order = np.lexsort((held_out, distance, copy))
    _, nearest = np.unique(copy[order], return_index=True)
    found = []
    for row, other in zip(
        copy[order][nearest].tolist(), held_out[order][nearest], strict=True
    ):
        detail = (
            "with a different label" if scan.label[row] != scan.label[other] else ""
        )
        found.append(_Issue(row, reason, int(other), detail))
    return found


def _linked(
    scan: Scan, first: np.ndarray, second: np.ndarray, distance: np.ndarray
) -> list[_Issue]:
    """The nearest pairs that connect each cluster: its minimum spanning tree."""
    # A zero would mean no link.
    pairs = coo_array((distance + 1.0, (first, second)), (len(scan), len(scan)))
    tree = csgraph.minimum_spanning_tree(pairs.tocsr()).tocoo()
    found = []
    for of, row in np.sort([tree.row, tree.col], axis=0).T.tolist():
        differ = scan.label[row] != scan.label[of]
        reason = "near duplicate, two labels" if differ else "near duplicate"
        found.append(_Issue(row, reason, of))
    return found


def _entry(source: Source, scan: Scan, issue: _Issue) -> Entry:
    def describe(row: int, prefix: str = "") -> dict[str, object]:
        names, label = source.info.class_names or (), int(scan.label[row])
        return {
            f"{prefix}file": source.location(int(scan.id[row])),
            f"{prefix}split": scan.splits[scan.split[row]],
            f"{prefix}label": names[label] if 0 <= label < len(names) else label,
        }

    entry = {
        "id": int(scan.id[issue.row]),
        **describe(issue.row),
        "reason": issue.reason,
    }
    entry["action"] = ACTIONS[issue.reason]
    if issue.of is not None:
        entry |= {"of": int(scan.id[issue.of]), **describe(issue.of, "of_")}
    return entry | ({"detail": issue.detail} if issue.detail else {})
