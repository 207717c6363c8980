"""What a later process needs of a run or an export: task, network, examples, answers."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import command_line, objects, registry
from pipeline.config.config import Config
from pipeline.config.sections import Train
from pipeline.contracts import Example, Source, Task
from pipeline.data import batching, dataset, splits
from pipeline.data.example_store import OnTheFly, decoded_specs
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.export import stored_run
from pipeline.export.handoff import evaluation_split
from pipeline.report.results import Evaluation
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.serving import repository, version_manifest
from pipeline.serving.client import Client
from pipeline.training import checkpoints, model_builder
from pipeline.training.stepped_model import SteppedModel
from pipeline.utils import safe_io
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, reason, suggest

Examples = tuple[str, Source, Split]
"""Name of the split, its source, the decoded examples."""


def task(config: Config, run: RunDirectory, calibration: Mapping[str, Any]) -> Task:
    """The calibrated task of a run; UsageError if its metadata cannot be read."""
    try:
        metadata = safe_io.read_json(run.metadata)
    except (OSError, ValueError) as error:
        raise UsageError(f"{run.metadata} cannot be read: {reason(error)}") from None
    found = registry.call("tasks", config.task.name, config.task.options, metadata)
    return evaluate.calibrated_by(found, calibration)


def network(config: Config, run: RunDirectory, task: Task) -> SteppedModel:
    """The network in the precision of training: from `model.keras`, or if the run is unfinished
    from its newest checkpoint."""
    known = ("float32", "mixed_float16", "mixed_bfloat16")
    precision = run_directory.decided(run.path, "precision", known) or "float32"
    is_finished, is_given = run.model.is_file(), objects.is_text_only(config.model.name)
    try:
        if is_finished:
            model = stored_run.network(config, run)
            is_pretrained = bool({"weights", "preset"} & config.model.options.keys())
            if not (is_given or is_pretrained):  # as it was built for the training
                weights = model.get_weights()
                model = model_builder.network(task, config.model, precision)
                model.set_weights(weights)
        else:
            model = model_builder.network(task, config.model, precision)
            averaged = config.train.ema is not None
            checkpoints.restore_weights(run.checkpoints, model, averaged)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"the model of {run} cannot be opened: {reason(error)}") from None
    model.task = task
    return model


def own(config: Config, run: RunDirectory, task: Task, split: str | None) -> Examples:
    """A split of the run, by default the one it was judged by; UsageError if the data is gone."""
    known = splits.read_examples(run.splits)
    split = split or evaluation_split(known)
    if split not in known:
        raise UsageError(f"{run} has no split {split!r}; {suggest(split, known)}")
    try:
        source, _ = dataset.opened(command_line.read(run.config).changed(run_directory=run.path))
    except UsageError as error:
        raise UsageError(f"the data of {run} cannot be read: {error}; give other data") from None
    for name in source.info.splits:
        if np.isin(known[split], source.columns(name)["id"]).all():
            return split, source, _decoded(source, task, name, known[split])
    raise UsageError(
        f"{config.source.title} lacks examples that {split} of {run} had; restore them, or give "
        "other data"
    )


def other(data: Any, task: Task, split: str | None) -> Examples:
    """A split of other data: anything that `fit` takes as `data`, or a path.

    By default, test, or else validation, or all examples if there are no splits.

    Raises UsageError if a class is unknown to the model, or if images are of another kind.
    """
    names = task.metadata.get("class_names")
    if isinstance(data, str | Path):
        source = _of_path(Path(data))
    elif isinstance(data, Source):
        source = data
    else:
        options = {"class_names": getattr(data, "class_names", None) or names} if names else {}
        source = registry.call("sources", objects.name_of(data, "sources"), options)
    if "image_shape" in task.metadata:
        _require_kind(source.info.field("image"), task.metadata)
    if names and list(source.info.class_names or names) != names:
        source = Renumbered(source, names)
    split = split or evaluation_split(source.info.splits)
    if split not in source.info.splits:
        raise UsageError(f"the data has no split {split!r}; {suggest(split, source.info.splits)}")
    name = split if len(source.info.splits) > 1 else "data"
    return name, source, _decoded(source, task, split)


def _of_path(path: Path) -> Source:
    if not path.exists():
        raise UsageError(f"{path} does not exist; give class folders or an .npz file")
    return registry.call("sources", "folder" if path.is_dir() else "arrays", {"path": path})


def _require_kind(spec: tf.TensorSpec, metadata: Mapping[str, Any]) -> None:
    given = "uint8" if spec.dtype == tf.string else spec.dtype.name
    wanted, channels = metadata.get("image_dtype", "uint8"), metadata["image_shape"][2]
    if given != wanted or (spec.dtype != tf.string and spec.shape[-1] != channels):
        raise UsageError(
            f"the images are {given} of shape {spec.shape}, but the model takes {wanted} with "
            f"{channels} channels; convert them"
        )


def _decoded(source: Source, task: Task, split: str, ids: np.ndarray | None = None) -> Split:
    """The examples with these ids, or all, which are decoded when they are used."""
    specs, columns = decoded_specs(source, task), source.columns(split)
    short = {name: values for name, values in columns.items() if name in specs}
    rows = np.arange(len(short["id"])) if ids is None else np.isin(short["id"], ids).nonzero()[0]
    task.check({name: values[rows] for name, values in short.items()}, split, source.location)
    return Split(OnTheFly(source, task, split, specs, short), rows)


class Renumbered(Source):
    """A source whose classes have the numbers that they have in a model, by their names."""

    def __init__(self, whole: Source, class_names: list[str]) -> None:
        own = list(whole.info.class_names or ())
        if not {*own} & {*class_names} and own == [str(number) for number in range(len(own))]:
            own = class_names[: len(own)]  # the data has no names
        for name in own:
            if name not in class_names:
                hint = suggest(name, class_names)
                raise UsageError(f"the data has a class {name!r}, unknown to the model; {hint}")
        self.info, self._whole = whole.info, whole
        self._numbers = np.array([class_names.index(name) for name in own])

    def reader(self, split: str) -> Any:
        read = self._whole.reader(split)

        def renumbered(position: tf.Tensor) -> Example:
            example = read(position)
            return {**example, "label": tf.gather(self._numbers, example["label"])}

        return renumbered

    def columns(self, split: str) -> Mapping[str, np.ndarray]:
        columns = self._whole.columns(split)
        return {**columns, "label": self._numbers[columns["label"]]}

    def location(self, id: int) -> str:
        return self._whole.location(id)


def evaluated(model: SteppedModel, task: Task, found: Examples, options: Train) -> Evaluation:
    """The answers of a network and their metrics, with the loss and the metrics of its run."""
    split, source, examples = found
    if model.step is None:
        try:
            loss = model_builder.loss_of(task, options, model.ends_in) or task.loss()
            added = model_builder.metrics_of(task, options)
            step: Any = SimpleNamespace(loss=loss, added_metrics=added, metrics=[], compiled={})
            model.step = step
        except UsageError as error:  # they were objects of another process
            say("note", f"without the loss and the metrics of the run: {error}")
    columns = evaluate.answers(model, task, batching.evaluation(examples, options))
    metrics = evaluate.measured(model, task, columns)
    return Evaluation(split, task, metrics, columns, examples, source.location)


def evaluated_export(directory: Path, data: Any, split: str | None) -> tuple[str, Evaluation]:
    """The name of an exported model, and its answers to labelled data with their metrics.

    Raises UsageError if there is no such model, or if its task is of another kind.
    """
    version = repository.chosen(directory)
    about = version_manifest.about(version)
    if "metadata" not in about:
        raise UsageError(f"{version} does not say what it was trained for; evaluate its run")
    if data is None:
        raise UsageError(f"{version} needs labelled data: class folders, or an .npz file")
    task = registry.call("tasks", about["task"], {}, about["metadata"])
    client, parts = Client(version), []
    name, source, examples = other(data, task, split)
    for rows in np.split(np.arange(len(examples)), range(256, len(examples), 256)):
        batch = examples.take(rows)
        answer = client.predict(**task.requests(batch)["serving_default"])
        tensors = {name: tf.constant(values) for name, values in batch.items()}
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
    return about["name"], Evaluation(name, task, metrics, columns, examples, source.location)
