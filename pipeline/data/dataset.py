"""The data of a run: from its config to decoded splits and a task with its metadata."""

import dataclasses
import hashlib
import re
import time
from typing import Any

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
from pipeline.utils import files, progress_bar, safe_io
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Data:
    """Everything that a command needs before the model is built."""

    source: Source
    metadata: Metadata
    """Metadata of the task, including what it learned from the training examples."""
    task: Task
    splits: dict[str, Split]
    """Decoded examples: train, and validation and test if they exist."""
    cleaning: Cleaning
    decisions: list[Decision]
    """Decisions about excluded examples, the cache and the splits."""
    seconds: float
    """Time to read and decode all examples, or to find them in the disk cache."""

    @property
    def cache(self) -> str:
        """Where the decoded examples are kept."""
        return next(
            decision.value for decision in self.decisions if decision.name == "cache"
        )

    def write(self, run: RunDirectory) -> None:
        """Writes to the run directory what must be unchanged when the run is resumed.

        If the fingerprint is new, so is the digest of the decoded examples.
        """
        if self.cleaning.found is not None:
            self.cleaning.found.write(run)
        files.write_json(run.metadata, self.metadata)
        splits.write_examples(run.splits, self.splits)
        fingerprint, before = self.source.fingerprint(), _recorded(run)
        if not before or before["fingerprint"] != fingerprint:
            content = _content(self.source, self.splits)
            files.write_json(
                run.source, {"fingerprint": fingerprint, "content": content}
            )


def _recorded(run: RunDirectory) -> dict[str, str | None]:
    """The fingerprint and content that `Data.write` recorded; empty in a new run."""
    try:
        before = safe_io.read_json(run.source)
        return {key: before[key] for key in ("fingerprint", "content")}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{run.source} is damaged; start again in a new --run-directory"
        ) from None


def _content(source: Source, parts: dict[str, Split]) -> str | None:
    """A digest of the decoded examples and of the names; None if the examples are not
    kept.
    """
    names = (source.info.class_names, source.info.feature_names)
    found = hashlib.sha256(repr(names).encode("utf-8", "surrogateescape"))
    for split in parts.values():
        if split.store.digest is None:
            return None
        for name in sorted(split.store.short):
            found.update(split.column(name).tobytes())
        found.update(split.store.digest[split.rows].tobytes())
    return found.hexdigest()


def _require_unchanged(
    run: RunDirectory, source: Source, parts: dict[str, Split], config: Config
) -> list[Decision]:
    """Raises UsageError if the content of examples has changed, but not their ids and
    classes.

    If the fingerprint has changed, the decoded examples are compared, because copying
    or hard-linking a file, or changing its permissions, changes its times but not its
    content.
    """
    before = _recorded(run)
    if not before or before["fingerprint"] == source.fingerprint():
        return []
    content = _content(source, parts)
    if content is not None and before["content"] == content:
        return []
    what = (
        "the content or the order of its examples differs, not their number or classes"
    )
    if content is None or before["content"] is None:
        what = (
            "its files have other times or sizes, and without a cache, content is not"
            " compared"
        )
    if not config.force:
        raise UsageError(
            f"the data in {config.source.title} has changed since the run in {run}"
            f" began: {what}; restore it, continue with --force, or use a new"
            " --run-directory"
        )
    return [Decision("changed", "the data, since this run began", f"{what}; --force")]


def _missing_classes(metadata: Metadata, train: Split) -> list[Decision]:
    """A note about classes without training examples.

    Raises UsageError if fewer than two classes have training examples.
    """
    names = metadata.get("class_names")
    if names is None or "label" not in train.store.short:
        return []
    counts = np.bincount(train.column("label"), minlength=len(names))
    if np.count_nonzero(counts) < 2:
        raise UsageError(
            f"train has examples of only one class, {names[int(counts.argmax())]!r},"
            " but a classifier needs at least two; add examples of other classes"
        )
    missing = [
        repr(name) for name, count in zip(names, counts, strict=True) if not count
    ]
    if not missing:
        return []
    some = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
    return [
        Decision("note", f"train has no example of {some}", "these cannot be learned")
    ]


def _similar_classes(metadata: Metadata) -> list[Decision]:
    """A note about classes whose names differ only in case, punctuation, a plural or
    zeros.
    """
    found: dict[str, list[str]] = {}
    for name in metadata.get("class_names") or ():
        plain = re.sub(r"[\W_]+", "", name.casefold())
        plain = re.sub(r"^0+(?=\d+$)", "", plain)  # 01 and 1
        found.setdefault(re.sub(r"(?<=...)(ies|es|[yes])$", "", plain), []).append(
            repr(name)
        )
    pairs = [" and ".join(names) for names in found.values() if len(names) > 1]
    remedy = "if they are the same class, merge them"
    return (
        [Decision("note", f"similar classes: {', '.join(pairs[:3])}", remedy)]
        if pairs
        else []
    )


def _copies(source: Source, parts: dict[str, Split], config: Config) -> list[Decision]:
    """Notes about images with the same pixels, in one split or several, if cleaning
    ignored them.

    Needs decoded images with labels, because no images are read for this.
    """
    if config.clean.enabled or config.clean.allow_leakage:
        return []
    digests: list[np.ndarray] = []
    for split in parts.values():
        if (
            split.store.digest is None
            or not {"image", "label"} <= split.store.specs.keys()
        ):
            return []
        digests.append(split.store.digest[split.rows])
    _, first, group = np.unique(
        np.concatenate(digests), return_index=True, return_inverse=True
    )
    copy = np.flatnonzero(first[group] != np.arange(len(group)))
    if not len(copy):
        return []
    columns = [split.column for split in parts.values()]
    ids, labels = (
        np.concatenate([c(name) for c in columns]) for name in ("id", "label")
    )
    part = np.repeat(np.arange(len(parts)), [len(split) for split in parts.values()])
    original = first[group[copy]]
    differ = labels[copy] != labels[original]
    at = np.argmax(differ)
    one, other = (source.location(int(ids[row])) for row in (original[at], copy[at]))
    classes = f", {differ.sum():,} of them in two classes" * bool(differ.any())
    notes = [
        f"filed twice: {pluralize(len(copy), 'image')}{classes}, such as {one} and"
        f" {other}"
    ]
    counts = np.bincount(part[copy[part[original] < part[copy]]], minlength=len(parts))
    if counts.any():
        some = [
            f"{count:,} in {name}"
            for name, count in zip(parts, counts, strict=True)
            if count
        ]
        notes.append(f"exact copies of images in another split: {', '.join(some)}")
    remedy = "--clean.enabled" + " --clean.drop-leakage" * (len(source.info.splits) > 1)
    return [Decision("note", note, f"{remedy} excludes them") for note in notes]


def opened(config: Config) -> Source:
    """The source, limited by `--data.limit`."""
    progress_bar.stage("opening", config.source.title)
    source = registry.call("sources", config.source.name, config.source.options)
    return splits.limited(source, config.data)


def task_of(config: Config, info: Info | Metadata) -> Task:
    """The task for a source, or for the metadata of a run."""
    size = config.data.image_size
    options: dict[str, Any] = {"image_size": size} if size else {}
    if registry.builds_whole_model(config.model.name):
        options["raw"] = "raw" in registry.find("tasks", config.task.name).options
    return registry.call(
        "tasks", config.task.name, {**options, **config.task.options}, info
    )


def load(config: Config) -> Data:
    """Opens the source, cleans, decodes and splits the examples, and learns the
    metadata.

    Raises UsageError if a resumed run finds different examples or metadata than when it
    began.
    """
    source = opened(config)
    try:
        task = task_of(config, source.info)
    except UsageError as error:
        raise UsageError(f"{config.source.title}: {error}") from None
    clean = apply.clean(source, config)
    start = time.monotonic()
    parts, decisions = batching.load(source, task, config, clean.dropped, clean.groups)
    seconds = time.monotonic() - start
    decisions = [*clean.decisions, *decisions]
    run = RunDirectory(config.run_directory) if config.run_directory else None
    if run:
        splits.require_same_examples(run.splits, parts, source.location)
    learned = {**task.metadata, **task.learn(parts["train"].column)}
    metadata = run_directory.frozen(config.run_directory, learned)
    notes = _missing_classes(metadata, parts["train"])
    decisions += [] if config.dry_run else notes
    decisions += _similar_classes(metadata)
    decisions += _copies(source, parts, config)
    decisions += _require_unchanged(run, source, parts, config) if run else []
    return Data(
        source, metadata, task_of(config, metadata), parts, clean, decisions, seconds
    )
