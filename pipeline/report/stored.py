"""Answers of a run or of an exported model to labelled data, in a later process."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import data_path, objects, registry
from pipeline.config.sections import Train
from pipeline.contracts import Example, Metadata, Source, Task
from pipeline.data import batching
from pipeline.data.example_store import OnTheFly, decoded_specs
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.export.handoff import evaluation_split
from pipeline.report.results import Evaluation
from pipeline.serving import repository, version_manifest
from pipeline.serving.client import Client
from pipeline.training.stepped_model import SteppedModel
from pipeline.utils.errors import UsageError, suggest

Examples = tuple[str, Split, Any]
"""Name of a split; its decoded examples; a function from the id of an example to its name."""


def labelled(data: Any, task: Task, split: str | None) -> Examples:
    """A split of data for a task: anything that `fit` takes as `data`, or a path.

    By default, test, or else validation, or all examples if there are no splits.

    Raises UsageError if a class is unknown to the model, or if images are of another kind.
    """
    names = task.metadata.get("class_names")
    if isinstance(data, str | Path):
        found = data_path.source(Path(data))
        source = registry.call("sources", found.pop("name"), found)
    else:
        options = {"class_names": getattr(data, "class_names", None) or names} if names else {}
        source = registry.call("sources", objects.name_of(data, "sources"), options)
    numbers = None
    if names and list(source.info.class_names or names) != names:
        numbers = _numbers(list(source.info.class_names or ()), names)
    if "image_shape" in task.metadata:
        _require_kind(source.info.field("image"), task.metadata)
    split = split or evaluation_split(source.info.splits)
    if split not in source.info.splits:
        raise UsageError(f"the data has no split {split!r}; {suggest(split, source.info.splits)}")
    specs, columns = decoded_specs(source, task), source.columns(split)
    short = {name: values for name, values in columns.items() if name in specs}
    if numbers is not None:
        source, short = _renumbered(source, numbers), {**short, "label": numbers[short["label"]]}
    task.check(short, split, source.location)
    examples = Split(OnTheFly(source, task, split, specs, short), np.arange(len(short["id"])))
    return split if len(source.info.splits) > 1 else "data", examples, source.location


def _numbers(own: list[str], class_names: list[str]) -> np.ndarray:
    """The number of each class of the data in the model, by their names."""
    numbered = [str(number) for number in range(len(class_names))]
    if own == numbered[: len(own)] and not {*own} & {*class_names}:  # the data has no names
        own = class_names[: len(own)]
    for name in own:
        if name not in class_names:
            hint = suggest(name, class_names)
            raise UsageError(f"the data has a class {name!r}, unknown to the model; {hint}")
    return np.array([class_names.index(name) for name in own])


def _renumbered(source: Source, numbers: np.ndarray) -> Source:
    """A copy of the source with the numbers of another model as labels."""

    def reader(split: str) -> Any:
        def renumbered(position: tf.Tensor) -> Example:
            example = read(position)
            return {**example, "label": tf.gather(numbers, example["label"])}

        read = source.reader(split)
        return renumbered

    found = copy.copy(source)
    vars(found)["reader"] = reader
    return found


def _require_kind(spec: tf.TensorSpec, metadata: Metadata) -> None:
    """Raises UsageError if images are of another type than those of the model."""
    wanted, channels = metadata.get("image_dtype", "uint8"), metadata["image_shape"][2]
    is_file = spec.dtype == tf.string
    if (is_file and wanted != "uint8") or (
        not is_file and (spec.dtype.name, spec.shape[-1]) != (wanted, channels)
    ):
        raise UsageError(
            f"the images are {spec.dtype.name} of shape {spec.shape}, but the model takes {wanted} "
            f"with {channels} channels; convert them"
        )


def evaluated(model: SteppedModel, task: Task, found: Examples, options: Train) -> Evaluation:
    """The answers of a network and their metrics; `options` are those of its training."""
    split, examples, locate = found
    columns = evaluate.answers(model, task, batching.evaluation(examples, options))
    metrics = evaluate.measured(model, task, columns)
    return Evaluation(split, task, metrics, columns, examples, locate)


def evaluated_export(directory: Path, data: Any, split: str | None) -> tuple[str, Evaluation]:
    """The name of an exported model, and its answers to labelled data with their metrics.

    Raises UsageError if there is no such model, or if its task is of another kind.
    """
    version = repository.chosen(directory)
    about = version_manifest.about(version)
    if data is None or "metadata" not in about:
        lacks = "needs labelled data" if data is None else "does not describe its task"
        raise UsageError(f"{version} {lacks}; give data, or a run in its place")
    task = registry.call("tasks", about["task"], {}, about["metadata"])
    client, parts = Client(version), []
    name, examples, locate = labelled(data, task, split)
    for rows in np.split(np.arange(len(examples)), range(256, len(examples), 256)):
        batch = examples.take(rows)
        answer = client.predict(**task.requests(batch)["serving_default"])
        tensors = {key: tf.constant(values) for key, values in batch.items()}
        _, y, _ = task.target({**task.prepare(tensors), "weight": tf.ones(len(rows))}, batch["id"])
        if "probabilities" in answer:
            # Logits up to a constant, on which neither the loss nor the calibration depends.
            outputs = np.log(np.maximum(answer["probabilities"], 1e-38))
            outputs *= getattr(task, "temperature", 1.0)
        elif "prediction" in answer:
            outputs = answer["prediction"][:, None]
        else:
            raise UsageError(f"{version} answers {', '.join(answer)}; evaluate its run")
        losses = task.loss()(y, tf.constant(outputs)).numpy()
        known = {"id": batch["id"], "truth": y.numpy(), "outputs": outputs, "loss": losses}
        parts.append({**answer, **known})
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    metrics = task.evaluate(columns)
    return about["name"], Evaluation(name, task, metrics, columns, examples, locate)
