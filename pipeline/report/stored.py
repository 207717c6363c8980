"""Answers of a run or of an exported model to labelled data."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import data_path, objects, registry
from pipeline.config.sections import Train
from pipeline.contracts import Example, Task
from pipeline.data import batching
from pipeline.data.example_store import OnTheFly, decoded_specs
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.export.handoff import evaluation_split
from pipeline.report.results import Evaluation
from pipeline.serving import version_manifest
from pipeline.serving.client import Client
from pipeline.training.stepped_model import SteppedModel
from pipeline.utils.errors import UsageError, reason, suggest

Examples = tuple[str, Split, Any]
"""Name of a split; its decoded examples; a function from the id of an example to its name."""


def labelled(data: Any, task: Task, split: str | None) -> Examples:
    """A split of data for a task: anything that `fit` takes as `data`, or a path.

    Classes are matched by name. By default, test, or else validation, or all examples.

    Raises UsageError if a class is unknown to the model, or if the data is of another kind.
    """
    names = task.metadata.get("class_names")
    if isinstance(data, str | Path):
        found = data_path.source(Path(data))
        source = registry.call("sources", found.pop("name"), found)
    else:
        options = {"class_names": getattr(data, "class_names", None) or names} if names else {}
        source = registry.call("sources", objects.name_of(data, "sources"), options)
    split = split or evaluation_split(source.info.splits)
    if split not in source.info.splits:
        raise UsageError(f"the data has no split {split!r}; {suggest(split, source.info.splits)}")
    specs, wanted = _specs(source, task), task.metadata.get("image_dtype", "uint8")
    if "image" in specs and specs["image"].dtype.name != wanted:
        raise UsageError(f"the images are {specs['image'].dtype.name}; the model takes {wanted}")
    short = {name: v for name, v in source.columns(split).items() if name in specs}
    if names:
        numbers = _numbers(source.info.class_names or names, names)
        short["label"], read = numbers[short["label"]], source.reader(split)

        def renumbered(position: tf.Tensor) -> Example:
            example = read(position)
            return {**example, "label": tf.gather(numbers, example["label"])}

        vars(source)["reader"] = lambda split: renumbered
    task.check(short, split, source.location)
    examples = Split(OnTheFly(source, task, split, specs, short), np.arange(len(short["id"])))
    return split if len(source.info.splits) > 1 else "data", examples, source.location


def _specs(source: Any, task: Task) -> dict[str, tf.TensorSpec]:
    try:
        return decoded_specs(source, task)
    except (LookupError, ValueError) as error:
        raise UsageError(f"the data does not fit the model: {reason(error)}") from None


def _numbers(own: Any, names: list[str]) -> np.ndarray:
    """The number of each class of the data in the model."""
    for name in own:
        if name not in names:
            raise UsageError(f"the model has no class {name!r} as the data; {suggest(name, names)}")
    return np.array([names.index(name) for name in own])


def evaluated(model: SteppedModel, task: Task, found: Examples, options: Train) -> Evaluation:
    """The answers of a network and their metrics; `options` are those of its training."""
    split, examples, locate = found
    answers = evaluate.answers(model, task, batching.evaluation(examples, options))
    metrics = evaluate.measured(model, task, answers)
    return Evaluation(split, task, metrics, answers, examples, locate)


def evaluated_export(version: Path, data: Any, split: str | None) -> Evaluation:
    """The answers of an exported version to labelled data, and their metrics.

    Raises UsageError if the version does not describe its task.
    """
    about = version_manifest.about(version)
    if "metadata" not in about:
        raise UsageError(f"{version} does not describe its task; evaluate its run")
    task = registry.call("tasks", about["task"], {}, about["metadata"])
    client, parts = Client(version), []
    name, examples, locate = labelled(data, task, split)
    for rows in np.split(np.arange(len(examples)), range(256, len(examples), 256)):
        batch = examples.take(rows)
        answer = client.predict(**task.requests(batch)["serving_default"])
        tensors = {key: tf.constant(values) for key, values in batch.items()}
        _, y, _ = task.target({**task.prepare(tensors), "weight": tf.ones(len(rows))}, batch["id"])
        if "prediction" in answer:
            outputs = answer["prediction"][:, None]
        else:
            # Logits up to a constant, on which neither the loss nor the calibration depends.
            outputs = np.log(np.maximum(answer["probabilities"], 1e-38))
            outputs *= getattr(task, "temperature", 1.0)
        losses = task.loss()(y, tf.constant(outputs)).numpy()
        known = {"id": batch["id"], "truth": y.numpy(), "outputs": outputs, "loss": losses}
        parts.append({**answer, **known})
    answers = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return Evaluation(name, task, task.evaluate(answers), answers, examples, locate)
