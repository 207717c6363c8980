"""Supervised learning: an input joined with a target, and the most usual pairs."""

import ast
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config import registry
from pipeline.contracts import (
    Calibrator,
    Decision,
    Evaluator,
    Example,
    Info,
    Input,
    LearnedColumn,
    Metadata,
    Panel,
    Score,
    ServingInput,
    Similarity,
    Source,
    Target,
    Task,
    TrainingExamples,
)
from pipeline.serving import request_guards
from pipeline.tasks._input_with_columns import InputWithColumns
from pipeline.tasks._several_inputs import SeveralInputs
from pipeline.utils.columns import Columns
from pipeline.utils.console import join_words
from pipeline.utils.errors import UsageError

_ROW_FIELDS = ("numbers", "strings")  # of the columns of a table
_KEPT = ("id", "group", "sample_weight")
"""Fields of a raw example that neither the input nor the target reads."""


def supervised(
    info: Info | Metadata, parts: Mapping[str, Any] | None = None, /
) -> Task:
    """An input and a target: those of --task.input and --task.target, or those that
    the fields of the source suit.

    Args:
        info: The source's description, or the metadata of a run.
        parts: `input`, such as `image` or `features`, with `input_options`; and
            `target`, such as `classes` or `number`, with `target_options`. Each may be
            missing.

    Raises:
        UsageError: No input or no target suits the source.
    """
    parts = parts or {}
    input = parts.get("input")
    target = parts.get("target")
    if not isinstance(info, Info):
        names = {"input": str(input)} if input and "inputs" not in info else {}
        if target:
            names["target"] = str(target)
        metadata = {**names, **info}
        return Supervised(
            metadata, _create_input(metadata, input), _create_target(metadata, target)
        )
    options = parts.get("input_options", {})
    input_metadata = _input_metadata(info, input, options)
    options = {**options, **parts.get("target_options", {})}
    name = _choose("targets", target, info.fields)
    accepted = _accepted("targets", name, options)
    target_metadata = registry.call("targets", name, accepted, info).metadata
    if common := input_metadata.keys() & target_metadata.keys():
        raise UsageError(f"input and target both have the metadata {common.pop()!r}")
    metadata = {**input_metadata, "target": str(name), **target_metadata}
    return Supervised(
        metadata, _create_input(metadata, input), _create_target(metadata, target)
    )


def image_classification(
    info: Info | Metadata,
    *,
    image_size: tuple[int, int] | None = None,
    raw: bool = False,
) -> Task:
    """One label per image: the input `image` and the target `classes`.

    Args:
        info: The source's description, or the metadata of a run.
        image_size: Height and width to resize images to; None: the size they all have.
        raw: Give the model pixels as they are. Otherwise whole numbers are scaled to
            [0, 1]; floats are never scaled.

    Raises:
        UsageError: A field is missing or has another type, or `image_size` is None
            although images differ in size.
    """
    options: dict[str, Any] = {"raw": raw}
    if image_size is not None:
        options["image_size"] = image_size
    parts = {"input": "image", "input_options": options, "target": "classes"}
    return supervised(info, parts)


def regression(info: Info | Metadata, *, raw: bool = False) -> Task:
    """Numbers from numbers: the input `features` and the target `number`, not scaled.

    Args:
        info: The source's description, or the metadata of a run.
        raw: Give the model features as they are, instead of with mean 0 and deviation
            1.

    Raises:
        UsageError: A field is missing or has another type or shape.
    """
    options = {"raw": raw}
    parts = {
        "input": "features",
        "input_options": options,
        "target": "number",
        "target_options": {"scaled": False},
    }
    return supervised(info, parts)


# As what a source reads its arrays for these tasks.
image_classification.kinds = ("image", "classes")  # type: ignore[attr-defined]
regression.kinds = ("features", "number")  # type: ignore[attr-defined]


def _input_metadata(
    info: Info, name: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The metadata of the input for a source; of each part if there are several."""
    parts: dict[str, dict[str, tf.TensorSpec]] = {}
    for field, spec in info.fields.items():
        part, separator, kind = field.rpartition("/")
        if separator:
            parts.setdefault(part, {})[kind] = spec
    if not parts and info.columns and info.input_name:
        fields = {f: s for f, s in info.fields.items() if f not in _ROW_FIELDS}
        part_info = dataclasses.replace(info, fields=fields, columns=None)
        metadata = _metadata_of_part(part_info, name, options)
        raw = bool(options.get("raw"))
        columns = registry.call("inputs", "table", {"raw": raw}, info).metadata
        metadata = {**metadata, **columns, "input_name": info.input_name}
        _create_input(metadata, name).signatures()  # raises UsageError for equal names
        return metadata
    if not parts:
        return _metadata_of_part(info, name, options)
    inputs = {}
    for part, fields in parts.items():
        part_info = dataclasses.replace(info, fields=fields, feature_names=None)
        inputs[part] = _metadata_of_part(part_info, name, options)
    return {"inputs": inputs, "raw": bool(options.get("raw"))}


def _metadata_of_part(
    info: Info, name: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    name = _choose("inputs", name, info.fields)
    accepted = _accepted("inputs", name, options)
    if "image_size" in options and "image_size" not in accepted:
        raise UsageError(f"--data.image-size: the input {name} has no size; remove it")
    metadata = registry.call("inputs", name, accepted, info).metadata
    return {"input": str(name), **metadata}


def _choose(kind: str, name: str | None, fields: Mapping[str, tf.TensorSpec]) -> str:
    """The name of the input or target that these fields suit, unless it is given."""
    if name is not None:
        return name
    noun = registry.REGISTRIES[kind][1]
    fields_by_name = {}
    for candidate in registry.names(kind):
        default = registry.find(kind, candidate).options["field"].default
        fields_by_name[candidate] = ast.literal_eval(default or "None")
    matches = [key for key, field in fields_by_name.items() if field in fields]
    if len(matches) == 1:
        return matches[0]
    listing = ", ".join(field for field in fields if field != "id")
    if not matches:
        choices = ", ".join(f"{field} ({key})" for key, field in fields_by_name.items())
        raise UsageError(
            f"the source has the fields {listing or 'id'}, of which none is a known"
            f" {noun}: {choices}; set --task.{noun} and --task.{noun}-options"
            " field=NAME"
        )
    names = " or ".join(matches)
    raise UsageError(
        f"the source has the fields {listing}, of which several could be the {noun};"
        f" set --task.{noun} {names}"
    )


def _accepted(kind: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the input or target has."""
    function_options = registry.find(kind, name).options
    return {key: value for key, value in options.items() if key in function_options}


def _create_input(metadata: Metadata, name: str | None) -> Input:
    """The input of a run; `name` may be an object of this process."""
    if "inputs" not in metadata:
        input = registry.call("inputs", name or metadata["input"], {}, metadata)
        return InputWithColumns(metadata, input) if "input_name" in metadata else input
    parts = {}
    for part, values in metadata["inputs"].items():
        parts[part] = registry.call("inputs", name or values["input"], {}, values)
    return SeveralInputs(metadata, parts)


def _create_target(metadata: Metadata, name: str | None) -> Target:
    return registry.call("targets", name or metadata["target"], {}, metadata)


class Supervised(Task):
    """Joins an input and a target, which do not know each other.

    Without them, they are created from their names in the metadata.
    """

    decodes_batches = True  # if its input and its target do

    def __init__(
        self,
        metadata: Metadata,
        input: Input | None = None,
        target: Target | None = None,
    ) -> None:
        super().__init__(metadata)
        self.input = input or _create_input(metadata, None)
        self.objective = target = target or _create_target(metadata, None)
        self.selection_metric = target.selection_metric
        self.output = target.output
        self.spatial_fields = target.spatial_fields
        self.compared = self.input.compared
        self.decodes_batches &= self.input.decodes_batches and target.decodes_batches

    @property
    def title(self) -> str:
        """Such as "classes from image" or "number from a (image) and b (features)"."""
        target = _plain_name(self.metadata.get("target"), self.objective)
        if not isinstance(self.input, SeveralInputs):
            input = _plain_name(self.metadata.get("input"), self.input)
            beside = " and columns" if "input_name" in self.metadata else ""
            return f"{target} from {input}{beside}"
        parts = []
        for part, values in self.metadata["inputs"].items():
            parts.append(f"{part} ({_plain_name(values['input'])})")
        return f"{target} from {join_words(parts)}"

    @property
    def decode_metadata(self) -> Metadata:
        names = self.not_decoded | self.input.not_decoded | self.objective.not_decoded
        metadata = {
            name: value for name, value in self.metadata.items() if name not in names
        }
        if isinstance(self.input, SeveralInputs):
            metadata |= self.input.decode_metadata
        return metadata

    def with_metadata(self, changes: Metadata) -> "Supervised":
        metadata = {**self.metadata, **changes}
        input = self.input.with_metadata(metadata)
        return type(self)(metadata, input, type(self.objective)(metadata))

    @property
    def decoders(self) -> list[Any]:
        return [self, *self.input.decoders, self.objective]

    def match(self, source: Source) -> "Supervised":
        input = self.input.match(source)
        return type(self)(self.metadata, input, self.objective.match(source))

    def learn(self, examples: TrainingExamples) -> Metadata:
        return {**self.input.learn(examples), **self.objective.learn(examples)}

    def decode(self, example: Example) -> Example:
        kept = {name: example[name] for name in _KEPT if name in example}
        fields, geometry = self.input.decode(example)
        answers = self.objective.decode(example, geometry)
        if self.objective.needs_geometry and geometry is not None:
            answers["geometry"] = geometry
        return {**kept, **fields, **answers}

    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        self.input.check(columns, split, locate)
        self.objective.check(columns, split, locate)

    def review(self, columns: Mapping[str, np.ndarray]) -> list[Decision]:
        return [*self.input.review(), *self.objective.review(columns)]

    def class_counts(self, columns: Mapping[str, np.ndarray]) -> dict[str, int] | None:
        return self.objective.class_counts(columns)

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        return self.objective.describe(columns)

    def prepare(self, batch: Example) -> Example:
        return self.input.prepare(batch)

    def target(self, batch: Example, seeds: tf.Tensor) -> tuple[Any, Any, tf.Tensor]:
        return (
            self.input.network_inputs(batch),
            self.objective.y(batch),
            batch["weight"],
        )

    def inputs(self) -> Any:
        return self.input.inputs()

    def probe_inputs(self) -> Any:
        return self.input.probe_inputs()

    def model_inputs(self, inputs: Any) -> Any:
        return self.input.model_inputs(inputs)

    def head(self, features: Any, inputs: Any) -> Any:
        """`features` is a tensor, or a dictionary of `features` and their `mask`."""
        features = self.input.join(features, inputs)
        if isinstance(features, Mapping):
            return self.objective.head(features["features"], features.get("mask"))
        return self.objective.head(features)

    def loss(self) -> Callable[[Any, Any], tf.Tensor]:
        return self.objective.loss()

    def training_loss(
        self,
        label_smoothing: float,
        class_weight: Mapping[str, float],
        loss: Callable[[Any, Any], tf.Tensor] | None = None,
    ) -> Callable[[Any, Any], tf.Tensor]:
        return self.objective.training_loss(label_smoothing, class_weight, loss)

    def metrics(self) -> list[keras.metrics.Metric]:
        return self.objective.metrics()

    def answer(self, outputs: Any, batch: Example) -> Example:
        return self.objective.answer(outputs, batch)

    def served_answers(self, served: Example, batch: Example) -> Example:
        return self.objective.served_answers(served, batch)

    def outputs_of(self, answers: Example) -> Any:
        return self.objective.outputs_of(answers)

    def evaluator(self, model: Callable[..., Any] | None = None) -> Evaluator:
        return self.objective.evaluator(model)

    def calibrator(self, model: Callable[..., Any] | None = None) -> Calibrator | None:
        return self.objective.calibrator(model)

    def table(self, answers: Example, batch: Example) -> dict[str, np.ndarray]:
        return self.objective.table(answers, batch)

    def readable(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.objective.readable(columns)

    def tables(self, columns: Mapping[str, np.ndarray]) -> dict[str, Columns]:
        return self.objective.tables(columns)

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        return self.objective.scores(rows)

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        return self.objective.summary(metrics, split)

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        return self.objective.no_better_than(metrics)

    def pictures(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        return self.objective.pictures(metrics, columns)

    def headline(self, metrics: Mapping[str, Any]) -> str:
        return self.objective.headline(metrics)

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        return self.objective.panels(metrics, columns)

    def truth(self, example: Mapping[str, Any]) -> str:
        return self.objective.truth(example)

    def explained_output(self, outputs: Any, answered: Any = None) -> tf.Tensor | None:
        return self.objective.explained_output(outputs, answered)

    def draw(
        self, axes: Any, example: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> None:
        self.input.draw(axes, example)
        self.objective.draw(axes, example, answer)

    def draw_truth(self, axes: Any, example: Mapping[str, Any]) -> None:
        self.objective.draw_truth(axes, example)

    def draw_input(self, axes: Any, example: Mapping[str, Any]) -> None:
        self.input.draw(axes, example)

    def html(self, example: Mapping[str, Any]) -> str:
        return self.input.html(example)

    def occlusions(
        self, example: Mapping[str, Any]
    ) -> tuple[list[str], dict[str, np.ndarray]] | None:
        return self.input.occlusions(example)

    def similarity(self, info: Info) -> Similarity | None:
        return self.input.similarity(info)

    def corruptions(self) -> Mapping[str, Callable[..., Example]]:
        return self.input.corruptions()

    def learned_columns(self) -> list[LearnedColumn]:
        return self.input.learned_columns()

    def answer_notes(self) -> list[str]:
        return self.objective.answer_notes()

    def limitations(self) -> list[str]:
        return [*self.objective.limitations(), *self.input.limitations()]

    def serving_inputs(self) -> list[ServingInput]:
        return self.input.signatures()

    def serve(self, model: Callable[..., Any], batch: Example) -> Example:
        inputs = self.input.network_inputs(self.input.prepare(batch))
        outputs = model(inputs, training=False)
        outputs = request_guards.finite(outputs, "outputs of the network")
        return self.objective.serve(outputs, batch)

    def standalone(self, network: keras.Model, output_kind: str) -> keras.Model:
        inputs, prepared = self.input.standalone()
        inner = keras.Model(network.inputs, network.outputs[0], name="network")
        outputs = inner(keras.tree.flatten(prepared))
        return keras.Model(inputs, self.objective.standalone(outputs, output_kind))

    def standalone_loss(self, output_kind: str) -> tuple[Any, Any]:
        return self.objective.standalone_loss(output_kind)


def _plain_name(name: Any, part: Any = None) -> str:
    """The name of an input or target in words, without its module."""
    name = str(name or type(part).__name__)
    return name.rpartition(".")[2].rpartition(":")[2].replace("_", " ")
