"""Notes that a random test split flatters a model, because files are related."""

import re
from collections import Counter
from collections.abc import Mapping

from pipeline.config import registry
from pipeline.config.config import Config
from pipeline.contracts import Decision, Source
from pipeline.data import splits
from pipeline.data.file_source import FileSource
from pipeline.data.raw_split import RawSplit
from pipeline.data.splits import Subset

_SAMPLE = 5000  # files of a split whose names are compared
_MIN_FILES = 3  # of a series, on average
_OPTION = "group"


def notes(
    source: Source, parts: Mapping[str, RawSplit], config: Config
) -> list[Decision]:
    """A note if test examples are drawn at random from files that may be related:
    recordings, or files in series, such as `p1_01.png`, `p1_02.png`, `p2_01.png`.
    """
    is_random = "test" in splits.shares(source.info.splits, config.data)
    has_option = _OPTION in registry.find("sources", config.source.name).options
    is_free = "group" not in source.info.fields
    if not (is_random or config.data.fold) or not (has_option and is_free):
        return []
    if "test" not in parts:
        return []
    if "audio" in source.info.fields:
        what = "recordings of one speaker, device or place may be in train and in test"
    elif pair := _pair_of_series(source, parts):
        what = f"files of one series are in train and in test, such as {pair}"
    else:
        return []
    reason = f"--source.{_OPTION} keeps them in one split"
    return [Decision("note", f"the test may be too optimistic: {what}", reason)]


def _pair_of_series(source: Source, parts: Mapping[str, RawSplit]) -> str:
    """The names of two files of a series; empty if the files are not in series.

    Without its last number, the name of a file is that of its series. Classes in one
    series each, such as `rose_1.jpg` and `tulip_1.jpg`, are no series.
    """
    whole = source.whole if isinstance(source, Subset) else source
    if not isinstance(whole, FileSource):
        return ""
    names = {}
    for split in ("train", "test"):
        ids = parts[split].column("id")[:_SAMPLE].tolist()
        names[split] = [source.location(id) for id in ids]
    counts = Counter(map(_series, names["train"]))
    classes = len(source.info.class_names or ())
    if len(counts) <= 2 * max(classes, 1) or counts.total() < _MIN_FILES * len(counts):
        return ""
    first = {_series(name): name for name in reversed(names["train"])}
    for name in names["test"]:
        if _series(name) in first:
            return f"{first[_series(name)]} and {name}"
    return ""


def _series(name: str) -> str:
    """A path without the suffix and the last number of the name of the file."""
    stem = name.rpartition(".")[0]
    return re.sub(r"[^0-9a-zA-Z/]*\d+$", "", stem)
