"""The data of a run: from its config to decoded splits and the task that has learned from them."""

import dataclasses
import time

import numpy as np

from pipeline.config import registry
from pipeline.config.config import Config
from pipeline.contracts import Decision, Info, Metadata, Source, Task
from pipeline.data import batching, splits
from pipeline.data.cleaning import apply
from pipeline.data.cleaning.apply import Cleaning
from pipeline.data.splits import Split
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import files, safe_io
from pipeline.utils.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Data:
    """What every command needs before there is a model."""

    source: Source
    metadata: Metadata
    """Of the task, those learned from the training examples too."""
    task: Task
    splits: dict[str, Split]
    """Decoded examples: train, and validation and test as far as there are any."""
    cleaning: Cleaning
    decisions: list[Decision]
    """On what is left out, the cache, the splits."""
    seconds: float
    """Taken to read and decode them all, or to find them in a cache on the disk."""

    @property
    def cache(self) -> str:
        """Where the decoded examples lie."""
        return next(decision.value for decision in self.decisions if decision.name == "cache")

    def write(self, run: RunDirectory) -> None:
        """What a run that is resumed must find again, into the run's folder."""
        self.cleaning.write(run)
        files.write_json(run.metadata, self.metadata)
        splits.write_examples(run.splits, self.splits)
        _record(run, self.source)


def _recorded(run: RunDirectory) -> dict[str, str | None] | None:
    """What `_record` has written; None in a new run."""
    try:
        before = safe_io.read_json(run.source)
        found = {"fingerprint": before["fingerprint"], "content": before["content"]}
        if not all(isinstance(value, str | None) for value in found.values()):
            raise ValueError
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{run.source} is damaged; start again in a new --run-directory") from None
    return found


def _record(run: RunDirectory, source: Source) -> None:
    """By what the data of a run are known: cheaply, and where that has changed, by their content.

    All examples are read for that, unless it has been written before.
    """
    fingerprint, before = source.fingerprint(), _recorded(run)
    if before is None or before["fingerprint"] != fingerprint:
        content = None if fingerprint is None else source.content()
        files.write_json(run.source, {"fingerprint": fingerprint, "content": content})


def _require_unchanged(run: RunDirectory, source: Source, config: Config) -> list[Decision]:
    """Raises UsageError if the content of examples has changed whose ids and classes are the same.

    Where the fingerprint has changed all examples are read: a copy, a hard link or other
    permissions change the times of a file alone.
    """
    before = _recorded(run)
    if before is None or before["fingerprint"] == source.fingerprint():
        return []
    if before["content"] is not None and before["content"] == source.content():
        return []
    what = "a file has another content; the examples and classes are the same"
    if not config.force:
        raise UsageError(
            f"the data in {config.source.title} have changed since the run in {run} began: {what}; "
            "bring them back, go on with --force, or give a new --run-directory"
        )
    return [Decision("changed", "the data, since this run began", f"{what}; --force")]


def _unlearned(metadata: Metadata, train: Split, limit: int | None) -> list[Decision]:
    """A note on classes without an example to train on; UsageError if there is but one with any."""
    names = metadata.get("class_names")
    if names is None or "label" not in train.store.short:
        return []
    counts = np.bincount(train.column("label"), minlength=len(names))
    if np.count_nonzero(counts) < 2:
        more = "examples of other classes" + (" or a larger --data.limit" if limit else "")
        raise UsageError(
            f"train has examples of one class only, {names[int(counts.argmax())]!r}, and a "
            f"classifier needs two; give {more}"
        )
    lacking = [repr(name) for name, count in zip(names, counts, strict=True) if not count]
    if not lacking:
        return []
    some = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3:,} others" if lacking[3:] else "")
    return [Decision("note", f"train has no example of {some}", "which cannot be learned")]


def _copied(source: Source, parts: dict[str, Split], config: Config) -> list[Decision]:
    """A note on images that are in two splits, unless a cleaning has dealt with them."""
    if config.clean.enabled or config.clean.allow_leakage:
        return []
    found = splits.copies(parts)
    if not found:
        return []
    counts = ", ".join(f"{count:,} in {name}" for name, (count, *_) in found.items())
    _, *pair = next(iter(found.values()))
    such = " and ".join(map(source.location, pair))
    remedy = "--clean.enabled" + " --clean.drop-leakage" * (len(source.info.splits) > 1)
    what = f"exact copies of images in another split: {counts}"
    return [Decision("note", what, f"such as {such}; {remedy} leaves them out")]


def opened(config: Config) -> tuple[Source, dict[str, np.ndarray]]:
    """The source, or the sample of it that `--data.limit` asks for; and the splits of an earlier
    run that are kept: split -> ids.

    Raises UsageError if one of them cannot be read.
    """
    path = run_directory.earlier_splits(config)
    known = splits.read_examples(path, "give another --data.splits") if path else {}
    source = registry.call("sources", config.source.name, config.source.options)
    return splits.limited(source, config.data, known), known


def task_of(config: Config, info: Info | Metadata) -> Task:
    """The task of a source, or of the metadata of a run."""
    size = config.data.image_size
    options = {"image_size": size} if size else {}
    return registry.call("tasks", config.task.name, {**options, **config.task.options}, info)


def load(config: Config) -> Data:
    """Opens the source, cleans, decodes, divides, learns the metadata.

    A run that is resumed must find the examples and metadata that it began with.

    Raises:
        UsageError: Any of this cannot be done; the message names the file, record or option.
    """
    source, known = opened(config)
    task = task_of(config, source.info)
    clean = apply.clean(source, config)
    start = time.monotonic()
    parts, decisions = batching.load(source, task, config, clean.dropped, clean.groups, known)
    seconds = time.monotonic() - start
    decisions = [*clean.decisions, *decisions]
    if config.run_directory:
        run = RunDirectory(config.run_directory)
        splits.require_same_examples(run.splits, parts, source.location)
    metadata = {**task.metadata, **task.learn(parts["train"].column)}
    metadata = run_directory.frozen(config.run_directory, metadata)
    notes = _unlearned(metadata, parts["train"], config.data.limit)
    decisions += [] if config.dry_run else notes
    decisions += _copied(source, parts, config)
    if config.run_directory:
        decisions += _require_unchanged(RunDirectory(config.run_directory), source, config)
    task = task_of(config, metadata)
    return Data(source, metadata, task, parts, clean, decisions, seconds)
