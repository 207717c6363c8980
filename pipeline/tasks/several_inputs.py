"""A dictionary of inputs: each is an input of its own, with the fields `NAME/...`."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.contracts import (
    Decision,
    Example,
    Input,
    Metadata,
    Request,
    ServingInput,
    TrainingExamples,
)
from pipeline.utils.console import join_words
from pipeline.utils.errors import UsageError


class SeveralInputs(Input):
    """The network gets a dictionary, by the names of the parts.

    The metadata of the parts are in `inputs`, by name.
    """

    decodes_batches = True  # if all parts do

    def __init__(self, metadata: Metadata, parts: Mapping[str, Input]) -> None:
        super().__init__(metadata)
        self.parts = dict(parts)
        self.decodes_batches &= all(part.decodes_batches for part in parts.values())
        compared: list[str] = []
        for name, part in parts.items():
            compared += [f"{name}/{field}" for field in part.compared or ()]
        self.compared = tuple(compared)

    @property
    def title(self) -> str:
        """Such as "a (image) and b (features)"."""
        titles = [f"{name} ({part.title})" for name, part in self.parts.items()]
        return join_words(titles)

    def with_metadata(self, metadata: Metadata) -> "SeveralInputs":
        parts = {}
        for name, part in self.parts.items():
            parts[name] = part.with_metadata(metadata["inputs"][name])
        return SeveralInputs(metadata, parts)

    def learn(self, examples: TrainingExamples) -> Metadata:
        inputs = {}
        for name, part in self.parts.items():
            learned = part.learn(_Part(examples, name))
            inputs[name] = {**self.metadata["inputs"][name], **learned}
        return {"inputs": inputs}

    @property
    def decoders(self) -> list[Any]:
        return list(self.parts.values())

    @property
    def decode_metadata(self) -> Metadata:
        inputs = {name: part.decode_metadata for name, part in self.parts.items()}
        return {**self.metadata, "inputs": inputs}

    def decode(self, example: Example) -> tuple[Example, None]:
        fields: Example = {}
        for name, part in self.parts.items():
            decoded, _ = part.decode(select_part(example, name))
            fields |= {f"{name}/{field}": value for field, value in decoded.items()}
        return fields, None

    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        for name, part in self.parts.items():
            try:
                part.check(
                    {**select_part(columns, name), "id": columns["id"]}, split, locate
                )
            except UsageError as error:
                raise UsageError(f"input {name!r}: {error}") from None

    def review(self) -> list[Decision]:
        notes = []
        for name, part in self.parts.items():
            for note in part.review():
                notes.append(
                    Decision(f"{note.name} of {name}", note.value, note.reason)
                )
        return notes

    def prepare(self, batch: Example) -> Example:
        prepared = dict(batch)
        for name, part in self.parts.items():
            fields = part.prepare(select_part(batch, name))
            prepared |= {f"{name}/{field}": value for field, value in fields.items()}
        return prepared

    def inputs(self) -> dict[str, Any]:
        return {name: _named(part.inputs(), name) for name, part in self.parts.items()}

    def network_inputs(self, batch: Example) -> dict[str, tf.Tensor]:
        inputs = {}
        for name, part in self.parts.items():
            inputs[name] = part.network_inputs(select_part(batch, name))
        return inputs

    def signatures(self) -> list[ServingInput]:
        """`serving_default` takes an argument for each part, by its name."""
        specs = {}
        readers: list[tuple[str, Callable[..., Example]]] = []
        requests: list[tuple[str, Callable[..., Request]]] = []
        for name, part in self.parts.items():
            default = part.signatures()[0]
            (spec,) = default.specs.values()
            specs[name] = tf.TensorSpec(spec.shape, spec.dtype, name=name)
            readers.append((name, default.read))
            requests.append((name, default.request))

        def read(*arguments: tf.Tensor) -> Example:
            batch: Example = {}
            for (name, reader), argument in zip(readers, arguments, strict=True):
                fields = reader(argument)
                batch |= {f"{name}/{field}": value for field, value in fields.items()}
            return batch

        def request(columns: Mapping[str, np.ndarray]) -> Request:
            arguments = {}
            for name, make in requests:
                (arguments[name],) = make(select_part(columns, name)).values()
            return arguments

        return [ServingInput("serving_default", specs, read, request)]

    def standalone(self) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs = {}
        prepared = {}
        for name, part in self.parts.items():
            raw, tensor = part.standalone()
            named = _named(raw, name)
            inputs[name] = named
            part_model = keras.Model(raw, tensor, name=f"prepare_{name}")
            prepared[name] = named if raw is tensor else part_model(named)
        return inputs, prepared

    def limitations(self) -> list[str]:
        sentences: dict[str, None] = {}  # ordered, without duplicates
        for part in self.parts.values():
            sentences |= dict.fromkeys(part.limitations())
        return list(sentences)


class _Part(TrainingExamples):
    """The fields of one part of the training examples."""

    def __init__(self, examples: TrainingExamples, name: str) -> None:
        self._examples = examples
        self._name = name

    def __len__(self) -> int:
        return len(self._examples)

    @property
    def short_fields(self) -> frozenset[str]:
        return frozenset(
            select_part(dict.fromkeys(self._examples.short_fields), self._name)
        )

    def column(self, name: str) -> np.ndarray:
        return self._examples.column(f"{self._name}/{name}")

    def batches(
        self, fields: Collection[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        wanted = fields and {f"{self._name}/{field}" for field in fields}
        for batch in self._examples.batches(wanted):
            yield select_part(batch, self._name)


def _named(tensors: Any, name: str) -> Any:
    """New inputs of a network like one of a part, or like its dictionary of them."""
    if isinstance(tensors, Mapping):
        return {key: _named(tensor, f"{name}_{key}") for key, tensor in tensors.items()}
    return keras.Input(batch_shape=tensors.shape, dtype=tensors.dtype, name=name)


def select_part(fields: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The fields of a part, without its name."""
    prefix = f"{part}/"
    selected = {}
    for name, value in fields.items():
        if name.startswith(prefix):
            selected[name.removeprefix(prefix)] = value
    return selected
