"""Columns of a table beside its files or texts, as inputs of one network."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.contracts import (
    Decision,
    Example,
    Info,
    Input,
    LearnedColumn,
    Metadata,
    Request,
    ServingInput,
    Similarity,
    Source,
    TrainingExamples,
)
from pipeline.data import names
from pipeline.layers.columns import CATEGORIES, FEATURES, WORDS, join_features
from pipeline.serving import request_guards
from pipeline.tasks.inputs.table import TableInput
from pipeline.utils.errors import UsageError

_INPUTS = (FEATURES, CATEGORIES, WORDS)


class InputWithColumns(Input):
    """A file or a text, which a model reads, and columns, which join its features.

    Decoded examples have the fields of both.
    """

    def __init__(
        self, metadata: Metadata, input: Input, columns: TableInput | None = None
    ) -> None:
        super().__init__(metadata)
        own = {key: metadata[key] for key in ("columns", "raw") if key in metadata}
        self.input = input
        self.columns = columns or TableInput(own)
        self.decodes_batches = input.decodes_batches
        self.compared = input.compared
        self.not_decoded = input.not_decoded

    @property
    def title(self) -> str:
        return f"{self.input.title} and columns"

    def with_metadata(self, metadata: Metadata) -> "InputWithColumns":
        return InputWithColumns(metadata, self.input.with_metadata(metadata))

    def match(self, source: Source) -> "InputWithColumns":
        columns = self.columns.match(source)
        return InputWithColumns(self.metadata, self.input.match(source), columns)

    def learn(self, examples: TrainingExamples) -> Metadata:
        return {**self.input.learn(examples), **self.columns.learn(examples)}

    @property
    def decoders(self) -> list[Any]:
        return [self.input, self.columns]

    def decode(self, example: Example) -> tuple[Example, tf.Tensor | None]:
        fields, geometry = self.input.decode(example)
        return {**fields, **self.columns.decode(example)[0]}, geometry

    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        self.input.check(columns, split, locate)
        self.columns.check(columns, split, locate)

    def review(self) -> list[Decision]:
        return [*self.input.review(), *self.columns.review()]

    def prepare(self, batch: Example) -> Example:
        return self.columns.prepare(self.input.prepare(batch))

    def inputs(self) -> dict[str, Any]:
        of_input = _named(self.input.inputs(), self._name)
        return {**of_input, **_named(self.columns.inputs(), FEATURES)}

    @property
    def _name(self) -> str:
        """The name of the input if it is a single tensor."""
        tensor = self.input.inputs()
        return "" if isinstance(tensor, Mapping) else str(tensor.name)

    def network_inputs(self, batch: Example) -> dict[str, tf.Tensor]:
        of_input = _named(self.input.network_inputs(batch), self._name)
        return {**of_input, **_named(self.columns.network_inputs(batch), FEATURES)}

    def model_inputs(self, inputs: Mapping[str, Any]) -> Any:
        """The file or text."""
        rest = {key: value for key, value in inputs.items() if key not in _INPUTS}
        return rest[self._name] if self._name else rest

    def join(self, features: Any, inputs: Mapping[str, Any]) -> Any:
        """Joins the columns, which the model did not get, with its features."""
        if isinstance(features, Mapping) or len(features.shape) != 2:
            raise UsageError(
                "--source.columns needs a model that returns one vector of features"
                " for each example; choose another --model, or remove the columns"
            )
        columns = {name: inputs[name] for name in _INPUTS if name in inputs}
        return join_features(features, columns, self.metadata)

    def signatures(self) -> list[ServingInput]:
        """Those of the file or text, with an argument for each column."""
        (of_columns,) = self.columns.signatures()
        return [self._join(part, of_columns) for part in self.input.signatures()]

    def _join(self, part: ServingInput, of_columns: ServingInput) -> ServingInput:
        specs = dict(part.specs)
        ((name, spec),) = specs.items()
        files = part.files
        if spec.dtype == tf.string and not name.endswith("_bytes"):  # a text
            title = names.argument(self.metadata["input_name"])
            specs = {title: tf.TensorSpec(spec.shape, spec.dtype, title)}
            files = ()
        for title in of_columns.specs:
            # Graphs of TensorFlow do not distinguish a and A.
            if title.lower() == next(iter(specs)).lower():
                raise UsageError(
                    f"--source.columns: {title} is an argument of requests already,"
                    " for the file or text beside the columns; rename the column"
                )
        meaning = of_columns.meaning
        if part.meaning:
            meaning = "; ".join([f"`{next(iter(specs))}`: {part.meaning}", meaning])

        def read(first: tf.Tensor, *values: tf.Tensor) -> Example:
            size = tf.shape(first)[0]
            checked = []
            for title, value in zip(of_columns.specs, values, strict=True):
                checked.append(request_guards.count(value, size, title))
            return {**part.read(first), **of_columns.read(*checked)}

        def request(columns: Mapping[str, np.ndarray]) -> Request:
            (value,) = part.request(columns).values()
            return {next(iter(specs)): value, **of_columns.request(columns)}

        return ServingInput(
            part.name,
            {**specs, **of_columns.specs},
            read,
            request,
            files=files,
            meaning=meaning,
            example=of_columns.example,
            optional=of_columns.optional,
        )

    def standalone(self) -> tuple[dict[str, Any], dict[str, Any]]:
        raw, prepared = self.input.standalone()
        raw_columns, columns = self.columns.standalone()
        tensors = keras.tree.flatten([raw, raw_columns])
        inputs = {tensor.name: tensor for tensor in tensors}
        return inputs, {**_named(prepared, self._name), **_named(columns, FEATURES)}

    def similarity(self, info: Info) -> Similarity | None:
        return self.input.similarity(info)

    def learned_columns(self) -> list[LearnedColumn]:
        return self.columns.learned_columns()

    def limitations(self) -> list[str]:
        return [*self.input.limitations(), *self.columns.limitations()]


def _named(tensors: Any, name: str) -> dict[str, Any]:
    """A dictionary of tensors: one tensor by its name."""
    return dict(tensors) if isinstance(tensors, Mapping) else {name: tensors}
