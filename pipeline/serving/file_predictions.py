"""Predictions for files: chooses a signature that accepts them, and converts replies to records."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.serving import file_inputs, signatures
from pipeline.serving.client import Client
from pipeline.serving.file_inputs import Item
from pipeline.serving.signatures import INVALID_ARGUMENT, ServingError, Signature
from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError


class FilePredictor:
    """Sends files to a model, with a signature that accepts them.

    `top` is the number of most probable classes in a record. Raises UsageError if the model does
    not take image files or feature vectors, or returns fewer classes.
    """

    def __init__(self, client: Client, top: int) -> None:
        self._client, self._top = client, top
        known = client.metadata()
        self._signature, self._input, self._width = _takes(known, client.model)
        labels = known[self._signature].outputs.get("top_labels")
        most = 1 if labels is None else labels.shape[-1] if labels.shape else None
        if most is not None and top > most:
            raise UsageError(f"--top must be at most {most}, the classes that {client.model} ranks")

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of the names of files that the model accepts."""
        return image_formats.SUFFIXES if self._width is None else file_inputs.TABLES

    def predict(self, names: Sequence[str], batch_size: int) -> Iterator[dict[str, Any]]:
        """Yields a record of JSON values for each image or row, in order.

        The record of an image contains `file`, `label`, `class` and `probability`, and if `top` is
        more than 1 also `top`, a list of labels and probabilities, the most probable first. The
        record of a row contains `file`, `row` and the outputs of the model. The record of an
        example that cannot be read, or that the model rejects, contains `file` and `error`.
        """
        if self._width is None:
            items = file_inputs.images(names)
        else:
            items = file_inputs.rows(names, self._width, self._client.feature_names)
        for batch in file_inputs.batches(items, batch_size):
            answered = iter(self._predict([item for item in batch if not item.error]))
            for item in batch:
                yield {**item.name, "error": item.error} if item.error else next(answered)

    def _predict(self, items: list[Item]) -> list[dict[str, Any]]:
        """Sends one request; if it is rejected, sends its halves, to find the invalid examples."""
        if not items:
            return []
        values = [item.value for item in items]
        batch = values if self._width is None else np.stack(values)
        try:
            outputs = self._client.predict(self._signature, **{self._input: batch})
        except ServingError as error:
            if error.status != INVALID_ARGUMENT:
                raise
            if len(items) == 1:
                return [{**items[0].name, "error": error.message}]
            half = len(items) // 2
            return self._predict(items[:half]) + self._predict(items[half:])
        with signatures.reading_reply(self._client.model):
            rows = [
                dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)
            ]
            return [
                item.name | _record(row, self._top) for item, row in zip(items, rows, strict=True)
            ]


def _takes(known: Mapping[str, Signature], model: str) -> tuple[str, str, int | None]:
    """Returns (signature, its input, number of features or None for image files)."""
    encoded = known.get("image_bytes")
    if encoded is not None and set(encoded.inputs) == {"image_bytes"}:
        return "image_bytes", "image_bytes", None
    default = known.get("serving_default", Signature({}, {}))
    if len(default.inputs) == 1:
        ((name, field),) = default.inputs.items()
        if field.dtype.kind == "f" and field.shape and len(field.shape) == 2 and field.shape[1]:
            return "serving_default", name, field.shape[1]
    takes = ", ".join(f"{name} {field}" for name, field in default.inputs.items()) or "nothing"
    raise UsageError(
        f"{model} does not take image files or feature vectors, but {takes}; use pipeline.Client"
    )


def _record(outputs: Mapping[str, Any], top: int) -> dict[str, Any]:
    """Returns the answer to one example as JSON values."""
    if not {"label", "class", "probabilities"} <= set(outputs):
        return {name: _value(value) for name, value in outputs.items()}
    index = int(outputs["class"])
    probability = signatures.shortest(outputs["probabilities"][index])
    record = {"label": outputs["label"], "class": index, "probability": probability}
    if top > 1:
        pairs = zip(outputs["top_labels"][:top], outputs["top_scores"][:top], strict=True)
        record["top"] = [{"label": n, "probability": signatures.shortest(p)} for n, p in pairs]
    return record


def _value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_value(one) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, np.float32 | np.float16):
        return signatures.shortest(value)
    return value.item() if isinstance(value, np.generic) else value
