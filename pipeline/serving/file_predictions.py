"""Predictions for files: reads files and tables, and converts replies to records."""

import ast
import glob
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pipeline.config import registry
from pipeline.data import file_search, names, table, table_columns
from pipeline.serving import signatures
from pipeline.serving.signatures import INVALID_ARGUMENT, ServingError, Signature
from pipeline.utils import compressed_sound, image_formats, tiff
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, reason

_BOXES = {"boxes", "scores", "classes", "count"}
"""Outputs of a model that finds boxes."""
TABLES = (*table.SUFFIXES, ".npy")
_ARRAYS = (".jsonl", ".npy")  # for examples that are not vectors


class Item(NamedTuple):
    """An example of a request."""

    name: dict[str, Any]
    """`file`, and for a table also `row`, counted from 0."""
    value: Any
    """The bytes of a file, or float32 (features,); None if there is an error."""
    error: str = ""
    """Why the example cannot be read."""


def find(words: Iterable[str], endings: tuple[str, ...]) -> list[str]:
    """Returns the files that the words denote, in order.

    A word is a file, a pattern (`**` for any depth), or a directory, which stands for
    all files with these endings, at any depth, sorted. Files and folders that are
    hidden, or belong to a system or tool, such as `@eaDir`, are left out unless the
    word names them. Other words are kept unchanged.
    """
    names: list[str] = []
    for word in words:
        if os.path.isdir(word):
            inside = _match(os.path.join(glob.escape(word), "**"), word)
            names += [name for name in inside if name.lower().endswith(endings)]
        elif os.path.lexists(word):
            names.append(word)
        else:
            names += _match(word, word) or [word]
    return names


def _match(pattern: str, word: str) -> list[str]:
    """Finds the files of a pattern, except ignored ones that the word does not name."""
    explicit = set(word.split(os.sep))
    files = []
    for path in sorted(glob.glob(pattern, recursive=True)):
        parts = set(path.split(os.sep)) - explicit
        if not os.path.isdir(path) and not any(map(image_formats.is_ignored, parts)):
            files.append(path)
    return files


def lines(file: BinaryIO) -> Iterator[Item]:
    """Yields each line that is not empty, without its end."""
    for number, line in enumerate(file):
        content = line.rstrip(b"\r\n")
        if content.strip():
            yield Item({"file": "-", "row": number}, content)


def texts(names: Iterable[str], column: str | None = None) -> Iterator[Item]:
    """Yields the content of each file, of `-` each line of the standard input, and of a
    table the texts in a column, by default the one with a name of texts.
    """
    for name in names:
        if name == "-":
            yield from lines(sys.stdin.buffer)
        elif table.is_table(Path(name)):
            yield from _column_of_texts(name, column)
        else:
            yield from contents([name])


def _column_of_texts(name: str, column: str | None) -> Iterator[Item]:
    try:
        read = table.read(Path(name))
    except UsageError as error:
        yield Item({"file": name}, None, _problem(error, name))
        return
    options = table_columns.Options(column=column)
    title = table_columns.text_column(read, options)
    if not title:
        wanted = "of texts" if column is None else column
        problem = f"it has no column {wanted}, but {', '.join(read.columns)}"
        yield Item({"file": name}, None, f"{problem}; --column names one of them")
        return
    for row, value in enumerate(table.texts(read.columns[title]).to_pylist()):
        yield Item({"file": name, "row": row}, value.encode("utf-8", "surrogatepass"))


def _problem(error: UsageError, name: str) -> str:
    """An error about a file for a record, which names the file already."""
    return str(error).removeprefix(name).lstrip(":, ")


def contents(names: Iterable[str]) -> Iterator[Item]:
    """Yields the bytes of each file; compressed sound becomes WAV, and TIFF PNG.

    Raises UsageError if this needs a package that is not installed.
    """
    for name in names:
        is_compressed = name.lower().endswith(compressed_sound.SUFFIXES)
        if is_compressed:
            compressed_sound.require_soundfile(name)
        try:
            content = Path(name).read_bytes()
            if is_compressed:
                content = compressed_sound.to_wav(content)
            if name.lower().endswith(tiff.SUFFIXES):
                content = tiff.to_png(content)
            yield Item({"file": name}, content)
        except (OSError, ValueError) as error:
            yield Item({"file": name}, None, _reason(error))


def rows(
    names: Iterable[str], shape: Sequence[int], columns: Sequence[str] | None = None
) -> Iterator[Item]:
    """Yields the rows of each `.npy` file or table as float32 of a shape.

    An `.npy` file has the shape (rows, *shape), or that of a single example. A table
    has the numbers as lists in the column `features`, or in the named columns, in any
    order; other columns are ignored. Without names, all columns are numbers, and the
    first line of a `.csv` is a header if it contains no numbers, or 0, 1, 2, 3, ... as
    written by pandas.
    """
    for name in names:
        try:
            if name.lower().endswith(".npy"):
                values: Any = _array(name, len(shape))
            else:
                values = _numbers(table.read(Path(name)), columns)
        except (OSError, ValueError) as error:
            yield Item({"file": name}, None, _reason(error))
            continue
        except UsageError as error:
            yield Item({"file": name}, None, _problem(error, name))
            continue
        for index, row in enumerate(values):
            yield _row({"file": name, "row": index}, row, shape)


def _numbers(read: table.Table, columns: Sequence[str] | None) -> Any:
    """The numbers of each row: lists, or cells as in the file.

    Raises ValueError if a named column is missing.
    """
    title = read.find("features")
    if title is not None and table.lists(read.columns[title]):
        return read.columns[title].to_pylist()
    titles = list(read.columns)
    indices = [str(index) for index in range(len(titles))]
    first = []
    if columns is None or [*columns] == indices:  # no names
        if any(map(_is_number, titles)) and not (len(titles) > 3 and titles == indices):
            first = [titles]
    else:
        titles = [str(read.find(column)) for column in columns]
        if "None" in titles:
            raise ValueError(
                f"it has the columns {', '.join(read.columns)[:200]}, but the model"
                f" takes {', '.join(columns)[:500]}"
            )
    cells = []
    for title in titles:
        numbers = read.numbers(title)
        values = read.columns[title].to_pylist() if numbers is None else None
        cells.append(values if numbers is None else numbers.tolist())
    return [*first, *map(list, zip(*cells, strict=True))]


def table_rows(
    tables: Iterable[table.Table],
    signature: Signature,
    model: str,
    files: str = "",
    column: str | None = None,
    trained_column: str | None = None,
) -> Iterator[Item]:
    """Yields the rows of tables for a model that takes columns, each a dictionary.

    If the argument `files` takes the content of files, it is that of each row's file,
    whose column is `column`, or else `trained_column`, or has a usual name. Raises
    UsageError if a table has not all columns of the model.
    """
    for read in tables:
        if files:
            title = column or read.find(trained_column or "")
            yield from _files_with_columns(read, signature, model, files, title)
            continue
        columns = arguments_of(read, signature, model)
        for row in range(len(read)):
            values = {title: cells[row] for title, cells in columns.items()}
            yield Item({"file": read.name, "row": row}, values)


def _files_with_columns(
    read: table.Table, signature: Signature, model: str, name: str, column: str | None
) -> Iterator[Item]:
    options = table_columns.Options(field=name.removesuffix("_bytes"))
    title = read.find(column) if column else table_columns.file_column(read, options)
    if not title:
        raise UsageError(
            f"{read.name} has no column {repr(column) if column else 'of files'}, but"
            f" {', '.join(read.columns)}; --column names the one of files"
        )
    inputs = {key: field for key, field in signature.inputs.items() if key != name}
    columns = arguments_of(read, Signature(inputs, {}), model, (title,))
    words = table.texts(read.columns[title]).to_pylist()
    types = table_columns.types_of_files(title, options)
    files, notes = file_search.find_files(words, read.folder, read.name, types)
    for note in notes:
        say("note", note)
    for row, (word, file) in enumerate(zip(words, files, strict=True)):
        path = file or os.path.join(read.folder, word)
        ((_, content, error),) = contents([path])
        values = {key: cells[row] for key, cells in columns.items()}
        value = None if error else {name: content, **values}
        yield Item({"file": path, "row": row}, value, error)


def arguments_of(
    read: table.Table,
    signature: Signature,
    model: str,
    other_columns: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The columns of a table that are the arguments of a model, by their names there.

    Raises UsageError if one is missing, or has other values.
    """
    titles: dict[str, str] = {}
    for title in read.columns:
        argument = names.argument(title)
        other = titles.setdefault(argument, title)
        if other != title and argument in signature.inputs:
            raise UsageError(
                f"{read.name}: the columns {other!r} and {title!r} would both be the"
                f" argument {argument} of the model; rename or remove one"
            )
    columns = {}
    used = {*other_columns}
    for argument, field in signature.inputs.items():
        found = titles.get(argument) or read.find(argument)
        if found is None:
            raise UsageError(
                f"{read.name} has no column {argument!r}, which {model} takes; it has"
                f" {', '.join(read.columns)}"
            )
        used.add(found)
        columns[argument] = _column(read, found, field.dtype)
    if len(used) < len(read.columns):
        others = ", ".join(title for title in read.columns if title not in used)
        say("note", f"{read.name}: columns that the model does not take: {others:.200}")
    return columns


def _column(read: table.Table, title: str, dtype: np.dtype) -> Any:
    """The values of a column in the type of the model.

    Raises UsageError naming the first row with another value.
    """
    values = read.columns[title]
    if dtype.kind == "O":
        # The model may have been trained on dates in another order.
        words = table.iso_dates(read, title).to_pylist()
        return [word.encode("utf-8", "surrogatepass") for word in words]
    numbers = read.booleans(title)
    if numbers is None:
        numbers = read.numbers(title)
    problem = "a number"
    wrong = read.not_numbers(title) if numbers is None else []
    if dtype.kind == "b" and numbers is not None:
        problem = "true or false"
        wrong = np.flatnonzero(~np.isin(numbers, (0, 1))).tolist()
    if numbers is None or wrong:
        raise UsageError(
            f"{read.where(wrong[0])}: {table.quote_cell(values, wrong[0])} in the"
            f" {read.key} {title!r} is not {problem}; correct it"
        )
    with np.errstate(over="ignore"):  # the model decides about infinity
        return numbers.astype(dtype)


def _array(name: str, rank: int) -> np.ndarray:
    array: np.ndarray = np.lib.format.open_memmap(name, mode="r")
    if array.ndim == rank > 1:  # a single example
        array = array[None]
    if array.ndim != rank + 1 or array.dtype.kind not in "biuf":
        raise ValueError("it does not contain an array of numbers (rows, features)")
    return array


def _is_number(cell: Any) -> bool:
    try:
        return not math.isnan(float(cell))
    except (TypeError, ValueError):
        return False


def _row(name: dict[str, Any], row: Any, shape: Sequence[int]) -> Item:
    if len(shape) > 1:
        return _array_row(name, row, tuple(shape))
    if len(row) != shape[0]:
        error = f"it has {len(row)} numbers, but the model takes {shape[0]}"
        return Item(name, None, error)
    for cell in row:
        if not _is_number(cell):
            text = "" if cell is None or cell != cell else str(cell)
            return Item(name, None, f"{text[:100]!r} is not a number")
    with np.errstate(over="ignore"):  # the model decides about infinity
        return Item(name, np.array(row, np.float64).astype(np.float32))


def _array_row(name: dict[str, Any], row: Any, shape: tuple[int, ...]) -> Item:
    try:
        values = np.asarray(row, np.float32)
    except (TypeError, ValueError):
        return Item(name, None, "it is not an array of numbers")
    if values.shape != shape:
        error = f"it has the shape {values.shape}, but the model takes {shape}"
        return Item(name, None, error)
    return Item(name, values)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or reason(error)


def predict(
    client: Any,
    words: Sequence[str | Path] | table.Table,
    *,
    top: int = 1,
    batch_size: int = 32,
    column: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields a model's predictions for files, a record of JSON values at a time.

    The client is a `Client`, or a model of this process with the same methods. The
    words are files of the kind that the model takes, such as images, or directories or
    patterns of them; for a model that takes feature vectors, `.csv` or `.npy` files;
    for one that takes columns, tables, with a column of files if it also takes files;
    for one that takes texts, text files, tables with a column of texts, or `-` for the
    lines of the standard input. Instead of words, a `Table` is a table in memory. A
    request has `batch_size` files or rows. `column` is the one of texts or files in a
    table, by default the one of training if the client knows it.

    A record has `file`, for a row of a table also `row`, and the outputs of the model.
    Of a model that finds boxes, only the first `count` boxes are listed. Of a
    classifier, the outputs are `label`, `class` and `probability`, and with `top` above
    1 also `top`: a list of `label` and `probability`, the most probable first. For an
    example that cannot be read, or that the model rejects, it has `file` and `error`.

    Raises ServingError if the server stopped responding, and UsageError if the files do
    not exist, or the model takes neither files nor feature vectors, or ranks fewer
    classes.
    """
    served = client.metadata()
    with_files = signature_of_files_and_columns(served)
    takes_columns = bool(with_files) or takes_rows(served)
    shape: tuple[int, ...]
    if takes_columns:
        signature, name, shape = with_files or "serving_default", "", ()
    else:
        signature, name, shape = _require_file_input(served, client.model)
    labels = served[signature].outputs.get("top_labels")
    ranks: int | None = 1
    if labels is not None:
        ranks = labels.shape[-1] if labels.shape else None
    if ranks is not None and top > ranks:
        raise UsageError(
            f"--top must be at most {ranks}, the classes that {client.model} ranks"
        )
    if takes_columns:
        endings: tuple[str, ...] = table.SUFFIXES
    elif shape:
        endings = TABLES if len(shape) == 1 else _ARRAYS
    else:
        endings = _suffixes(signature, name, client)
    names = []
    tables: Iterable[table.Table]
    if isinstance(words, table.Table):
        tables = [words]
    else:
        names = find(map(str, words), endings)
        tables = (table.read(Path(name)) for name in names)
        if not names:
            patterns = ", ".join(f"*{ending}" for ending in endings)
            text = " ".join(map(str, words))[:200] or "the list"
            raise UsageError(
                f"{text} contains no files; {client.model} takes {patterns}"
            )
    trained = getattr(client, "input_column", None)
    fields = served[signature]
    if takes_columns:
        items = table_rows(tables, fields, client.model, with_files, column, trained)
    elif shape:
        items = rows(names, shape, client.feature_names)
    else:
        column = column or trained
        items = texts(names, column) if takes_texts(served) else contents(names)

    def ask(items: list[Item]) -> list[dict[str, Any]]:
        arguments: dict[str, list[Any]] = {name: [item.value for item in items]}
        if takes_columns:
            arguments = {}
            for title in served[signature].inputs:
                arguments[title] = [item.value[title] for item in items]
        outputs = client.predict(signature, **arguments)
        with signatures.reading_reply(client.model):
            records = []
            for item, row in zip(
                items, zip(*outputs.values(), strict=True), strict=True
            ):
                prediction = dict(zip(outputs, row, strict=True))
                records.append(item.name | _record(prediction, top))
            return records

    return _records(items, batch_size, ask)


_Ask = Callable[[list[Item]], list[dict[str, Any]]]


def _records(
    items: Iterator[Item], batch_size: int, ask: _Ask
) -> Iterator[dict[str, Any]]:
    while batch := list(itertools.islice(items, batch_size)):
        predictions = iter(
            _predictions([item for item in batch if not item.error], ask)
        )
        for item in batch:
            yield (
                {**item.name, "error": item.error} if item.error else next(predictions)
            )


def _predictions(items: list[Item], ask: _Ask) -> list[dict[str, Any]]:
    """Sends a request; if it is rejected, its halves, to find the invalid examples."""
    try:
        return ask(items) if items else []
    except ServingError as error:
        if error.status != INVALID_ARGUMENT:
            raise
        if len(items) == 1:
            return [{**items[0].name, "error": error.message}]
        half = len(items) // 2
        return _predictions(items[:half], ask) + _predictions(items[half:], ask)


FileInput = tuple[str, str, tuple[int, ...]]
"""Signature, its input, and the shape of an example; empty for the bytes of files."""


def _require_file_input(served: Mapping[str, Signature], model: str) -> FileInput:
    target = file_input(served)
    if target is not None:
        return target
    default = served.get("serving_default", Signature({}, {}))
    fields = [f"{name} {field}" for name, field in default.inputs.items()]
    inputs = ", ".join(fields) or "nothing"
    raise UsageError(
        f"{model} does not take files or feature vectors, but {inputs}; use"
        " pipeline.Client"
    )


def file_input(served: Mapping[str, Signature]) -> FileInput | None:
    """Finds the signature that takes the bytes of files or feature vectors, if any.

    The name of the only input of the first ends in `_bytes`, as `image_bytes`.
    """
    for signature, fields in served.items():
        (name, *others) = fields.inputs or [""]
        if name.endswith("_bytes") and not others:
            return signature, name, ()
    default = served.get("serving_default", Signature({}, {}))
    if len(default.inputs) != 1:
        return None
    ((name, field),) = default.inputs.items()
    if takes_texts(served):
        return "serving_default", name, ()
    is_image = "image_bytes" in served or name == "images"
    if field.dtype.kind not in "fiu" or is_image or not field.shape:
        return None
    shape = field.shape[1:]
    if not shape or not all(shape):
        return None
    return "serving_default", name, tuple(size for size in shape if size)


def takes_texts(served: Mapping[str, Signature]) -> bool:
    """Whether the default signature takes a text for each example: its only argument is
    strings, and its name does not end in `_bytes`, which marks the content of files.
    """
    fields = served.get("serving_default", Signature({}, {})).inputs
    if len(fields) != 1:
        return False
    ((name, field),) = fields.items()
    is_string = field.dtype == object and field.shape == (None,)
    return is_string and not name.endswith("_bytes")


def signature_of_files_and_columns(served: Mapping[str, Signature]) -> str:
    """The signature that takes files together with columns, which has the name of the
    argument of files; empty if there is none.
    """
    for name, fields in served.items():
        if name.endswith("_bytes") and len(fields.inputs) > 1 and name in fields.inputs:
            return name
    return ""


def takes_rows(served: Mapping[str, Signature]) -> bool:
    """Whether the default signature takes the columns of a table: one value for each
    example in each argument.
    """
    fields = served.get("serving_default", Signature({}, {})).inputs
    if not fields or any(field.shape != (None,) for field in fields.values()):
        return False
    return len(fields) > 1 or not (
        takes_texts(served) or next(iter(fields)).endswith("_bytes")
    )


def returns_boxes(served: Mapping[str, Signature]) -> bool:
    """Whether the signature that takes files returns boxes."""
    target = file_input(served)
    outputs = served[target[0]].outputs if target else {}
    return outputs.keys() >= _BOXES


def returns_masks(served: Mapping[str, Signature]) -> bool:
    """Whether the signature that takes files returns masks."""
    target = file_input(served)
    return target is not None and "mask" in served[target[0]].outputs


def _suffixes(signature: str, name: str, client: Any) -> tuple[str, ...]:
    """The suffixes of the files that a signature takes; any if they are unknown."""
    suffixes = getattr(client, "suffixes", {}).get(signature)
    kind = name.removesuffix("_bytes")
    if suffixes is None and kind in registry.names("inputs"):
        option = registry.find("inputs", kind).options["suffixes"]
        suffixes = ast.literal_eval(option.default or "()")
    return tuple(suffixes or ("",))


def _record(outputs: Mapping[str, Any], top: int) -> dict[str, Any]:
    """Returns the prediction for an example as JSON values."""
    if outputs.keys() >= _BOXES:
        return _boxes(outputs)
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
        labels = outputs["top_labels"][:top]
        scores = map(signatures.shortest, outputs["top_scores"][:top])
        record["top"] = [
            {"label": label, "probability": score}
            for label, score in zip(labels, scores, strict=True)
        ]
    return record


def _boxes(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """`count`, and lists of the values of the first `count` boxes."""
    count = int(outputs["count"])
    record: dict[str, Any] = {"count": count}
    for name, values in outputs.items():
        if name != "count":
            record[name] = _value(values[:count])
    return record


def _value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_value(element) for element in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, np.float32 | np.float16):
        return signatures.shortest(value)
    return value.item() if isinstance(value, np.generic) else value
