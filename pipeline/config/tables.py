"""Tables of examples in CSV or JSON lines: their rows, and what each column holds."""

import csv
import dataclasses
import io
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import data_path, file_search, file_types
from pipeline.utils import safe_io
from pipeline.utils.errors import NoLabels, UsageError

# As NumPy, pandas, R and spreadsheets write it.
_MISSING = ("", "nan", "NaN", "<NA>", "NaT", "NA", "N/A", "#N/A", "null", "NULL")
# Field of an example -> the names of its column, in the order in which they are tried.
_TRUTHS = {
    "label": data_path.LABELS,
    "labels": data_path.SEVERAL_LABELS,
    "target": data_path.TARGETS,
    "mask": data_path.MASKS,
}
TRUTHS = (*_TRUTHS, "transcript")
"""Fields of what is to be predicted; each has an option that names its column."""

_INPUT_FLAGS = "--source.image or --source.column"


@dataclasses.dataclass(frozen=True)
class Options:
    """Columns that the user named; None: by their names in the table."""

    image: str | None = None
    column: str | None = None
    """Column of the values of an input, such as texts."""
    label: str | None = None
    labels: str | None = None
    target: str | None = None
    mask: str | None = None
    transcript: str | None = None
    group: str | None = None
    split: str | None = None
    field: str | None = None
    """The raw field for the content of a file."""
    suffixes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a file."""

    path: Path
    columns: Mapping[str, Sequence[Any]]
    """Name of a column, as `data_path.column` writes it, -> the values of all rows."""
    titles: Mapping[str, str]
    """Name of a column -> its name in the file."""
    numbers: Sequence[int]
    """Number of each row in messages."""
    noun: str = "row"
    key: str = "column"
    """What a column is called in messages."""
    problem: str = ""
    """Why the cells need not belong to the columns; empty if they do."""

    def where(self, position: int) -> str:
        """The name of a row in messages: `labels.csv, row 3`."""
        return f"{self.path}, {self.noun} {self.numbers[position]}"


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """What the columns of a table hold."""

    truths: Mapping[str, str]
    """One of `TRUTHS` -> its column."""
    file: str = ""
    """Column with the files; empty if the table contains the numbers themselves."""
    features: tuple[str, ...] = ()
    """Columns of numbers, or the one with lists of numbers."""
    group: str | None = None
    split: str | None = None
    row_names: tuple[str, ...] = ()
    """Columns of a table without files that are left out, as they name its rows."""
    value: str = ""
    """Column with the values of an input other than numbers, such as texts."""
    value_field: str = ""
    """The raw field for these values."""


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, their text, or empty."""
    return value is None or str(value).strip() in _MISSING


def number_of(value: Any) -> float | None:
    """A number, also as text; None for anything else."""
    if isinstance(value, str | int | float):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None


def read(path: Path) -> Table:
    """The rows of a `.csv`, `.tsv` or `.jsonl` file.

    Raises UsageError if it cannot be read or has no rows.
    """
    is_json = data_path.is_json_lines(path.name)
    return read_json_lines(path) if is_json else read_csv(path)


def read_csv(path: Path) -> Table:
    """The rows of a table whose first line names the columns; all values are texts.

    The delimiter is the most common one of the first line: comma, semicolon or tab.
    """
    rows = []
    line = 0
    try:
        text = safe_io.read_text(path)
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))
        first_line = text.partition("\n")[0]
        separator = max(",;\t", key=first_line.count)
        quoting: Any = csv.QUOTE_MINIMAL
        header = data_path.split_bars(first_line)
        if header:
            separator, quoting = "|", csv.QUOTE_NONE
            if header != first_line.strip().split("|"):
                rows.append(header)
        lines = io.StringIO(text, newline="")
        reader = csv.reader(
            lines,
            delimiter=separator,
            quoting=quoting,
            skipinitialspace=True,
            strict=True,
        )
        for values in reader:
            if values:
                rows.append([value.strip() for value in values])
            line = reader.line_num
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    except csv.Error as error:
        raise UsageError(
            f"{path}, line {line + 1}: {error}; correct the quotes"
        ) from None
    if len(rows) < 2:
        raise UsageError(
            f"{path} has no rows; add one with a file, numbers or a text, and its"
            " label, for each example"
        )
    header, *cells = rows
    names = [data_path.column(name) for name in header]
    problem = _problem(path, header, cells)
    for row in cells:
        row += [""] * (len(names) - len(row))
    return Table(
        path,
        dict(zip(names, zip(*cells, strict=False), strict=False)),
        dict(zip(names, header, strict=True)),
        range(2, len(rows) + 1),
        problem=problem,
    )


def _problem(path: Path, header: list[str], cells: list[list[str]]) -> str:
    names = [data_path.column(name) for name in header]
    for name, title in zip(names, header, strict=True):
        if names.count(name) > 1:
            return f"{path} has several columns {title!r}; rename all but one"
    for number, row in enumerate(cells, start=2):
        if len(row) > len(names):
            return (
                f"{path}, row {number} has {len(row)} cells, but the first line names"
                f" {len(names)} columns; correct it"
            )
    return ""


def read_json_lines(path: Path) -> Table:
    """The rows of a file with a JSON object in each line, all with the same keys."""
    columns: dict[str, list[Any]] = {}
    numbers: list[int] = []
    titles: dict[str, str] = {}
    try:
        # Not `splitlines`: strings may contain other line breaks of Unicode.
        lines = safe_io.read_text(path).split("\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _json_object(line, f"{path}, line {number}")
        if not numbers:
            titles = {data_path.column(key): key for key in row}
            columns = {key: [] for key in titles}
        named = {data_path.column(key): value for key, value in row.items()}
        for key in sorted(titles.keys() ^ named.keys()):
            has = "has no" if key in titles else "has the"
            verb = "has" if key in titles else "does not have"
            raise UsageError(
                f"{path}, line {number} {has} key {key!r}, which line {numbers[0]}"
                f" {verb}; give all lines the same keys, with null for no value"
            )
        for key, value in named.items():
            columns[key].append(value)
        numbers.append(number)
    if not numbers:
        raise UsageError(
            f"{path} has no lines; add a JSON object for each example, such as"
            ' {"image": "a.png", "label": "cat"}'
        )
    return Table(path, columns, titles, numbers, noun="line", key="key")


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        value = safe_io.parse_json(line)
    except ValueError as error:
        problem = getattr(error, "msg", str(error))
        column = getattr(error, "colno", None)
        position = f" at column {column}" if column else ""
        raise UsageError(f"{where}: {problem}{position}; correct the JSON") from None
    if not isinstance(value, dict):
        raise UsageError(
            f"{where} must be a JSON object, such as"
            f' {{"image": "a.png", "label": "cat"}}; got {line.strip()[:50]}'
        )
    return value


def columns(table: Table, options: Options) -> TableColumns:
    """What the columns hold, by the options or else by their names.

    A table without a column of files has numbers in all other columns. Raises
    UsageError if a column is missing.
    """
    truths = _truths(table, options) or _transcripts(table, options)
    split = options.split or ("split" if "split" in table.titles else None)
    split = split and _require(table, split)
    group = options.group and _require(table, options.group)
    used: set[str | None] = {*truths.values(), split, group}
    if "transcript" in truths:
        used |= {*data_path.TRANSCRIPTS}
    field, value = "", ""
    if "transcript" not in truths:
        field, value = value_column(table, options, used)
    if value:
        if not truths:
            raise _no_labels(table, "--source.label")
        return TableColumns(
            truths, value=value, value_field=field, group=group, split=split
        )
    file = _file_column(table, options, used)
    if file:
        if not truths:
            raise _no_labels(table, "--source.image", "--source.label")
        return TableColumns(truths, file, group=group, split=split)
    if group is None and "group" in table.titles:
        group = "group"
    row_names = tuple(name for name in data_path.IDS if name in table.titles)
    features = _features(table, used.union(row_names, [group]))
    if not features:
        texts = next(iter(file_types.value_columns().values()))
        names = [*data_path.IMAGES[:3], *texts[:2]]
        raise _no_column(table, names, _INPUT_FLAGS, "--source.label")
    if not truths:
        raise _no_labels(table, "--source.label", "--source.target")
    row_names = tuple(name for name in row_names if name not in used)
    label = truths.get("label", "")
    if not options.label and label in data_path.TARGETS and _are_floats(table, label):
        truths = {"target": label}
    return TableColumns(truths, "", features, group, split, row_names)


def _require(table: Table, name: str) -> str:
    """The column of this name; UsageError if there is none."""
    column = data_path.column(name)
    if column not in table.titles:
        raise _no_column(table, [column], _INPUT_FLAGS, "--source.label")
    return column


def _no_column(table: Table, names: Sequence[str], *flags: str) -> UsageError:
    return UsageError(_without_column(table, names, *flags))


def _no_labels(table: Table, *flags: str) -> NoLabels:
    return NoLabels(_without_column(table, data_path.LABELS, *flags))


def _without_column(table: Table, names: Sequence[str], *flags: str) -> str:
    return (
        f"{table.path} has no {table.key} {' or '.join(names[:5])}; it has"
        f" {', '.join(table.titles)}; name its {table.key}s with {' and '.join(flags)}"
    )


def _truths(table: Table, options: Options) -> dict[str, str]:
    """The columns of what is to be predicted; empty if there are none."""
    truths = {}
    for field in TRUTHS:
        name = getattr(options, field)
        if name:
            truths[field] = _require(table, name)
    if truths:
        return truths
    for field, names in _TRUTHS.items():
        for column in names:
            if column in table.titles:
                return {_kind(field, table.columns[column]): column}
    return {}


def _transcripts(table: Table, options: Options) -> dict[str, str]:
    """The column of what the files of a table say; empty if there is none."""
    for column in data_path.TRANSCRIPTS:
        if column in table.titles and _file_column(
            table, options, {*data_path.TRANSCRIPTS}
        ):
            return {"transcript": column}
    return {}


def _kind(field: str, values: Sequence[Any]) -> str:
    """The field for a column that has the name of this field.

    Labels are numbers to predict if not all of them are whole, and numbers to predict
    are labels if not all of them are numbers; a list has several of either kind.
    """
    if field in ("labels", "mask"):
        return field
    present = [value for value in values if not is_missing(value)]
    lists = [value for value in present if isinstance(value, list)]
    if lists:
        return "labels" if _is_text_list(lists[0]) else "target"
    numbers = [number_of(value) for value in present]
    if None in numbers:
        return "label" if field == "target" else field
    if field == "label" and not all(map(_is_whole, numbers)):
        return "target"
    return field


def _is_text_list(values: list[Any]) -> bool:
    return any(isinstance(value, str) for value in values)


def _is_whole(number: float | None) -> bool:
    return number is not None and math.isfinite(number) and number == round(number)


def _are_floats(table: Table, column: str) -> bool:
    """Whether all values are numbers and one is written with a decimal point."""
    values = table.columns[column]
    if None in map(number_of, values):
        return False
    return any("." in str(value) for value in values)


def value_column(
    table: Table, options: Options, used: Collection[str | None] = ()
) -> tuple[str, str]:
    """The field and the column of the values of an input, such as texts; both empty if
    there is none.

    Texts in such a column that all are names of files are no values.
    """
    fields = file_types.value_columns()
    if options.column:
        column = _require(table, options.column)
        field = options.field if options.field in fields else next(iter(fields))
        return field, column
    if options.field:
        fields = {name: fields[name] for name in fields if name == options.field}
    if options.image or not fields:
        return "", ""
    if not table.titles.keys().isdisjoint({*data_path.IMAGES} - {"id"}):
        return "", ""
    for field, names in fields.items():
        columns = []
        for name in names:
            if name in table.titles and name not in used:
                columns.append(name)
        columns = [name for name in columns if _are_values(table, name, options)]
        if len(columns) > 1:
            raise UsageError(
                f"{table.path} has several {table.key}s of texts,"
                f" {' and '.join(columns)}; --source.column names one of them"
            )
        if columns:
            return field, columns[0]
    return "", ""


def _are_values(table: Table, column: str, options: Options) -> bool:
    """Whether a column has texts that are neither numbers nor names of files."""
    texts = list(filter(_is_text, table.columns[column]))
    if not texts:
        return False
    types = file_types.select(options.field, options.suffixes)
    are_names = (file_types.field_of(text, types) for text in texts)
    return not all(are_names)


def _file_column(table: Table, options: Options, used: Collection[str | None]) -> str:
    """The column of files; empty if there is none."""
    if options.image:
        return _require(table, options.image)
    for name in data_path.IMAGES:
        if name in table.titles and name not in used and name != "id":
            return name
    types = file_types.select(options.field, options.suffixes)
    for name in types:
        if (
            name in table.titles
            and name not in used
            and _is_text(table.columns[name][0])
        ):
            return name
    if "id" not in table.titles or "id" in used:
        return ""
    # Either the names of files, or the numbers of the rows of a table without files.
    names_of_rows = {*data_path.IDS, "group", *used}
    features = [name for name in table.titles if name not in names_of_rows]
    firsts = [table.columns[name][0] for name in features]
    are_numbers = [_is_numeric(value) or is_missing(value) for value in firsts]
    if not features or not all(are_numbers):
        return "id"
    names = [str(value) for value in table.columns["id"]]
    files, _ = file_search.find_files(names, table.path, types)
    return "id" if any(files) else ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and number_of(value) is None


def _is_numeric(value: Any) -> bool:
    return isinstance(value, list) or number_of(value) is not None


def _features(table: Table, used: Collection[str | None]) -> tuple[str, ...]:
    """The column of lists of numbers, or all columns of numbers.

    Columns of anything else are among them, so that they are reported, unless there are
    no numbers at all.
    """
    row = {name: values[0] for name, values in table.columns.items()}
    if isinstance(row.get("features"), list) and "features" not in used:
        return ("features",)
    names = tuple(name for name in table.titles if name not in used)
    return names if any(_is_numeric(row[name]) for name in names) else ()


def input_field(path: Path, options: Options) -> str:
    """The raw field of the examples: of values, of files, or else `features`.

    Raises UsageError if the table cannot be read.
    """
    table = read(path)
    parts = columns(table, options)
    if parts.value:
        return parts.value_field
    file = parts.file
    if not file:
        return "features"
    if options.field:
        return options.field
    return file_field(table, file, options)


def file_field(table: Table, column: str, options: Options) -> str:
    """The raw field of files, by the suffixes of most of them; else `image`."""
    types = file_types_of(column, options)
    names = [str(value) for value in table.columns[column]]
    if not any(file_types.field_of(name, types) for name in names):
        names, _ = file_search.find_files(names, table.path, types)
    return file_types.most_common(names, types)


def file_types_of(column: str, options: Options) -> dict[str, tuple[str, ...]]:
    """Field -> suffixes of the files that a column may name.

    A column that has the name of a field names files of this field.
    """
    types = file_types.select(options.field, options.suffixes)
    return {column: types[column]} if column in types else types
