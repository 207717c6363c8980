"""Predictions for files: reads images and rows of tables, and converts replies to
records.
"""

import csv
import glob
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.serving import signatures
from pipeline.serving.signatures import INVALID_ARGUMENT, ServingError, Signature
from pipeline.utils import image_formats, safe_io
from pipeline.utils.errors import UsageError, reason

TABLES = (".csv", ".npy")


class Item(NamedTuple):
    """One example of a request."""

    name: dict[str, Any]  # `file`, and for a table also `row`, counted from 0
    value: (
        Any  # the bytes of an image, or float32 (features,); None if there is an error
    )
    error: str = ""  # why the example cannot be read


def find(words: Iterable[str], endings: tuple[str, ...]) -> list[str]:
    """Returns the files that the words denote, in order.

    A word is a file, a pattern (`**` for any depth), or a directory; from a directory,
    all files with these endings are taken, at any depth, sorted. Files and folders that
    are hidden, or belong to a system or tool, such as `@eaDir`, are left out unless the
    word names them. Other words are kept unchanged.
    """
    names: list[str] = []
    for word in words:
        if os.path.isdir(word):
            inside = _matching(os.path.join(glob.escape(word), "**"), word)
            names += [name for name in inside if name.lower().endswith(endings)]
        else:
            names += (
                [word] if os.path.lexists(word) else _matching(word, word) or [word]
            )
    return names


def _matching(pattern: str, word: str) -> list[str]:
    """The files that match a pattern, except ignored ones that the word
    does not name.
    """
    named = set(word.split(os.sep))
    return [
        path
        for path in sorted(glob.glob(pattern, recursive=True))
        if not os.path.isdir(path)
        and not any(map(image_formats.is_ignored, set(path.split(os.sep)) - named))
    ]


def images(names: Iterable[str]) -> Iterator[Item]:
    """Yields the bytes of each file."""
    for name in names:
        try:
            yield Item({"file": name}, Path(name).read_bytes())
        except (OSError, ValueError) as error:
            yield Item({"file": name}, None, _reason(error))


def rows(
    names: Iterable[str], width: int, columns: Sequence[str] | None = None
) -> Iterator[Item]:
    """Yields the rows of each `.npy` or `.csv` file as float32 (width,).

    The first line of a `.csv` is a header if it contains no numbers, or 0, 1, 2, 3, ...
    as written by pandas; named columns are reordered to match `columns`, and other
    names are an error.
    """
    for name in names:
        try:
            is_array = name.lower().endswith(".npy")
            table = _array(name) if is_array else _lines(name, columns)
        except (OSError, ValueError, csv.Error) as error:
            yield Item({"file": name}, None, _reason(error))
            continue
        if not len(table):
            yield Item({"file": name}, None, "it contains no rows of numbers")
        for index, row in enumerate(table):
            yield _row({"file": name, "row": index}, row, width)


def _array(name: str) -> np.ndarray:
    array = np.lib.format.open_memmap(name, mode="r")
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise ValueError("it does not contain an array of numbers (rows, features)")
    return array


def _lines(name: str, columns: Sequence[str] | None) -> list[list[str]]:
    reader = csv.reader(
        io.StringIO(safe_io.read_text(Path(name))), skipinitialspace=True
    )
    lines = list(filter(None, reader))
    header = [cell.strip() for cell in lines[0]] if lines else []
    counted = [str(index) for index in range(len(header))]
    if any(map(_is_number, header)):
        return lines[1:] if len(header) > 3 and header == counted else lines
    if columns is None or columns == counted:  # no names
        return lines[1:]
    if sorted(header) != sorted(columns):
        raise ValueError(
            f"its header is {', '.join(header)[:200]!r}, but the model takes "
            f"{', '.join(columns)[:500]!r}"
        )
    order = [header.index(column) for column in columns]
    return [
        [line[i] for i in order] if len(line) == len(order) else line
        for line in lines[1:]
    ]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _row(name: dict[str, Any], row: Any, width: int) -> Item:
    if len(row) != width:
        return Item(
            name, None, f"it has {len(row)} numbers, but the model takes {width}"
        )
    for cell in row:
        if isinstance(cell, str) and not _is_number(cell):
            return Item(name, None, f"{cell[:100]!r} is not a number")
    with np.errstate(over="ignore"):  # the model decides about infinity
        return Item(name, np.array(row, np.float64).astype(np.float32))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or reason(error)


def predict(
    client: Any, words: Sequence[str | Path], *, top: int = 1, batch_size: int = 32
) -> Iterator[dict[str, Any]]:
    """Yields a model's answers to files, one at a time.

    The client is a `Client`, or a model of this process with the same methods. The
    words are image files, or directories or patterns of them; for a model that takes
    feature vectors, `.csv` or `.npy` files. A request has `batch_size` images or rows.

    There is a record of JSON values for each image or row, in order. For each image
    `file`, `label`, `class` and `probability`, and with `top` above 1 also `top`: a
    list of `label` and `probability`, the most probable first. For each row `file`,
    `row` and the outputs of the model. For an example that cannot be read, or that the
    model rejects, `file` and `error`.

    Raises ServingError if the server stopped responding, and UsageError if the files do
    not exist, or the model takes neither images nor feature vectors, or ranks fewer
    classes.
    """
    known = client.metadata()
    signature, name, width = _takes(known, client.model)
    labels = known[signature].outputs.get("top_labels")
    most = 1 if labels is None else labels.shape[-1] if labels.shape else None
    if most is not None and top > most:
        raise UsageError(
            f"--top must be at most {most}, the classes that {client.model} ranks"
        )
    endings = image_formats.SUFFIXES if width is None else TABLES
    names = find(map(str, words), endings)
    if not names:
        taken = ", ".join(f"*{ending}" for ending in endings)
        given = " ".join(map(str, words))[:200] or "the list"
        raise UsageError(f"{given} contains no files; {client.model} takes {taken}")
    items = images(names) if width is None else rows(names, width, client.feature_names)

    def ask(items: list[Item]) -> list[dict[str, Any]]:
        outputs = client.predict(signature, **{name: [item.value for item in items]})
        with signatures.reading_reply(client.model):
            values = zip(*outputs.values(), strict=True)
            rows = [
                _record(dict(zip(outputs, row, strict=True)), top) for row in values
            ]
            return [item.name | row for item, row in zip(items, rows, strict=True)]

    return _records(items, batch_size, ask)


_Ask = Callable[[list[Item]], list[dict[str, Any]]]


def _records(
    items: Iterator[Item], batch_size: int, ask: _Ask
) -> Iterator[dict[str, Any]]:
    while batch := list(itertools.islice(items, batch_size)):
        answered = iter(_answers([item for item in batch if not item.error], ask))
        for item in batch:
            yield {**item.name, "error": item.error} if item.error else next(answered)


def _answers(items: list[Item], ask: _Ask) -> list[dict[str, Any]]:
    """Sends one request; if it is rejected, sends its halves, to find the invalid
    examples.
    """
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
    if found := file_input(known):
        return found
    default = known.get("serving_default", Signature({}, {}))
    inputs = (
        ", ".join(f"{name} {field}" for name, field in default.inputs.items())
        or "nothing"
    )
    raise UsageError(
        f"{model} does not take image files or feature vectors, but {inputs}; use"
        " pipeline.Client"
    )


def file_input(known: Mapping[str, Signature]) -> tuple[str, str, int | None] | None:
    """How a model of these signatures takes files: (signature, its input, number of
    features or None for image files); None if it takes neither images nor feature
    vectors.
    """
    encoded = known.get("image_bytes")
    if encoded is not None and set(encoded.inputs) == {"image_bytes"}:
        return "image_bytes", "image_bytes", None
    default = known.get("serving_default", Signature({}, {}))
    if len(default.inputs) == 1:
        ((name, field),) = default.inputs.items()
        if (
            field.dtype.kind == "f"
            and field.shape
            and len(field.shape) == 2
            and field.shape[1]
        ):
            return "serving_default", name, field.shape[1]
    return None


def _record(outputs: Mapping[str, Any], top: int) -> dict[str, Any]:
    """Returns the answer to one example as JSON values."""
    if not {"label", "class", "probabilities"} <= set(outputs):
        return {name: _value(value) for name, value in outputs.items()}
    index = int(outputs["class"])
    probability = signatures.shortest(outputs["probabilities"][index])
    record = {
        "label": _value(outputs["label"]),
        "class": index,
        "probability": probability,
    }
    if top > 1:
        pairs = zip(
            outputs["top_labels"][:top], outputs["top_scores"][:top], strict=True
        )
        record["top"] = [
            {"label": n, "probability": signatures.shortest(p)} for n, p in pairs
        ]
    return record


def _value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_value(one) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, np.float32 | np.float16):
        return signatures.shortest(value)
    return value.item() if isinstance(value, np.generic) else value
