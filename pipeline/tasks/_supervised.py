"""The task of an input and a target."""

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
    ExpectedArguments,
    Info,
    Input,
    LearnedColumn,
    Metadata,
    OutputSpec,
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

_KEPT = ("id", "group", "sample_weight")
"""Fields of a raw example that neither the input nor the target reads."""


def create_input(metadata: Metadata, name: str | None) -> Input:
    """The input of a run; `name` may be an object of this process."""
    if "inputs" not in metadata:
        input = registry.call("inputs", name or metadata["input"], {}, metadata)
        return InputWithColumns(metadata, input) if "input_name" in metadata else input
    parts = {}
    for part, values in metadata["inputs"].items():
        parts[part] = registry.call("inputs", name or values["input"], {}, values)
    return SeveralInputs(metadata, parts)


def create_target(metadata: Metadata, name: str | None) -> Target:
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
        self.input = input or create_input(metadata, None)
        self.objective = target = target or create_target(metadata, None)
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
        truths = self.objective.decode(example, geometry)
        if self.objective.needs_geometry and geometry is not None:
            truths["geometry"] = geometry
        return {**kept, **fields, **truths}

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

    def predict(self, outputs: Any, batch: Example) -> Example:
        return self.objective.predict(outputs, batch)

    def served_predictions(self, served: Example, batch: Example) -> Example:
        return self.objective.served_predictions(served, batch)

    def outputs_of(self, predictions: Example) -> Any:
        return self.objective.outputs_of(predictions)

    def evaluator(self, model: Callable[..., Any] | None = None) -> Evaluator:
        return self.objective.evaluator(model)

    def calibrator(self, model: Callable[..., Any] | None = None) -> Calibrator | None:
        return self.objective.calibrator(model)

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        return self.objective.table(predictions, batch)

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

    def explained_output(self, outputs: Any) -> tf.Tensor | None:
        return self.objective.explained_output(outputs)

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        self.input.draw(axes, example)
        self.objective.draw(axes, example, prediction)

    def draw_truth(self, axes: Any, example: Mapping[str, Any]) -> None:
        self.objective.draw_truth(axes, example)

    def draw_input(self, axes: Any, example: Mapping[str, Any]) -> None:
        self.input.draw(axes, example)

    def html(self, example: Mapping[str, Any]) -> str:
        return self.input.html(example)

    def similarity(self, info: Info) -> Similarity | None:
        return self.input.similarity(info)

    def corruptions(self) -> Mapping[str, Callable[..., Example]]:
        return self.input.corruptions()

    def learned_columns(self) -> list[LearnedColumn]:
        return self.input.learned_columns()

    def prediction_notes(self) -> list[str]:
        return self.objective.prediction_notes()

    def limitations(self) -> list[str]:
        return [*self.objective.limitations(), *self.input.limitations()]

    def serving_inputs(self) -> list[ServingInput]:
        return self.input.signatures()

    def serve(self, model: Callable[..., Any], batch: Example) -> Example:
        inputs = self.input.network_inputs(self.input.prepare(batch))
        outputs = model(inputs, training=False)
        outputs = request_guards.finite(outputs, "outputs of the network")
        return self.objective.serve(outputs, batch)

    def standalone(self, network: keras.Model) -> keras.Model:
        inputs, prepared = self.input.standalone()
        inner = keras.Model(network.inputs, network.outputs[0], name="network")
        outputs = inner(keras.tree.flatten(prepared))
        return keras.Model(inputs, self.objective.standalone(outputs))

    def standalone_loss(self) -> tuple[Any, Any]:
        return self.objective.standalone_loss()

    def user_arguments(
        self, y: Any, outputs: Any, takes: ExpectedArguments
    ) -> tuple[Any, Any]:
        """Labels as whole numbers, unless the function takes them one-hot."""
        expected = self.output
        if expected is None or expected.activation == "linear":
            return y, outputs
        if not takes.logits:
            is_softmax = expected.activation == "softmax"
            activation = tf.nn.softmax if is_softmax else tf.sigmoid
            outputs = activation(tf.cast(outputs, tf.float32))
        if _has_one_class(expected) and takes.labels != "one-hot":
            y = tf.argmax(y, axis=-1)
        return y, outputs


def _has_one_class(expected: OutputSpec) -> bool:
    """Whether each example has one of several classes; y has the fraction of each."""
    return expected.activation == "softmax" and len(expected.shape) == 1


def _plain_name(name: Any, part: Any = None) -> str:
    """The name of an input or target in words, without its module."""
    name = str(name or type(part).__name__)
    return name.rpartition(".")[2].rpartition(":")[2].replace("_", " ")
