"""Which signature of a model takes files, and what its answers say of each of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.serving import file_inputs, signatures
from pipeline.serving.client import Client
from pipeline.serving.file_inputs import Item
from pipeline.serving.signatures import INVALID_ARGUMENT, ServingError, Signature
from pipeline.utils.errors import UsageError


class Question:
    """What is to be sent to a model, as its signatures say.

    Args:
        client: Asks it.
        top: So many of the most probable classes.

    Raises:
        ServingError: It does not answer.
        UsageError: It takes neither image files nor rows of numbers, or names fewer classes.
    """

    def __init__(self, client: Client, top: int) -> None:
        self._client, self._top = client, top
        known = client.metadata()
        self._signature, self._input, self._width = _takes(known, client.model)
        self._columns = client.feature_names
        most = _most(known[self._signature])
        if most is not None and top > most:
            raise UsageError(f"--top must be at most {most}: {client.model} names no more classes")

    @property
    def endings(self) -> tuple[str, ...]:
        """Of the names of files that can be asked about."""
        return file_inputs.IMAGES if self._width is None else file_inputs.TABLES

    def answers(self, names: Sequence[str], batch_size: int) -> Iterator[dict[str, Any]]:
        """A record for each image or row, in their order.

        Args:
            names: Of files.
            batch_size: Examples in one request.

        Yields:
            For each image `file`, `label`, `class` and `probability`, and with `top` above 1 also
            `top`: a list of `label` and `probability`, the most probable first. For each row
            `file`, `row` and the outputs of the model. For what cannot be read, or what the model
            refuses, `file` and `error`. All are values of JSON.

        Raises:
            ServingError: The server gave up.
        """
        width = self._width
        items = (
            file_inputs.images(names)
            if width is None
            else file_inputs.rows(names, width, self._columns)
        )
        for batch in file_inputs.ahead(file_inputs.batches(items, batch_size)):
            answered = iter(self._ask([item for item in batch if not item.error]))
            for item in batch:
                yield {**item.name, "error": item.error} if item.error else next(answered)

    def _ask(self, items: list[Item]) -> list[dict[str, Any]]:
        """One request; where it is refused, halves of it, until what is broken stands alone."""
        if not items:
            return []
        values = [item.value for item in items]
        try:
            outputs = self._client.predict(
                self._signature,
                **{self._input: values if self._width is None else np.stack(values)},
            )
        except ServingError as error:
            if error.status != INVALID_ARGUMENT:
                raise
            if len(items) == 1:
                return [{**items[0].name, "error": error.message}]
            half = len(items) // 2
            return self._ask(items[:half]) + self._ask(items[half:])
        try:
            if not outputs or any(len(column) != len(items) for column in outputs.values()):
                raise ValueError("another number of answers")
            rows = [
                {name: column[at] for name, column in outputs.items()} for at in range(len(items))
            ]
            return [i.name | _record(row, self._top) for i, row in zip(items, rows, strict=True)]
        except signatures.STRANGE:
            said = f"its answer to {len(items)} examples is not one that signatures can give"
            raise ServingError(self._client.model, "UNKNOWN", said) from None


def _takes(known: Mapping[str, Signature], model: str) -> tuple[str, str, int | None]:
    """(signature, its input, numbers in a row or None for image files)."""
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
        f"{model} takes neither image files nor rows of numbers: its serving_default takes "
        f"{takes}; pipeline.serving.client asks any model"
    )


def _most(signature: Signature) -> int | None:
    """How many classes it names; None where only an answer tells."""
    if "top_labels" not in signature.outputs:
        return 1
    shape = signature.outputs["top_labels"].shape
    return shape[-1] if shape else None


def _record(outputs: Mapping[str, Any], top: int) -> dict[str, Any]:
    """One example's answer as JSON values."""
    if not {"label", "class", "probabilities"} <= set(outputs):
        return {name: _value(value) for name, value in outputs.items()}
    place = int(outputs["class"])
    record = {
        "label": outputs["label"],
        "class": place,
        "probability": signatures.shortest(outputs["probabilities"][place]),
    }
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
