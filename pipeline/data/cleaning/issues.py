"""Problems found in examples: unusable, duplicate, labeled twice, or in two splits.

The action depends on the cost of a wrong decision. Examples are dropped if nothing can
be learned from them (no pixels, a label out of range, an exact copy) or if they
contradict each other (the same pixels with two labels, of which the right one is
unknown). Examples that are not images are the same if the fields of their input are. An
example in two splits stops the run, because the test result would be too
good. Everything that requires human judgment is kept and listed. The manifest can be
edited.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
from scipy.sparse import coo_array, csgraph

from pipeline.contracts import Pairs, Source
from pipeline.data.cleaning.manifest import Entry
from pipeline.data.cleaning.scan import Scan

ACTIONS = {
    "undecodable": "drop",
    "not finite": "drop",
    "label out of range": "drop",
    "blank": "drop",
    "tiny": "drop",
    "duplicate": "drop",
    "two labels": "drop",
    "two targets": "drop",
    "leakage": "stop",
    "near leakage": "stop",
    "near duplicate": "keep",
    "near duplicate, two labels": "keep",
    "near duplicate, two targets": "keep",
    "all alike": "keep",
    "label noise": "keep",
}
# A constant image that was encoded as JPEG varies by 1 or 2 levels of 256.
_MIN_SPREAD = 3
# Pixels of the shorter side. In data with small images, half of the median, if it is
# less.
_MIN_SIDE = 8
_MIN_IMAGES = 20  # among fewer images, most may be copies
# Of two copies, the one in the later split is kept.
_SPLIT_ORDER = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class _Issue:
    row: int
    reason: str
    of: int | None = None
    """Row of the other example."""
    detail: str = ""


def find(source: Source, scan: Scan, near: bool = True) -> list[Entry]:
    """Finds all issues: entries of a manifest, in the order of the scan.

    An entry for leakage refers to the copy in train, or in validation if the other one
    is in test. `near` also searches for near duplicates, if the scan has a similarity.
    """
    issues = list(_single_issues(scan, len(source.info.class_names or ())))
    is_sound = np.ones(len(scan), bool)
    is_sound[[issue.row for issue in issues if ACTIONS[issue.reason] == "drop"]] = False
    copies, pairs = _exact_copies(scan, np.flatnonzero(is_sound))
    is_sound[[issue.row for issue in copies]] = False
    issues += copies
    distances = np.zeros(len(pairs))
    issues += _leakage(scan, pairs[:, 0], pairs[:, 1], distances, "leakage")
    if near and scan.similarity:
        rows = np.flatnonzero(is_sound)
        issues += _near_duplicates(scan, rows, scan.similarity.find(scan.sketch[rows]))
    reasons = list(ACTIONS)
    issues.sort(key=lambda issue: (issue.row, reasons.index(issue.reason)))
    return [_entry(source, scan, issue) for issue in issues]


def label_noise(source: Source, scan: Scan, details: Mapping[int, str]) -> list[Entry]:
    """Entries for labels that are probably wrong; `details` maps ids to details."""
    return [
        _entry(source, scan, _Issue(scan.row_of[id], "label noise", detail=detail))
        for id, detail in details.items()
    ]


def notes(scan: Scan, entries: list[Entry]) -> list[str]:
    """Notes about the data as a whole."""
    count = sum(entry["reason"] == "all alike" for entry in entries)
    if not count:
        return []
    return [
        f"{count:,} of {len(scan):,} examples are as close to others as copies would"
        " be: they are all alike, so only exact copies are reported as duplicates or"
        " leakage; use --source.group to keep related examples in one split;"
        " --clean.no-near skips this search"
    ]


def _single_issues(scan: Scan, classes: int) -> Iterator[_Issue]:
    """Issues of single examples."""
    for row, error in scan.errors.items():
        yield _Issue(row, "undecodable", detail=error)
    for row, name in scan.not_finite.items():
        yield _Issue(row, "not finite", detail=f"{name} is not finite in float32")
    if scan.target == "label" and classes:
        for row in np.flatnonzero((scan.label < 0) | (scan.label >= classes)).tolist():
            detail = f"label {scan.label[row]}; the classes are 0 to {classes - 1}"
            yield _Issue(row, "label out of range", detail=detail)
    if scan.target == "labels" and scan.truth is not None:
        is_label = (scan.truth == 0) | (scan.truth == 1)
        for row in np.flatnonzero(~is_label.all(axis=1)).tolist():
            detail = f"labels {_join(scan.truth[row])}; each is 0 or 1"
            yield _Issue(row, "label out of range", detail=detail)
    if scan.has_images:
        yield from _image_issues(scan)


def _image_issues(scan: Scan) -> Iterator[_Issue]:
    """Images from which nothing can be learned."""
    is_decoded = np.ones(len(scan), bool)
    is_decoded[list(scan.errors)] = False
    shorter_side = scan.size[:, :2].min(axis=1)
    median = np.median(shorter_side[is_decoded]) if is_decoded.any() else 0
    is_blank = scan.spread < _MIN_SPREAD
    is_tiny = shorter_side < min(_MIN_SIDE, median / 2)
    for reason, has_issue in (("blank", is_blank), ("tiny", is_tiny)):
        for row in np.flatnonzero(is_decoded & has_issue).tolist():
            height, width, _ = scan.size[row]
            yield _Issue(row, reason, detail=f"{width}x{height} pixels")


def _exact_copies(scan: Scan, rows: np.ndarray) -> tuple[list[_Issue], np.ndarray]:
    """Issues of copies within a split, and pairs of copies across splits.

    The pairs are rows of the scan, (pairs, 2), without copies that are an issue.
    """
    _, group = np.unique(scan.digest[rows], axis=0, return_inverse=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    _, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    copies: list[_Issue] = []
    pairs: list[tuple[int, int]] = []
    for start, count in zip(starts[counts > 1], counts[counts > 1], strict=True):
        members = rows[order[start : start + count]]
        originals = []
        for split in np.unique(scan.split[members]):
            same = members[scan.split[members] == split].tolist()
            labels = scan.label[same]
            if (labels == labels[0]).all():
                originals.append(same[0])
                copies += [_Issue(row, "duplicate", same[0]) for row in same[1:]]
                continue
            for row, label in zip(same, labels, strict=True):
                contradicting = same[int(np.argmax(labels != label))]
                copies.append(_Issue(row, f"two {_noun(scan)}s", contradicting))
        pairs += itertools.combinations(originals, 2)
    return copies, np.array(pairs, np.int64).reshape(-1, 2)


def _near_duplicates(scan: Scan, rows: np.ndarray, pairs: Pairs) -> list[_Issue]:
    """Near duplicates among the rows, unless all examples are alike."""
    first = rows[pairs.first]
    second = rows[pairs.second]
    is_inexact = (scan.digest[first] != scan.digest[second]).any(axis=1)
    # If most images are crowded, a small distance does not indicate a copy. Being in a
    # pair is not enough: if each image has a copy, all images are in pairs.
    if len(rows) >= _MIN_IMAGES and pairs.is_ambiguous.mean() > 0.5:
        is_alike = pairs.is_ambiguous.copy()
        is_alike[pairs.first[is_inexact]] = True
        is_alike[pairs.second[is_inexact]] = True
        return [_Issue(row, "all alike") for row in rows[is_alike].tolist()]
    is_across = scan.split[first] != scan.split[second]
    leaking = is_across & is_inexact
    return [
        *_leakage(
            scan,
            first[leaking],
            second[leaking],
            pairs.distance[leaking],
            "near leakage",
        ),
        *_spanning_trees(
            scan, first[~is_across], second[~is_across], pairs.distance[~is_across]
        ),
    ]


def _leakage(
    scan: Scan, first: np.ndarray, second: np.ndarray, distance: np.ndarray, reason: str
) -> list[_Issue]:
    """An issue for each example with a copy in a later split, with its nearest copy."""
    rank = np.array([_SPLIT_ORDER.index(name) for name in scan.splits])[scan.split]
    is_ascending = rank[first] < rank[second]
    copy = np.where(is_ascending, first, second)
    held_out = np.where(is_ascending, second, first)
    order = np.lexsort((held_out, distance, copy))
    copy = copy[order]
    held_out = held_out[order]
    _, nearest = np.unique(copy, return_index=True)
    leaking = []
    for row, held_out_row in zip(copy[nearest], held_out[nearest], strict=True):
        differs = scan.label[row] != scan.label[held_out_row]
        detail = f"with a different {_noun(scan)}" if differs else ""
        leaking.append(_Issue(int(row), reason, int(held_out_row), detail))
    return leaking


def _spanning_trees(
    scan: Scan, first: np.ndarray, second: np.ndarray, distance: np.ndarray
) -> list[_Issue]:
    """Issues for the nearest pairs that connect each cluster of near duplicates."""
    # A zero would mean no link.
    pairs = coo_array((distance + 1.0, (first, second)), (len(scan), len(scan)))
    tree = csgraph.minimum_spanning_tree(pairs.tocsr()).tocoo()
    duplicates = []
    for original, row in np.sort([tree.row, tree.col], axis=0).T.tolist():
        differs = scan.label[row] != scan.label[original]
        reason = "near duplicate"
        if differs:
            reason += f", two {_noun(scan)}s"
        duplicates.append(_Issue(row, reason, original))
    return duplicates


def _noun(scan: Scan) -> str:
    return "label" if scan.target == "label" else "target"


def _join(values: np.ndarray) -> str:
    return " ".join(f"{value:.6g}" for value in np.ravel(values))


def _truth(source: Source, scan: Scan, row: int) -> object:
    """The label or target for people; None if there is none, or if it is long."""
    if scan.truth is None:
        return None
    names = source.info.class_names or ()
    value = scan.truth[row]
    if scan.target == "label":
        label = int(value)
        return names[label] if 0 <= label < len(names) else label
    if scan.target == "labels" and len(names) == len(value):
        return "|".join(names[index] for index in np.flatnonzero(value))
    return _join(value)


def _entry(source: Source, scan: Scan, issue: _Issue) -> Entry:
    def describe(row: int, prefix: str = "") -> dict[str, object]:
        facts: dict[str, object] = {
            f"{prefix}file": source.location(int(scan.id[row])),
            f"{prefix}split": scan.splits[scan.split[row]],
        }
        truth = _truth(source, scan, row)
        if truth is not None:
            facts[f"{prefix}label"] = truth
        return facts

    entry: dict[str, object] = {"id": int(scan.id[issue.row])}
    entry |= describe(issue.row)
    entry["reason"] = issue.reason
    entry["action"] = ACTIONS[issue.reason]
    if issue.of is not None:
        entry["of"] = int(scan.id[issue.of])
        entry |= describe(issue.of, "of_")
    if issue.detail:
        entry["detail"] = issue.detail
    return entry
