"""Predictions for files: chooses a signature that accepts them, and converts replies to records."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.serving import file_inputs, signatures
from pipeline.serving.client import Client
from pipeline.serving.file_inputs import Item
from pipeline.serving.signatures import INVALID_ARGUMENT, ServingError, Signature
from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError


def predict(
    model: str | Path | Client,
    words: Sequence[str | Path],
    *,
    top: int = 1,
    batch_size: int = 32,
    timeout: float = 30.0,
) -> Iterator[dict[str, Any]]:
    """Yields a model's answers to files, one at a time.

    Args:
        model: Directory or address of a model, as for `Client`, or a client.
        words: Image files, or directories or patterns of them; for a model that takes feature
            vectors, `.csv` or `.npy` files.
        top: Number of most probable classes to list.
        batch_size: Images or rows per request.
        timeout: Timeout of a request, in seconds.

    Returns:
        A record of JSON values for each image or row, in order. For each image `file`, `label`,
        `class` and `probability`, and with `top` above 1 also `top`: a list of `label` and
        `probability`, the most probable first. For each row `file`, `row` and the outputs of the
        model. For an example that cannot be read, or that the model rejects, `file` and `error`.

    Raises:
        ServingError: The server stopped responding.
        UsageError: The model or the files do not exist, or the model takes neither images nor
            feature vectors, or ranks fewer classes.
    """
    client = model if isinstance(model, Client) else Client(model, timeout)
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
        given = " ".join(map(str, words))[:200]
        raise UsageError(f"{given} contains no files; {client.model} takes {taken}")
    if width is None:
        items = file_inputs.images(names)
    else:
        items = file_inputs.rows(names, width, client.feature_names)
    answer = functools.partial(_answers, client, signature, name, top)
    return _records(file_inputs.batches(items, batch_size), answer)


def _records(
    batches: Iterable[list[Item]], answer: Callable[[list[Item]], list[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    for batch in batches:
        answered = iter(answer([item for item in batch if not item.error]))
        for item in batch:
            yield {**item.name, "error": item.error} if item.error else next(answered)


def _answers(
    client: Client, signature: str, name: str, top: int, items: list[Item]
) -> list[dict[str, Any]]:
    """Sends one request; if it is rejected, sends its halves, to find the invalid examples."""
    if not items:
        return []
    try:
        outputs = client.predict(signature, **{name: [item.value for item in items]})
    except ServingError as error:
        if error.status != INVALID_ARGUMENT:
            raise
        if len(items) == 1:
            return [{**items[0].name, "error": error.message}]
        half = len(items) // 2
        answer = functools.partial(_answers, client, signature, name, top)
        return answer(items[:half]) + answer(items[half:])
    with signatures.reading_reply(client.model):
        rows = [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]
        return [item.name | _record(row, top) for item, row in zip(items, rows, strict=True)]


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
