"""Labelled data for a trained model: loads it, and evaluates the model on it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import objects, registry
from pipeline.config.sections import TrainConfig
from pipeline.contracts import Source, Task
from pipeline.data import (
    batching,
    decoder_warnings,
    detect,
    file_types,
    in_memory,
    split_names,
    table_source,
)
from pipeline.data.example_store import OnTheFly, decoded_specs, short_columns
from pipeline.data.raw_split import RawSplit
from pipeline.data.splits import Split
from pipeline.data.table import Table
from pipeline.data.table_columns import NUMBERS, TRUTHS, Options
from pipeline.evaluation import evaluate
from pipeline.evaluation.evaluate import Predict, SplitResult
from pipeline.evaluation.exported import ExportedNetwork
from pipeline.evaluation.predictions import (
    EvaluatedSplit,
    prediction_function,
)
from pipeline.serving import version_manifest
from pipeline.utils.console import say
from pipeline.utils.errors import NoLabels, UsageError, suggest
from pipeline.utils.table_column import TableColumn

# Options that name columns with the same content in other tables.
_COLUMN_OPTIONS = ("image", "column", *TRUTHS)
Examples = tuple[Mapping[str, Split], Callable[[int], str]]
"""Decoded examples of each split, and a function from an id to the example's name."""


def load_splits(
    data: Any,
    task: Task,
    trained_options: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Examples:
    """Loads labelled data for a task: whatever `fit` takes as `data`, or a path.

    Classes are matched by name. Raises UsageError if the data has no labels or is of
    another kind, or if a class is unknown to the model.

    Args:
        data: The data.
        task: The task of the model.
        trained_options: Options of the source that the model was trained on, whose
            names of columns are used again.
        options: Options of the source of `data`, as values or as words of a command
            line.
    """
    try:
        source = _source(data, task, trained_options or {}, options or {})
    except NoLabels:
        name = data if isinstance(data, str | Path) else "the data"
        remedy = "add them as in the training data"
        if isinstance(data, str | Path) and Path(data).is_file():
            remedy += ", or name their column by --source.label or --source.target"
        raise UsageError(
            f"{name} has no labels to compare predictions with ({task.title});"
            f" {remedy}, or use pipeline predict, which needs none"
        ) from None
    matched = task.match(source)
    specs = _specs(source, matched)
    splits = {}
    for split in source.info.splits:
        name = split if len(source.info.splits) > 1 else "data"
        columns = source.columns(split)
        positions = np.arange(len(columns["id"]))
        short = short_columns(source, matched, split, columns, positions)
        task.check(short, name, source.location)
        store = OnTheFly(source, matched, split, specs, short, "remove it")
        raw_split = RawSplit(source, split, positions, columns)
        splits[name] = Split(store, positions, raw_split)
    return splits, source.location


def _source(
    data: Any,
    task: Task,
    trained_options: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Source:
    """Creates a source of the data for a model of this task."""
    names = task.metadata.get("class_names") or ()
    if "targets" in task.metadata:  # of a `KerasModelOfArrays`
        data = registry.user_arguments().name_arrays(
            data, tuple(task.metadata["inputs"]), task.user_outputs
        )
    if isinstance(data, str | Path):
        own_input = task.metadata.get("input")
        if own_input in registry.names("inputs"):
            own_input = None  # inferred from the files
        options = detect.find_source(Path(data), names, own_input)
        name = options.pop("name")
        known_options = registry.find("sources", name).options
        for option, value in trained_options.items():
            if option in _COLUMN_OPTIONS and option in known_options:
                options.setdefault(option, value)
        if names and name == "arrays":
            options["class_names"] = tuple(names)
        options |= registry.read_options("sources", name, given, "--source.{}")
        registry.check("sources", name, options, "--source.{}")
        if name == "table" and "columns" in task.metadata:
            given_table = detect.take_table(options.pop("path"))
            return _from_table(given_table, options, task)
        return registry.call("sources", name, options)
    if "columns" in task.metadata:
        read = in_memory.table_of(data, "the table", takes_pairs=True)
        if read is not None:
            option = _truth_of(task)
            truth = trained_options.get("predict", trained_options.get(option))
            options = dict(given) or {option: truth}
            if isinstance(data, tuple | list):
                options = {option: [*read.columns][-1]}
            return _from_table(read, options, task)
    if given:
        raise UsageError("source: options are for data at a path")
    name = objects.name_of(data, "sources")
    takes = registry.find("sources", name).options
    options = {}
    if names and "class_names" in takes and in_memory.find_class_names(data) is None:
        options["class_names"] = names
    metadata = (task.metadata.get("input"), task.metadata.get("target"))
    kinds = getattr(task, "kinds", metadata)
    for option, kind in zip(("input", "target"), kinds, strict=True):
        if option in takes and kind is not None:
            options[option] = kind
    return registry.call("sources", name, options)


def _from_table(read: Table, options: dict[str, Any], task: Task) -> Source:
    """The examples of a table, with the columns that a model takes."""
    columns = []
    for column in task.metadata["columns"]:
        columns.append(
            TableColumn(column["name"], column["kind"], column.get("order", ""))
        )
    name = task.metadata.get("input_name")
    if name is None:
        options["field"] = NUMBERS
    elif read.find(name):
        is_value = task.metadata["input"] in file_types.value_columns()
        options.setdefault("column" if is_value else "image", name)
    chosen = Options(**options, model_columns=tuple(columns))
    return table_source.from_table(read, chosen)


def _truth_of(task: Task) -> str:
    """The option for the column that a model of tables predicts."""
    target = task.metadata.get("target")
    return {"classes": "label", "labels": "labels"}.get(str(target), "target")


def _specs(source: Source, task: Task) -> dict[str, tf.TensorSpec]:
    """Returns the fields of decoded examples; UsageError if the model takes others."""
    try:
        return decoded_specs(source, task)
    except (LookupError, ValueError):
        inputs = tf.nest.flatten(task.input.inputs())
        shapes = ", ".join(f"{x.name} {x.shape[1:]}" for x in inputs)
        fields = []
        for name, spec in source.info.fields.items():
            if name != "id":
                fields.append(f"{name} {spec.shape}".removesuffix(" ()"))
        raise UsageError(
            f"the data does not fit the model, which takes {shapes}; the data has"
            f" {', '.join(sorted(fields))}"
        ) from None


def evaluate_split(
    model: Any,
    task: Task,
    examples: Examples,
    split: str | None,
    options: TrainConfig,
    training: Split | None = None,
    trained: tuple[str | None, np.ndarray] | None = None,
) -> EvaluatedSplit:
    """Evaluates a network on a split.

    Args:
        model: The network.
        task: Its task.
        examples: The result of `load_splits`, or the splits of a run.
        split: Name of the split; None: test, or else validation, train or all data.
        options: The options of its training.
        training: The training examples, for metrics that compare predictions with them.
        trained: The fingerprint of the source that the network was trained on, and the
            ids of the training examples.
    """
    name = _split_name(examples, split)
    training_examples = 0
    if trained is not None and _fingerprint(examples, name) == trained[0]:
        is_trained = np.isin(examples[0][name].column("id"), trained[1])
        training_examples = int(is_trained.sum())
    result = _measure(
        model, task, examples, name, options, evaluate.predictions, training
    )
    return _evaluated(
        task,
        examples,
        name,
        result,
        prediction_function(model, task),
        training_examples,
        model,
    )


def _evaluated(
    task: Task,
    examples: Examples,
    split: str,
    result: SplitResult,
    prediction: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]],
    training_examples: int,
    network: Any = None,
) -> EvaluatedSplit:
    """The evaluation of a split, from its result."""
    splits, locate = examples
    return EvaluatedSplit(
        split,
        task,
        result.metrics,
        result.table,
        splits[split],
        locate,
        prediction,
        network,
        result.pictures,
        result.has_loss,
        training_examples,
    )


def _fingerprint(examples: Examples, split: str) -> str | None:
    """The fingerprint of the source of a split."""
    raw = examples[0][split].raw_split
    return None if raw is None else raw.source.fingerprint()


def _split_name(examples: Examples, split: str | None) -> str:
    splits, _ = examples
    name = split or split_names.evaluation_split(splits) or "data"
    if name not in splits:
        raise UsageError(f"the data has no split {name!r}; {suggest(name, splits)}")
    return name


def _measure(
    model: Any,
    task: Task,
    examples: Examples,
    name: str,
    options: TrainConfig,
    predict: Predict,
    training: Split | None = None,
) -> SplitResult:
    """Evaluates a split; prints what decoders have warned of."""
    splits, locate = examples
    store = splits[name].store
    batches = batching.evaluation(splits[name], options)
    trained = None if training is None else batching.evaluation(training, options)
    with decoder_warnings.collect() as warned:
        result = evaluate.evaluate(model, task, batches, trained, predict)
    if isinstance(store, OnTheFly):
        for note in warned.notes(store, locate):
            say(note.name, note)
    return result


def evaluate_export(
    version: Path,
    data: Any,
    split: str | None,
    options: Mapping[str, Any] | None = None,
) -> EvaluatedSplit:
    """Evaluates an exported version on a split of labelled data.

    `options` are those of the source of the data.
    """
    manifest = version_manifest.properties(version)
    if "metadata" not in manifest:
        raise UsageError(f"{version} does not describe its task; evaluate its run")
    task = registry.call("tasks", manifest["task"], {}, manifest["metadata"])
    trained_options = manifest.get("source_options", {})
    examples = load_splits(data, task, trained_options, options)
    network = ExportedNetwork(version, task)
    name = _split_name(examples, split)
    result = _measure(None, task, examples, name, TrainConfig(), network.predictions)
    training_examples = 0
    fingerprint = manifest.get("source_fingerprint")
    if name == "data" and fingerprint and _fingerprint(examples, name) == fingerprint:
        training_examples = manifest["trained"].get("examples", {}).get("train", 0)
    return _evaluated(
        task,
        examples,
        name,
        result,
        network.predict,
        training_examples,
    )
