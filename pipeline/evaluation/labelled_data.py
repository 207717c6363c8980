"""Labelled data for a trained model: loads it, and evaluates the model on it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import data_path, objects, registry
from pipeline.config.sections import TrainConfig
from pipeline.contracts import Example, Source, Task
from pipeline.data import batching, decoder_warnings, in_memory, split_names
from pipeline.data.example_store import OnTheFly, decoded_specs, short_columns
from pipeline.data.raw_split import RawSplit
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.evaluation.answers import Evaluation
from pipeline.evaluation.evaluate import Forward
from pipeline.serving import version_manifest
from pipeline.training.train_step import forward
from pipeline.utils import tf_paths
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, suggest
from pipeline.utils.tf_data import is_short

Examples = tuple[Mapping[str, Split], Callable[[int], str]]
"""Decoded examples of each split, and a function from an id to the example's name."""


def load_splits(data: Any, task: Task) -> Examples:
    """Loads labelled data for a task: whatever `fit` takes as `data`, or a path.

    Classes are matched by name. Raises UsageError if a class is unknown to the model,
    or if the data is of another kind.
    """
    names = task.metadata.get("class_names") or ()
    source = _source(data, names)
    data_names = list(source.info.class_names or ()) if names else []
    for name in data_names:
        if name not in names:
            hint = suggest(name, names)
            raise UsageError(
                f"the data has a class {name!r}, unknown to the model; {hint}"
            )
    labels = np.array([names.index(name) for name in data_names])
    decoder: Any = _Decoder(task, labels, casts=_needs_cast(source, task))
    specs = _specs(source, task, decoder)
    splits = {}
    for split in source.info.splits:
        name = split if len(source.info.splits) > 1 else "data"
        columns = source.columns(split)
        short = {field: columns[field] for field in columns if field in specs}
        if data_names:
            short["label"] = _labels_of_model(short, labels, source)
        positions = np.arange(len(columns["id"]))
        if any(is_short(specs[field]) for field in specs.keys() - short.keys()):
            made = short_columns(source, decoder, split, columns, positions)
            short = {**made, **short}
        task.check(short, name, source.location)
        store = OnTheFly(source, decoder, split, specs, short, "remove it")
        raw_split = RawSplit(source, split, positions, columns)
        splits[name] = Split(store, positions, raw_split)
    return splits, source.location


class _Decoder:
    """Decodes examples of other data as the task does, with the labels of the model."""

    def __init__(self, task: Task, labels: np.ndarray, casts: bool) -> None:
        self._task = task
        self._labels = labels
        """Maps labels of the data to labels of the model; empty if they are equal."""
        self._casts = casts

    def decode(self, example: Example) -> Example:
        changes = {}
        if len(self._labels):
            changes["label"] = tf.gather(self._labels, example["label"])
        if self._casts:
            changes["image"] = tf.cast(example["image"], tf.uint8)
        return self._task.decode({**example, **changes})


def _source(data: Any, names: Sequence[str]) -> Source:
    """Creates a source of the data for a model with these class names."""
    if isinstance(data, str | Path):
        options = data_path.source(Path(data), names)
        name = options.pop("name")
        if names and name == "arrays":
            options["class_names"] = tuple(names)
        return registry.call("sources", name, options)
    name = objects.name_of(data, "sources")
    takes_names = "class_names" in registry.find("sources", name).options
    options = {}
    if names and takes_names and in_memory.find_class_names(data) is None:
        options["class_names"] = names
    return registry.call("sources", name, options)


def _needs_cast(source: Source, task: Task) -> bool:
    """Whether the images are floats that must be converted to uint8."""
    image = source.info.fields.get("image")
    if image is None or image.dtype != tf.float32:
        return False
    return _image_dtype(task) == "uint8" and _are_pixels(source)


def _image_dtype(task: Task) -> str:
    return task.metadata.get("image_dtype", "uint8")


def _specs(source: Source, task: Task, decoder: Any) -> dict[str, tf.TensorSpec]:
    """Returns the fields of decoded examples; UsageError if the model takes others."""
    try:
        specs = decoded_specs(source, decoder)
    except (LookupError, ValueError):
        inputs = tf.nest.flatten(task.inputs())
        shapes = ", ".join(f"{x.name} {x.shape[1:]}" for x in inputs)
        fields = []
        for name, spec in source.info.fields.items():
            if name != "id":
                fields.append(f"{name} {spec.shape}".removesuffix(" ()"))
        raise UsageError(
            f"the data does not fit the model, which takes {shapes}; the data has"
            f" {', '.join(sorted(fields))}"
        ) from None
    if "image" in specs and specs["image"].dtype.name != _image_dtype(task):
        raise UsageError(
            f"the images are {specs['image'].dtype.name}; the model takes"
            f" {_image_dtype(task)}; scale, round and convert them, or give the path of"
            " their files"
        )
    return specs


def _labels_of_model(
    columns: Mapping[str, np.ndarray], labels: np.ndarray, source: Source
) -> np.ndarray:
    """Converts the labels of the data to labels of the model."""
    label = columns["label"]
    for row in np.flatnonzero((label < 0) | (label >= len(labels))):
        where = source.location(int(columns["id"][row]))
        raise UsageError(
            f"the label of {where} must be from 0 to {len(labels) - 1}; got"
            f" {label[row]}"
        )
    return labels[label]


def _are_pixels(source: Source) -> bool:
    """Whether images are whole numbers from 0 to 255.

    If all are 0 or 1, they have probably been scaled.
    """
    highest = []
    for split in source.info.splits:
        for batch in source.examples(split).batch(256):
            highest.append(_highest_pixel(batch["image"].numpy()))
    return bool(np.max(highest) > 1)


def _highest_pixel(images: np.ndarray) -> float:
    """Returns the highest value; NaN if a value is not a whole number from 0 to 255."""
    whole = images.clip(0, 255).round()
    return images.max() if (images == whole).all() else np.nan


def evaluate_split(
    model: Any,
    task: Task,
    examples: Examples,
    split: str | None,
    options: TrainConfig,
    forward: Forward = forward,
) -> Evaluation:
    """Evaluates a network on a split.

    Args:
        model: The network.
        task: Its task.
        examples: The result of `load_splits`, or the splits of a run.
        split: Name of the split; None: test, or else validation, train or all data.
        options: The options of its training.
        forward: The function that calls the network.
    """
    splits, locate = examples
    name = split or split_names.evaluation_split(splits) or "data"
    if name not in splits:
        raise UsageError(f"the data has no split {name!r}; {suggest(name, splits)}")
    store = splits[name].store
    batches = batching.evaluation(splits[name], options)
    with decoder_warnings.collect() as warned:
        answers = evaluate.answers(model, task, batches, forward)
    if isinstance(store, OnTheFly):
        for note in warned.notes(store, locate):
            say(note.name, note)
    metrics = evaluate.compute_metrics(model, task, answers)
    return Evaluation(name, task, metrics, answers, splits[name], locate)


class _ExportedNetwork:
    """An exported version that is called like the trained network."""

    step = None  # it is not trained

    def __init__(self, version: Path, task: Task) -> None:
        with tf_paths.literal(version) as path:
            # Its variables live as long as this object.
            self._loaded = tf.saved_model.load(path)
        self._serve = self._loaded.signatures["serving_default"]
        (self._name,) = self._serve.structured_input_signature[1]
        self._temperature = getattr(task, "temperature", 1.0)

    def forward(self, task: Task, model: Any, batch: Example) -> tuple[Any, Any, Any]:
        """Like `train_step.forward`, for raw inputs, which the version prepares."""
        inputs, y, weight = task.target(batch, batch["id"])
        answer = self._serve(**{self._name: inputs})
        if "prediction" in answer:
            return y, answer["prediction"][:, None], weight
        # Logits up to a constant, on which neither the loss nor the calibration
        # depends.
        logits = tf.math.log(tf.maximum(answer["probabilities"], 1e-38))
        return y, logits * self._temperature, weight


def evaluate_export(version: Path, data: Any, split: str | None) -> Evaluation:
    """Evaluates an exported version on a split of labelled data."""
    manifest = version_manifest.properties(version)
    if "metadata" not in manifest:
        raise UsageError(f"{version} does not describe its task; evaluate its run")
    task = registry.call("tasks", manifest["task"], {}, manifest["metadata"])
    network = _ExportedNetwork(version, task)
    examples = load_splits(data, task)
    return evaluate_split(
        network, task, examples, split, TrainConfig(), network.forward
    )
