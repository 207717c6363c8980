"""The data of a run: from its config to decoded splits and the task that has learned from them."""

import dataclasses
import json
import time

import numpy as np

from pipeline import cleaning, files, run_directory, shelf, splits, stream, untrusted
from pipeline.cleaning import Cleaning
from pipeline.config import Config
from pipeline.contracts import Decision, Facts, Source, Task
from pipeline.errors import UsageError
from pipeline.run_directory import RunDirectory
from pipeline.splits import Split


@dataclasses.dataclass(frozen=True)
class Data:
    """What every command needs before there is a model."""

    source: Source
    facts: Facts
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
        files.write_json(run.facts, self.facts)
        splits.write_examples(run.splits, self.splits)
        files.write_text(run.source, _told(self.source))


def _changed(run: RunDirectory, source: Source) -> bool:
    """Whether the files of the source are not those that the run has written down."""
    try:
        before = untrusted.read_json(run.source)["fingerprint"]
        if not isinstance(before, str | None):
            raise ValueError
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{run.source} is damaged; start again in a new --run-directory") from None
    return before != source.fingerprint()


def _told(source: Source) -> str:
    return json.dumps({"fingerprint": source.fingerprint()}) + "\n"


def _require_unchanged(run: RunDirectory, source: Source, config: Config) -> list[Decision]:
    """Raises UsageError if files have changed whose examples and classes are the same."""
    if not _changed(run, source):
        return []
    what = "a file has another size, time or content; the examples and classes are the same"
    if not config.force:
        raise UsageError(
            f"the data in {config.source.title} have changed since the run in {run} began: {what}; "
            "bring them back, go on with --force, or give a new --run-directory"
        )
    return [Decision("changed", "the data, since this run began", f"{what}; --force")]


def _unlearned(facts: Facts, train: Split) -> list[Decision]:
    """A note on classes without an example to train on."""
    names = facts.get("class_names")
    if names is None or "label" not in train.store.short:
        return []
    counts = np.bincount(train.column("label"), minlength=len(names))
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


def load(config: Config) -> Data:
    """Opens the source, cleans, decodes, divides, learns the facts.

    A run that is resumed must find the examples and facts that it began with.

    Raises:
        UsageError: Any of this cannot be done; the message names the file, record or option.
    """
    source = shelf.take("sources", config.source.name)(**config.source.options())
    facts = shelf.take("tasks", config.task, "facts")(source.info, **config.data.task_options())
    task = shelf.take("tasks", config.task)(facts)
    clean = cleaning.clean(source, config)
    start = time.monotonic()
    parts, decisions = stream.load(source, task, config, clean.dropped, clean.groups)
    seconds = time.monotonic() - start
    decisions = [*clean.decisions, *decisions]
    if config.run_directory:
        run = RunDirectory(config.run_directory)
        splits.require_same_examples(run.splits, parts, source.location)
    facts = {**facts, **task.learn(parts["train"].column)}
    facts = run_directory.frozen(config.run_directory, facts)
    decisions += [] if config.dry_run else _unlearned(facts, parts["train"])
    decisions += _copied(source, parts, config)
    if config.run_directory:
        decisions += _require_unchanged(RunDirectory(config.run_directory), source, config)
    task = shelf.take("tasks", config.task)(facts)
    return Data(source, facts, task, parts, clean, decisions, seconds)
