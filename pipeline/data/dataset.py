"""Loads the data of a run: decoded splits, the task and its metadata."""

import dataclasses
import hashlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.config import registry
from pipeline.config.config import Config
from pipeline.contracts import Decision, Info, Metadata, Source, Task
from pipeline.data import batching, class_balance, detect, related_files, splits
from pipeline.data.cleaning import apply
from pipeline.data.cleaning.apply import Cleaning
from pipeline.data.raw_split import RawSplit
from pipeline.data.splits import Split
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import files, progress_bar, safe_io
from pipeline.utils.console import join_words, pluralize
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import is_short

_KEYS = ("id", "group", "sample_weight")
"""Fields of an example that no task reads."""


@dataclasses.dataclass(frozen=True)
class LoadedData:
    """Everything that a command needs before the model is built."""

    source: Source
    metadata: Metadata
    """Metadata of the task, including what it learned from the training examples."""
    learned: tuple[str, ...]
    """Names of the metadata that it learned."""
    task: Task
    splits: dict[str, Split]
    """Decoded examples: train, and validation and test if they exist; test without
    exact copies of the others.
    """
    whole_test: Split | None
    """The test split with these copies; None if there are none."""
    cleaning: Cleaning
    class_weight: Mapping[str, float]
    """The weight of each class in the loss by its name; classes that are not named have
    weight 1.
    """
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
        """Writes the metadata, the splits and the fingerprint to the run directory.

        All of them must be the same when the run is resumed.
        """
        if self.cleaning.findings is not None:
            self.cleaning.findings.write(run)
        fingerprint = self.source.fingerprint()
        previous = _read_state(run)
        if not previous or previous["fingerprint"] != fingerprint:
            content = _content_digest(self.source, self._whole_splits)
            state = {"fingerprint": fingerprint, "content": content}
            # Before the metadata, whose learned entries it names.
            files.write_json(run.source, {**state, "learned": self.learned})
        files.write_json(run.metadata, self.metadata)
        if self.class_weight:
            files.write_json(run.class_weights, dict(self.class_weight))
        splits.write_examples(run.splits, self._whole_splits)

    @property
    def _whole_splits(self) -> dict[str, Split]:
        if self.whole_test is None:
            return self.splits
        return {**self.splits, "test": self.whole_test}


def _read_state(run: RunDirectory) -> dict[str, Any]:
    """The fingerprint, digest and names that a run has recorded; empty if it is new."""
    try:
        state = safe_io.read_json(run.source)
        return {key: state[key] for key in ("fingerprint", "content", "learned")}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{run.source} is damaged; start again in a new --run-directory"
        ) from None


def _content_digest(source: Source, parts: dict[str, Split]) -> str | None:
    """A digest of the decoded examples and the names of classes and features.

    None if the examples are not cached.
    """
    names = (source.info.class_names, source.info.feature_names)
    digest = hashlib.sha256(repr(names).encode("utf-8", "surrogateescape"))
    for split in parts.values():
        if split.store.digest is None:
            return None
        for name in sorted(split.store.short):
            digest.update(split.column(name).tobytes())
        digest.update(split.store.digest[split.rows].tobytes())
    return digest.hexdigest()


def _require_unchanged(
    run: RunDirectory, source: Source, parts: dict[str, Split], config: Config
) -> list[Decision]:
    """Raises UsageError if the content of the examples has changed since the run began.

    The decoded examples are compared only if the fingerprint has changed: copying or
    hard-linking a file, or changing its permissions, changes its times but not its
    content. `splits.require_same_examples` compares the ids.
    """
    previous = _read_state(run)
    if not previous or previous["fingerprint"] == source.fingerprint():
        return []
    content = _content_digest(source, parts)
    if content is not None and previous["content"] == content:
        return []
    change = (
        "the content or the order of its examples differs, not their number or classes"
    )
    if content is None or previous["content"] is None:
        change = (
            "its files have other times or sizes, and without a cache, content is not"
            " compared"
        )
    if not config.force:
        raise UsageError(
            f"the data in {config.source.title} has changed since the run in {run}"
            f" began: {change}; restore it, continue with --force, or use a new"
            " --run-directory"
        )
    return [Decision("changed", "the data, since this run began", f"{change}; --force")]


def _exact_copies(
    source: Source, task: Task, parts: dict[str, Split], config: Config
) -> tuple[list[Decision], np.ndarray]:
    """Notes examples with the same long fields, such as pixels, within a split or
    across splits; and which test examples are copies of training or validation
    examples, bool (examples,).

    Compares the digests of cached examples, so it reads no example. Finds nothing if
    cleaning searches for copies, the user accepts them, or examples may be equal by
    chance.
    """
    in_test = np.zeros(len(parts.get("test", ())), bool)
    compared = task.input.compared
    if config.clean.enabled or config.clean.allow_leakage or compared is None:
        return [], in_test
    keys: list[np.ndarray] = []
    for split in parts.values():
        store = split.store
        # Without long fields, all digests are equal.
        has_content = compared or not all(map(is_short, store.specs.values()))
        if store.digest is None or not has_content:
            return [], in_test
        # Of several inputs, the short ones count, too.
        names = sorted(store.short)
        names = [name for name in names if "/" in name or name in compared]
        inputs = [split.column(name) for name in names]
        keys.append(_row_bytes([store.digest[split.rows], *inputs]))
    _, first, group = np.unique(
        np.concatenate(keys), return_index=True, return_inverse=True
    )
    copies = np.flatnonzero(first[group] != np.arange(len(group)))
    if not len(copies):
        return [], in_test
    originals = first[group[copies]]
    ids = np.concatenate([split.column("id") for split in parts.values()])
    note = f"duplicates: {pluralize(len(copies), 'example')}"
    example = 0
    if all("label" in split.store.short for split in parts.values()):
        labels = np.concatenate([split.column("label") for split in parts.values()])
        differs = labels[copies] != labels[originals]
        # An example with two classes, if there is one.
        example = int(np.argmax(differs))
        if differs.any():
            note += f", {differs.sum():,} of them in two classes"
    original = source.location(int(ids[originals[example]]))
    copy = source.location(int(ids[copies[example]]))
    notes = [f"{note}, such as {original} and {copy}"]
    sizes = [len(split) for split in parts.values()]
    part = np.repeat(np.arange(len(parts)), sizes)
    leaking = copies[part[originals] < part[copies]]
    in_test = _is_among(leaking, part, list(parts))
    counts = np.bincount(part[leaking], minlength=len(parts))
    if counts.any():
        counts_by_split = [
            f"{count:,} in {name}"
            for name, count in zip(parts, counts, strict=True)
            if count
        ]
        listing = ", ".join(counts_by_split)
        notes.append(f"exact copies of examples in another split: {listing}")
    if in_test.any() and in_test.all():
        notes.append(
            "the test says nothing about new examples: all of its examples are copies"
        )
    remedy = "--clean.enabled"
    if len(source.info.splits) > 1:
        remedy += " --clean.drop-leakage"
    decisions = [Decision("note", note, f"{remedy} excludes them") for note in notes]
    return decisions, in_test


def _is_among(copies: np.ndarray, part: np.ndarray, names: list[str]) -> np.ndarray:
    """Whether each test example is among these copies."""
    is_copy = np.zeros(len(part), bool)
    is_copy[copies] = True
    if "test" not in names:
        return np.zeros(0, bool)
    return is_copy[part == names.index("test")]


def _without_copies(test: Split, is_copy: np.ndarray) -> Split:
    raw = test.raw_split and test.raw_split.select(~is_copy)
    return Split(test.store, test.rows[~is_copy], raw)


def _row_bytes(columns: list[np.ndarray]) -> np.ndarray:
    """Joins the bytes of each row to one value that can be sorted, (rows,)."""
    if len(columns) == 1 and columns[0].ndim == 1:
        return columns[0]
    parts = []
    for column in columns:
        rows = np.ascontiguousarray(column).reshape(len(column), -1)
        parts.append(rows.view(np.uint8))
    rows = np.concatenate(parts, axis=1)
    return rows.view(np.dtype((np.void, rows.shape[1])))[:, 0]


def open_source(config: Config, whole: Source | None = None) -> Source:
    """Opens the source, unless it is open, and limits it to `--data.limit` examples."""
    return splits.limit_examples(whole or create_source(config), config.data)


def create_source(config: Config) -> Source:
    """Opens the source with all of its examples."""
    progress_bar.stage("opening", config.source.title)
    name = config.source.name
    task = registry.load("tasks", config.task.name)
    kinds = getattr(task, "kinds", (config.task.input, config.task.target))
    read_as = detect.array_kinds(name, kinds, config.model.name)
    options = {**read_as, **config.source.options}
    return registry.call("sources", name, options)


def create_task(config: Config, info: Info | Metadata) -> Task:
    """Creates the task for a source, or from the metadata of a run."""
    task = _create_task(config, info)
    if isinstance(info, Info) and registry.builds_whole_model(config.model.name):
        changes = {"user_model": True, "label_shape": list(info.label_shape)}
        if info.gray_axis:
            changes["gray_axis"] = True
        task = task.with_metadata(changes)
    if not task.metadata.get("user_model"):
        return task
    return registry.call("tasks", "keras_model", {}, task)


def _create_task(config: Config, info: Info | Metadata) -> Task:
    name = config.task.name
    options: dict[str, Any] = {}
    if isinstance(info, Info):
        options["raw"] = registry.builds_whole_model(config.model.name)
        if config.data.image_size is not None:
            options["image_size"] = config.data.image_size
    if name != "supervised":
        options_of_function = registry.find("tasks", name).options
        options = {
            key: value for key, value in options.items() if key in options_of_function
        }
        return registry.call("tasks", name, {**options, **config.task.options}, info)
    parts = {
        "input": config.task.input,
        "input_options": {**options, **config.task.input_options},
        "target": config.task.target,
        "target_options": config.task.target_options,
    }
    return registry.call("tasks", name, config.task.options, info, parts)


def _task_decision(source: Source, task: Task, config: Config) -> Decision:
    options = config.task
    is_requested = options.name != "supervised" or options.input or options.target
    fields = [name for name in source.info.fields if name not in _KEYS]
    reason = "requested" if is_requested else f"from the fields {join_words(fields)}"
    if options.name == "keras_model":
        reason = "the model and the data are used as they are"
    return Decision("task", task.title, reason)


def learn(
    task: Task, train: RawSplit, run: RunDirectory | None, config: Config
) -> tuple[Metadata, tuple[str, ...]]:
    """Returns all metadata of a task, and the names of what it learned.

    A resumed run has learned it already. Raises UsageError if the metadata of the
    source has changed since.
    """
    state = _read_state(run) if run else {}
    if run and state:
        learned = tuple(state["learned"])
        changeable = registry.changeable_options(config.task.name)
        saved = run_directory.original_metadata(run, task.metadata, learned, changeable)
        if saved is not None:
            return saved, learned
    new = task.learn(train)
    return {**task.metadata, **new}, tuple(new)


def _weigh_classes(
    task: Task, columns: Mapping[str, np.ndarray], config: Config
) -> tuple[Mapping[str, float], list[Decision]]:
    """The weights of the classes, and what to say about them or their sizes."""
    requested = config.train.class_weight
    counts = task.target.class_counts(columns)
    weights = class_balance.class_weights(requested, counts, task.title)
    if counts is None or config.dry_run:
        return weights, []
    if requested == "balanced":
        return weights, [class_balance.weights_decision(weights, counts)]
    return weights, [] if weights else class_balance.imbalance_notes(counts)


def load(config: Config, whole: Source | None = None) -> LoadedData:
    """Opens the source; cleans and splits the examples; learns metadata; decodes.

    `whole` is the source, if it is open already. Raises UsageError if the examples or
    the metadata of a resumed run have changed.
    """
    source = open_source(config, whole)
    task = create_task(config, source.info)
    cleaning = apply.clean(source, config, task)
    included = splits.included(source, cleaning.excluded)
    raw_splits, split_decisions = splits.divide(
        included,
        config.data,
        cleaning.groups,
        label=config.task.target_options.get("field", "label"),
    )
    run = RunDirectory(config.run_directory) if config.run_directory else None
    if run:
        splits.require_same_examples(run.splits, raw_splits, source.location)
    metadata, learned = learn(task, raw_splits["train"], run, config)
    task = create_task(config, metadata)
    start = time.monotonic()
    parts, decisions = batching.load(
        included, raw_splits, task, config, cleaning.excluded
    )
    seconds = time.monotonic() - start
    decisions = [
        _task_decision(source, task, config),
        *cleaning.decisions,
        *decisions,
        *split_decisions,
    ]
    train = parts["train"]
    columns = {name: train.column(name) for name in train.store.short}
    for decision in task.review(columns):
        # A dry run has too few examples for notes about their number.
        if decision.name != "note" or not config.dry_run:
            decisions.append(decision)
    class_weight, weight_decisions = _weigh_classes(task, columns, config)
    decisions += weight_decisions
    copies, is_copy = _exact_copies(source, task, parts, config)
    decisions += copies
    if not config.dry_run:
        decisions += related_files.notes(source, raw_splits, config)
    if run:
        decisions += _require_unchanged(run, source, parts, config)
    whole_test = None
    if is_copy.any() and not is_copy.all() and config.data.folds is None:
        whole_test = parts["test"]
        parts["test"] = _without_copies(whole_test, is_copy)
    return LoadedData(
        source=source,
        metadata=metadata,
        learned=learned,
        task=task,
        splits=parts,
        whole_test=whole_test,
        cleaning=cleaning,
        class_weight=class_weight,
        decisions=decisions,
        seconds=seconds,
    )
