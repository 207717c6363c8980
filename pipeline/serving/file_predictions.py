"""Predictions for files: chooses a signature that accepts them, and converts replies to records."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.serving import file_inputs, signatures
from pipeline.serving.file_inputs import Item
from pipeline.serving.signatures import INVALID_ARGUMENT, ServingError, Signature
from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError


def predict(
    client: Any, words: Sequence[str | Path], *, top: int = 1, batch_size: int = 32
) -> Iterator[dict[str, Any]]:
    """Yields a model's answers to files, one at a time.

    Args:
        client: A `Client`, or a model of this process with the same methods.
        words: Image files, or directories or patterns of them; for a model that takes feature
            vectors, `.csv` or `.npy` files.
        top: Number of most probable classes to list.
        batch_size: Images or rows per request.

    Returns:
        A record of JSON values for each image or row, in order. For each image `file`, `label`,
        `class` and `probability`, and with `top` above 1 also `top`: a list of `label` and
        `probability`, the most probable first. For each row `file`, `row` and the outputs of the
        model. For an example that cannot be read, or that the model rejects, `file` and `error`.

    Raises:
        ServingError: The server stopped responding.
        UsageError: The files do not exist, or the model takes neither images nor feature vectors,
            or ranks fewer classes.
    """
    known = client.metadata()
    signature, name, width = _takes(known, client.model)
    labels = known[signature].outputs.get("top_labels")
    most = 1 if labels is None else labels.shape[-1] if labels.shape else None
    if most is not None and top > most:
        raise UsageError(f"--top must be at most {most}, the classes that {client.model} ranks")
    endings = image_formats.SUFFIXES if width is None else file_inputs.TABLES
    names = file_inputs.find(map(str, words), endings)
    if not names:
        taken = ", ".join(f"*{ending}" for ending in endings)
        given = " ".join(map(str, words))[:200] or "the list"
        raise UsageError(f"{given} contains no files; {client.model} takes {taken}")
    if width is None:
        items = file_inputs.images(names)
    else:
        items = file_inputs.rows(names, width, client.feature_names)

    def ask(items: list[Item]) -> list[dict[str, Any]]:
        outputs = client.predict(signature, **{name: [item.value for item in items]})
        with signatures.reading_reply(client.model):
            values = zip(*outputs.values(), strict=True)
            rows = [_record(dict(zip(outputs, row, strict=True)), top) for row in values]
            return [item.name | row for item, row in zip(items, rows, strict=True)]

    return _records(items, batch_size, ask)


_Ask = Callable[[list[Item]], list[dict[str, Any]]]


def _records(items: Iterator[Item], batch_size: int, ask: _Ask) -> Iterator[dict[str, Any]]:
    while batch := list(itertools.islice(items, batch_size)):
        answered = iter(_answers([item for item in batch if not item.error], ask))
        for item in batch:
            yield {**item.name, "error": item.error} if item.error else next(answered)


def _answers(items: list[Item], ask: _Ask) -> list[dict[str, Any]]:
    """Sends one request; if it is rejected, sends its halves, to find the invalid examples."""
    try:
        return ask(items) if items else []
    except ServingError as error:
        if error.status != INVALID_ARGUMENT:
            raise
        if len(items) == 1:
            return [{**items[0].name, "error": error.message}]
        half = len(items) // 2
        return _answers(items[:half], ask) + _answers(items[half:], ask)


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
    record = {"label": _value(outputs["label"]), "class": index, "probability": probability}
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
