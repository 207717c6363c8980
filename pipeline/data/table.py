"""Reads tables: CSV, JSON lines, Parquet, Arrow and DataFrames, as columns of Arrow."""

import codecs
import contextlib
import csv
import dataclasses
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from pipeline.data import names
from pipeline.utils import safe_io
from pipeline.utils.errors import UsageError, quote

SUFFIXES = (
    ".csv",
    ".tsv",
    ".jsonl",
    ".ndjson",
    ".parquet",
    ".pq",
    ".feather",
    ".arrow",
    ".csv.gz",
    ".tsv.gz",
    ".jsonl.gz",
)
SPLIT = "(split)"
"""The column of the splits of joined tables."""
_READING = (OSError, EOFError, zlib.error, pa.ArrowException)
"""Errors of files that cannot be read."""
_CONVERTING = (pa.ArrowException, OverflowError, UnicodeError)
"""Errors of values of different types, large integers and half characters."""
_JSON = (".jsonl", ".ndjson", ".jsonl.gz")
_MAX_HEADER = 1 << 16  # bytes of the first line
_BLOCK_BYTES = 16 << 20  # a row must fit into a block
_MAGIC = (b"PK\x03\x04", b"PAR1", b"\x1f\x8b", b"\x89PNG", b"%PDF")
_CONTROLS = bytes({*range(32)} - {*b"\t\n\v\f\r"})
_MAX_CONTROLS = 0.08  # share of control characters in a text
_SAMPLE = 100  # values that decide what a column of words could be
_SIGNS = r"[\s\x{A0}\x{202F}'$€£¥₹%]|\b(USD|EUR|GBP|CHF)\b"
_PLAIN = r"^-?\d+(\.\d+)?$"
_THOUSANDS = r"^[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d*)?$"
_GROUPED = r"^[+-]?(\d{1,3}(\.\d{3})+|\d+)$"
_DECIMAL_COMMA = r"^[+-]?(\d{1,3}(\.\d{3})+|\d+)?(,\d+)?$"
_TIME = r"([ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?"
_MONTH = r"(0?[1-9]|1[0-2])"
_DAY = r"(0?[1-9]|[12]\d|3[01])"
DATES = {
    "ymd": rf"^\d{{4}}[-/.]{_MONTH}[-/.]{_DAY}{_TIME}$",
    "dmy": rf"^{_DAY}[-/.]{_MONTH}[-/.]\d{{4}}{_TIME}$",
    "mdy": rf"^{_MONTH}[-/]{_DAY}[-/]\d{{4}}{_TIME}$",
}
"""Order of year, month and day -> how a date is written."""
_MAX_WHOLE = 2.0**53  # beyond, not each whole number is a float64
_BOOLEANS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a file, or of a DataFrame."""

    name: str
    """The file in messages, or such as `the table of train`."""
    columns: Mapping[str, pa.ChunkedArray]
    """Title -> values; the cells of a CSV are strings without spaces around them."""
    row_numbers: Sequence[int]
    """Number of each row in messages."""
    noun: str = "row"
    key: str = "column"
    """What a column is called in messages."""
    notes: tuple[str, ...] = ()
    folder: Path = Path()
    """Where the files are that the cells name."""
    has_decimal_comma: bool = False
    """Whether 1,234 means a number below 2 and 1.234 one above 1000: semicolons
    separate the cells, and some of these are numbers with a comma.
    """
    separator: str = ""
    """What separates the cells of a text file."""
    _values: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False)
    """What has been converted already."""

    def __len__(self) -> int:
        return len(self.row_numbers)

    def where(self, position: int) -> str:
        """The name of a row in messages: `labels.csv, row 3`."""
        return f"{self.name}, {self.noun} {self.row_numbers[position]}"

    def numbers(self, title: str) -> np.ndarray | None:
        """The numbers of a column, float64 (rows,), NaN where there is none.

        Currency signs and separators of thousands are left out, and 12% is 12. None if
        a cell has anything else.
        """
        return self._once(_numbers_of, title)

    def booleans(self, title: str) -> np.ndarray | None:
        """1 for true and yes, 0 for false and no, NaN for no value, float64 (rows,);
        None if a cell has anything else.
        """
        return self._once(_booleans_of, title)

    def date_order(self, title: str) -> str | None:
        """`ymd`, `dmy` or `mdy` for a column of dates, which may have times; else
        None.
        """
        return self._once(_date_order, title)

    def not_numbers(self, title: str) -> list[int]:
        """The positions of cells with a value that is not a number."""
        return self._once(_not_numbers, title)

    def forget(self, title: str) -> None:
        """Frees the converted values of a column, which is not asked for again."""
        for key in [key for key in self._values if key[1] == title]:
            del self._values[key]
        pa.default_memory_pool().release_unused()

    def _once(self, convert: Callable[["Table", str], Any], title: str) -> Any:
        key = (convert.__name__, title)
        if key not in self._values:
            self._values[key] = convert(self, title)
        return self._values[key]

    def find(self, name: str) -> str | None:
        """The title of a column, in upper or lower case; None if there is none."""
        if name in self.columns:
            return name
        return names.first([names.column(name)], self.columns)


def is_table(path: Path) -> bool:
    """Whether a file of this name is a table."""
    return path.name.lower().endswith(SUFFIXES)


def read(path: Path) -> Table:
    """The rows of a file; its suffix tells the format.

    Raises UsageError if it cannot be read, has no rows or two columns of one name.
    """
    name = path.name.lower()
    try:
        if name.endswith((".parquet", ".pq")):
            table = from_arrow(pa.parquet.read_table(path), str(path))
        elif name.endswith((".feather", ".arrow")):
            table = from_arrow(pa.feather.read_table(path), str(path))
        else:
            content = path.read_bytes()
            if name.endswith(".gz"):
                content = gzip.decompress(content)
            text, notes = _utf8(content, path)
            reader = _read_json_lines if name.endswith(_JSON) else _read_csv
            table = reader(text, path)
            table = dataclasses.replace(table, notes=(*notes, *table.notes))
    except _READING as error:
        raise _unreadable(path, error) from None
    return dataclasses.replace(table, folder=path.parent)


def _unreadable(path: Path, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return UsageError(f"{path} cannot be read: {reason}")


def header(path: Path) -> list[str]:
    """The titles of the columns of a file, of which only the beginning is read.

    Raises UsageError if it cannot be read.
    """
    name = path.name.lower()
    try:
        if name.endswith((".parquet", ".pq")):
            return pa.parquet.read_schema(path).names
        if name.endswith((".feather", ".arrow")):
            return pa.feather.read_table(path, memory_map=True).column_names
        opener = gzip.open if name.endswith(".gz") else open
        with opener(path, "rb") as file:
            content = file.read(_MAX_HEADER)
            if len(content) == _MAX_HEADER:  # without half a character at the end
                content = content[: content.rfind(b"\n") + 1] or content
            content, _ = _utf8(content, path)
    except _READING as error:
        raise _unreadable(path, error) from None
    content = content.lstrip(b"\r\n")
    if name.endswith(_JSON):
        line = content.partition(b"\n")[0].decode()
        return [*_json_object(line, str(path))] if line.strip() else []
    content, delimiter = _delimited(content, name)
    lines = io.StringIO(content.decode(errors="replace"), newline="")
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    try:
        cells = [cell.strip() for cell in next(reader, [])]
    except csv.Error as error:
        raise _unreadable(path, error) from None
    if delimiter == "|" and _has_no_header(cells):
        return [*names.LJ_SPEECH[: len(cells)]]
    return cells


def from_arrow(table: pa.Table, name: str) -> Table:
    """The rows of a table of Arrow; words without spaces around them.

    Raises UsageError for nested columns and columns of one name.
    """
    columns = {}
    for title, values in zip(table.column_names, table.columns, strict=True):
        if title in columns:
            raise _repeated(name, title)
        values = _plain_type(values)
        if pa.types.is_struct(values.type) or pa.types.is_map(values.type):
            raise UsageError(
                f"{name}: the column {title!r} contains {values.type}; flatten it, for"
                " example with pyarrow's Table.flatten, or remove it"
            )
        if is_text(values.type):
            values = pc.utf8_trim_whitespace(values.cast(pa.string()))
        columns[title] = values
    if not table.num_rows:
        raise UsageError(f"{name} has no rows; add one for each example")
    return Table(name, columns, range(table.num_rows))


def _plain_type(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values without an encoding of Arrow, and lists of any length."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        values = values.cast(kind.storage_type)
    elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        chunks = [
            chunk.dictionary_decode()
            if pa.types.is_dictionary(kind)
            else pc.run_end_decode(chunk)
            for chunk in values.chunks
        ]
        values = pa.chunked_array(chunks, kind.value_type)
    elif pa.types.is_fixed_size_list(kind):
        values = values.cast(pa.list_(kind.value_type))
    return values


def _repeated(name: str, title: str) -> UsageError:
    return UsageError(f"{name} has several columns {title!r}; rename all but one")


def from_object(data: Any, name: str) -> Table | None:
    """The rows of a DataFrame of pandas or polars, or of a Hugging Face dataset; None
    for anything else.

    Raises UsageError as `from_arrow`.
    """
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # pandas
        titles = [str(title) for title in data.columns]
        for title in titles:
            if titles.count(title) > 1:
                raise _repeated(name, title)
        columns = {str(title): _from_pandas(data[title]) for title in data.columns}
        table = from_arrow(pa.table(columns), name)
        rows = data.index.tolist()
        is_numbered = data.index.dtype.kind in "iu" and data.index.is_unique
        return dataclasses.replace(table, row_numbers=rows) if is_numbered else table
    if hasattr(data, "to_arrow"):  # polars
        return from_arrow(data.to_arrow(), name)
    if hasattr(data, "column_names") and hasattr(data, "features"):  # Hugging Face
        return from_arrow(_with_class_names(data), name)
    return None


def _with_class_names(data: Any) -> pa.Table:
    """A dataset of Hugging Face with names in place of the numbers of classes."""
    table = data.with_format("arrow")[:]
    for number, title in enumerate(table.column_names):
        class_names = getattr(data.features[title], "names", None)
        if class_names:
            labels = table[title].cast(pa.int64())
            labels = pc.if_else(pc.less(labels, 0), None, labels)
            words = pc.take(pa.array(class_names), labels)
            table = table.set_column(number, title, words)
    return table


def join(tables: Mapping[str, Table]) -> Table:
    """The rows of several splits, with their names in the column `SPLIT`.

    Raises UsageError if one has not the columns of the first.
    """
    first, *others = tables.values()
    if not others:
        return first
    columns = {}
    for title in first.columns:
        parts = []
        for table in tables.values():
            found = table.find(title)
            if found is None:
                raise UsageError(
                    f"{table.name} has no {table.key} {title!r}, which {first.name} has"
                )
            parts.append(table.columns[found])
        if len({str(part.type) for part in parts}) > 1:
            parts = [texts(part) for part in parts]
        chunks = [chunk for part in parts for chunk in part.chunks]
        columns[title] = pa.chunked_array(chunks, parts[0].type)
    names_of_rows = [name for name, table in tables.items() for _ in range(len(table))]
    columns[SPLIT] = pa.chunked_array([pa.array(names_of_rows)])
    count = len(names_of_rows)
    return dataclasses.replace(
        first, columns=columns, row_numbers=range(count), _values={}
    )


def _from_pandas(values: Any) -> pa.Array:
    """A column of pandas; numbers among words become words."""
    if getattr(values.dtype, "name", "") == "category":
        values = values.astype(object).where(values.notna(), None)
    try:
        return pa.array(values, from_pandas=True)
    except _CONVERTING:
        present = values.notna().tolist()
        pairs = zip(values.tolist(), present, strict=True)
        return pa.array([_plain(str(cell)) if there else None for cell, there in pairs])


def _utf8(content: bytes, path: Path) -> tuple[bytes, list[str]]:
    """The content of a text file in UTF-8, and a note if it had another encoding."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = content.decode("utf-16", errors="replace")
        return text.encode(), [f"{path} is in UTF-16"]
    if content.startswith(_MAGIC) or _is_binary(content[:_MAX_HEADER]):
        raise UsageError(
            f"{path} is not a text file; save it as .csv or .parquet, for example from"
            " a spreadsheet"
        )
    content = content.removeprefix(codecs.BOM_UTF8)
    if content.isascii():
        return content, []
    try:
        content.decode()
    except UnicodeDecodeError:
        note = f"{path} is not in UTF-8; read as Windows-1252 (Latin-1)"
        return content.decode("cp1252", errors="replace").encode(), [note]
    return content, []


def _is_binary(content: bytes) -> bool:
    """Whether more than a few bytes are control characters."""
    controls = len(content) - len(content.translate(None, _CONTROLS))
    return controls > _MAX_CONTROLS * len(content)


def _read_csv(content: bytes, path: Path) -> Table:
    """A table whose first line names the columns.

    The delimiter is the most common one of the first line: comma, semicolon, tab or
    bar.
    """
    content, delimiter = _delimited(content.lstrip(b"\r\n"), path.name.lower())
    rows, notes = _parse(content, delimiter, path)
    header = [cells[0].as_py().strip() for cells in rows]
    first = 1
    if delimiter == "|" and _has_no_header(header):
        header, first = [*names.LJ_SPEECH[: len(header)]], 0
    columns: dict[str, pa.ChunkedArray] = {}
    count = len(rows[0]) - first
    for title in header:
        cells = pc.utf8_trim_whitespace(rows.pop(0)[first:])  # frees the untrimmed
        if not title and not _any_text(cells):
            continue
        if title in columns:
            raise _repeated(str(path), title)
        columns[title] = cells
    if count < 1:
        raise UsageError(
            f"{path} has no rows; add one with a file, numbers or a text, and its"
            " label, for each example"
        )
    return Table(
        str(path),
        columns,
        range(2, count + 2),
        notes=tuple(notes),
        has_decimal_comma=delimiter == ";" and _has_decimal_commas(content),
        separator=delimiter,
    )


def _delimited(content: bytes, name: str) -> tuple[bytes, str]:
    """The content without the line of Excel that names the delimiter; the delimiter."""
    line = _first_line(content)
    if line.lower().startswith("sep=") and len(line) == 5:
        return content[5:].lstrip(b"\r\n"), line[4]
    return content, _delimiter(line, name)


def _first_line(content: bytes) -> str:
    end = min(content.find(b"\n") % (len(content) + 1), _MAX_HEADER)
    return re.split(rb"\r\n|\r|\n", content[:end], maxsplit=1)[0].decode(
        errors="replace"
    )


def _delimiter(line: str, name: str) -> str:
    line = re.sub('"[^"]*"', "", line)
    if "\t" in line and name.endswith((".tsv", ".tsv.gz")):
        return "\t"
    if "|" in line:  # also beside commas in the texts of LJ Speech
        return "|"
    return max(",;\t", key=line.count)


def _has_no_header(cells: Sequence[str]) -> bool:
    """Whether the first row is an example of the LJ Speech data set: its id, its
    transcript, and perhaps the transcript in words.
    """
    if not 2 <= len(cells) <= len(names.LJ_SPEECH):
        return False
    return {*map(names.column, cells)}.isdisjoint({*names.FILES, "id"})


def _any_text(cells: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.greater(pc.utf8_length(cells), 0)).as_py())


def _parse(
    content: bytes, delimiter: str, path: Path
) -> tuple[list[pa.ChunkedArray], list[str]]:
    """The cells of each column as strings, the first line included; and notes.

    Raises UsageError naming the row that has more cells than the first line.
    """
    if delimiter == "|" or b'"' not in content:
        return _split(content, delimiter, path, quoted=False), []
    if delimiter == "\t" and _are_bare_quotes(content):
        note = f"{path}: quotes are part of the texts, as tabs separate the cells"
        return _split(content, delimiter, path, quoted=False), [note]
    return _split(content, delimiter, path, quoted=True), []


def _are_bare_quotes(content: bytes) -> bool:
    """Whether each line has all its cells if quotes mean nothing, and some quote begins
    a cell that it does not end.
    """
    lines = [line for line in content.splitlines() if line.strip()]
    count = lines[0].count(b"\t")
    if any(line.count(b"\t") != count for line in lines):
        return False
    cells = b"\n".join(lines).replace(b"\t", b"\n")
    begun = re.findall(rb'^"[^\n]*$', cells, re.MULTILINE)
    return not all(re.fullmatch(rb'"([^"]|"")*"\s*', cell) for cell in begun)


def _split(
    content: bytes, delimiter: str, path: Path, *, quoted: bool
) -> list[pa.ChunkedArray]:
    malformed: list[Any] = []

    def remember(row: Any) -> str:
        malformed.append(row)
        return "skip"

    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    start = content[:_MAX_HEADER].decode(errors="replace")
    lines = io.StringIO(start, newline="")
    cells = next(csv.reader(lines, delimiter=delimiter, quoting=quoting), [])
    count = max(len(cells), 1)
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(content),
            pa.csv.ReadOptions(autogenerate_column_names=True, block_size=_BLOCK_BYTES),
            pa.csv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if quoted else False,
                newlines_in_values=quoted,
                invalid_row_handler=remember,
            ),
            pa.csv.ConvertOptions(
                column_types={f"f{number}": pa.string() for number in range(count)},
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            raise UsageError(f"{path} has no rows; add one for each example") from None
        return _split_slowly(content, delimiter, path, quoting)
    is_spaced = quoted and re.search(rb'[,;\t] +"', content)
    # Cells with line breaks, or quotes that do not end where they should.
    is_joined = quoted and table.num_rows != _count_lines(content)
    if malformed or table.num_columns != count or is_spaced or is_joined:
        return _split_slowly(content, delimiter, path, quoting)
    return table.columns


def _count_lines(content: bytes) -> int:
    return sum(1 for line in content.splitlines() if line.strip())


def _split_slowly(
    content: bytes, delimiter: str, path: Path, quoting: Any
) -> list[pa.ChunkedArray]:
    """As `_split`, for rows with fewer cells than the first one, quotes after spaces,
    and cells with line breaks.

    Raises UsageError naming the line whose quotes are wrong.
    """
    csv.field_size_limit(max(csv.field_size_limit(), len(content)))
    reader = csv.reader(
        io.StringIO(content.decode(), newline=""),
        delimiter=delimiter,
        quoting=quoting,
        skipinitialspace=True,
        strict=True,
    )
    rows: list[list[str]] = []
    line = 0
    try:
        for cells in reader:
            if cells:
                rows.append(cells)
            line = reader.line_num
    except csv.Error as error:
        raise UsageError(
            f"{path}, line {line + 1}: {error}; correct the quotes"
        ) from None
    count = len(rows[0])
    for number, row in enumerate(rows, start=1):
        if any(cell.strip() for cell in row[count:]):
            raise UsageError(
                f"{path}, row {number} has {len(row)} cells, but the first line names"
                f" {count} columns; correct it"
            )
        row[:] = [*row[:count], *[""] * (count - len(row))]
    return [pa.chunked_array([pa.array(cells)]) for cells in zip(*rows, strict=True)]


def _read_json_lines(content: bytes, path: Path) -> Table:
    """A table with a JSON object in each line, all with the same keys."""
    columns: dict[str, list[Any]] = {}
    numbers: list[int] = []
    # Not `splitlines`: strings may contain other line breaks of Unicode.
    for number, line in enumerate(content.decode().split("\n"), start=1):
        if not line.strip():
            continue
        row = _json_object(line, f"{path}, line {number}")
        if not numbers:
            columns = {key: [] for key in row}
        for key in sorted(columns.keys() ^ row.keys()):
            has = "has no" if key in columns else "has the"
            verb = "has" if key in columns else "does not have"
            raise UsageError(
                f"{path}, line {number} {has} key {key!r}, which line {numbers[0]}"
                f" {verb}; give all lines the same keys, with null for no value"
            )
        for key, value in row.items():
            columns[key].append(value)
        numbers.append(number)
    if not numbers:
        raise UsageError(
            f"{path} has no lines; add a JSON object for each example, such as"
            ' {"image": "a.png", "label": "cat"}'
        )
    arrays = {}
    for key, values in columns.items():
        if key.strip() in arrays:
            raise _repeated(str(path), key.strip())
        arrays[key.strip()] = _json_column(values, f"{path}: the key {key!r}")
    return Table(str(path), arrays, numbers, noun="line", key="key")


def _json_column(values: list[Any], where: str) -> pa.ChunkedArray:
    if any(isinstance(value, dict) for value in values):
        raise UsageError(f"{where} has objects; give numbers, strings, lists or null")
    try:
        array = pa.array(values)
    except _CONVERTING:
        texts = [value if value is None else _json_text(value) for value in values]
        array = pa.array(texts)
    if is_text(array.type):
        array = pc.utf8_trim_whitespace(array)
    return pa.chunked_array([array])


def _json_text(value: Any) -> str:
    return _plain(value if isinstance(value, str) else json.dumps(value))


def _plain(text: str) -> str:
    """A text without half characters, which Arrow does not take."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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


def is_text(kind: pa.DataType) -> bool:
    """Whether the values are strings."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The cells as strings, as the file writes them; empty where there is no value."""
    if is_text(values.type):
        return pc.fill_null(values, "")
    if pa.types.is_temporal(values.type):
        return pc.fill_null(_write_dates(values), "")
    if pa.types.is_boolean(values.type):
        return pc.fill_null(pc.if_else(values, "True", "False"), "")
    if pa.types.is_null(values.type):
        return pa.chunked_array([pa.array([""] * len(values))])
    if pa.types.is_floating(values.type) and _are_whole(values):
        values = values.cast(pa.int64())
    if not _is_castable(values.type):
        cells = ["" if cell is None else _written(cell) for cell in values.to_pylist()]
        values = pa.chunked_array([pa.array(cells, pa.string())])
    return pc.fill_null(values.cast(pa.string()), "")


def _are_whole(values: pa.ChunkedArray) -> bool:
    """Whether all numbers are whole, as pandas writes 1.0 in a column with a gap."""
    numbers = values.drop_null().to_numpy().astype(np.float64)
    is_whole = (numbers == np.round(numbers)) & (np.abs(numbers) < _MAX_WHOLE)
    return bool(is_whole.all())


def _written(cell: Any) -> str:
    return cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)


def _is_castable(kind: pa.DataType) -> bool:
    """Whether Arrow can write all values of a type as strings."""
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return is_number or pa.types.is_decimal(kind)


def _write_dates(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates and times as in ISO 8601; whole days without a time."""
    if pa.types.is_time(values.type) or pa.types.is_duration(values.type):
        return values.cast(pa.string())
    seconds = values.cast(pa.timestamp("s"), safe=False)
    days = pc.floor_temporal(seconds, unit="day")
    is_date = pc.all(pc.equal(seconds, days)).as_py()
    return pc.strftime(seconds, "%Y-%m-%d" if is_date else "%Y-%m-%d %H:%M:%S")


def missing(values: pa.ChunkedArray) -> np.ndarray:
    """Whether a cell of words has no value, bool (rows,)."""
    words = texts(values)
    is_missing = pc.is_in(words, pa.array(names.MISSING_TEXTS))
    return is_missing.to_numpy()


def words(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The cells as strings, empty where there is no value or a word for it."""
    return pc.if_else(pa.array(missing(values)), "", texts(values))


def _numbers_of(table: Table, title: str) -> np.ndarray | None:
    result = _numbers(table.columns[title], table.has_decimal_comma)
    if result is None:
        return None
    return result.to_numpy().astype(np.float64, copy=False)


def _numbers(
    values: pa.ChunkedArray, has_decimal_comma: bool
) -> pa.ChunkedArray | None:
    kind = values.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if is_number or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return values.cast(pa.float64(), safe=False)
    if not is_text(kind):
        return None
    if has_decimal_comma and _begin_with_groups(values):
        plain = pc.replace_substring(_without_missing(values), ".", "")
        return plain.cast(pa.float64())
    with contextlib.suppress(pa.ArrowInvalid):
        return values.cast(pa.float64())
    sample = _sample(values)
    if sample and sum(map(_begins_like_number, sample)) < len(sample) / 2:
        return None
    present = _without_missing(values)
    with contextlib.suppress(pa.ArrowInvalid):
        return present.cast(pa.float64())
    return _plain_numbers(present, has_decimal_comma)


def _begin_with_groups(values: pa.ChunkedArray) -> bool:
    """Whether all numbers are whole, with points between the thousands."""
    if not all(re.match(_GROUPED, text) for text in _sample(values)):
        return False
    present = _without_missing(values)
    return bool(pc.all(pc.match_substring_regex(present, _GROUPED)).as_py())


def _has_decimal_commas(content: bytes) -> bool:
    """Whether a number with a comma is among the first cells."""
    pattern = rb'(?:^|[;"])[+-]?[\d.]*\d,\d+["; %\r\n]'
    return re.search(pattern, content[:_MAX_HEADER], re.MULTILINE) is not None


def are_like_thousands(table: Table, title: str) -> bool:
    """Whether all numbers of a column have a point before three digits, as 1.234, which
    may be thousands, and nothing in the table tells.
    """
    values = table.columns[title]
    if table.separator != ";" or table.has_decimal_comma or not is_text(values.type):
        return False
    different = _without_missing(values).unique().drop_null()
    if not pc.any(pc.match_substring(different, ".")).as_py():
        return False
    return bool(pc.all(pc.match_substring_regex(different, _GROUPED)).as_py())


def _without_missing(values: pa.ChunkedArray) -> pa.ChunkedArray:
    is_missing = pc.is_in(pc.utf8_lower(values), pa.array(names.MISSING_NUMBERS))
    return pc.if_else(is_missing, pa.scalar(None, pa.string()), values)


def _begins_like_number(text: str) -> bool:
    return re.match(r"[\s$€£¥₹(+-]*([A-Z]{3}\s*)?[.,]?\d", text) is not None


def _plain_numbers(
    present: pa.ChunkedArray, has_decimal_comma: bool
) -> pa.ChunkedArray | None:
    """Numbers with currency signs, percent signs, or separators of thousands."""
    plain = pc.replace_substring_regex(present, _SIGNS, "")
    plain = pc.replace_substring_regex(plain, r"^\((.+)\)$", r"-\1")
    with contextlib.suppress(pa.ArrowInvalid):
        return plain.cast(pa.float64())
    forms = [(_THOUSANDS, ","), (_DECIMAL_COMMA, ".")]
    if has_decimal_comma:
        forms.reverse()
    for pattern, separator in forms:
        if pc.all(pc.match_substring_regex(plain, pattern)).as_py():
            plain = pc.replace_substring(plain, separator, "")
            return pc.replace_substring(plain, ",", ".").cast(pa.float64())
    return None


def _not_numbers(table: Table, title: str) -> list[int]:
    words = _without_missing(texts(table.columns[title]))
    different = words.unique().drop_null()
    is_plain = pc.match_substring_regex(different, _PLAIN)
    wrong = []
    for word in different.filter(pc.invert(is_plain)).to_pylist():
        cell = pa.chunked_array([pa.array([word])])
        is_number = _begins_like_number(word)
        if not is_number or _numbers(cell, table.has_decimal_comma) is None:
            wrong.append(word)
    is_wrong = pc.is_in(words, pa.array(wrong, pa.string()))
    positions: list[int] = np.flatnonzero(is_wrong.to_numpy()).tolist()
    if not positions and table.numbers(title) is None:  # 1,234.5 beside 1,5
        plain = pc.match_substring_regex(words, r"^[+-]?\d+$")
        positions = np.flatnonzero(~pc.fill_null(plain, True).to_numpy()).tolist()
    return positions


def _booleans_of(table: Table, title: str) -> np.ndarray | None:
    values = table.columns[title]
    if pa.types.is_boolean(values.type):
        return values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if not is_text(values.type) or not _are_few(values):
        return None
    words = pc.utf8_lower(_without_missing(values))
    different = [word for word in words.unique().to_pylist() if word is not None]
    if not different or not {*different} <= _BOOLEANS.keys():
        return None
    result = np.full(len(words), np.nan)
    for word, number in _BOOLEANS.items():
        is_word = pc.fill_null(pc.equal(words, word), False)
        result[is_word.to_numpy()] = number
    return result


def _are_few(values: pa.ChunkedArray) -> bool:
    """Whether the first values are few different ones, as words for true and false."""
    return len(values[:1000].unique()) <= 2 * len(_BOOLEANS)


def _date_order(table: Table, title: str) -> str | None:
    values = table.columns[title]
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        return "ymd"
    if not is_text(values.type):
        return None
    sample = _sample(values)
    for order, pattern in DATES.items():
        if not sample or not all(re.match(pattern, text) for text in sample):
            continue
        present = _without_missing(values)
        if pc.all(pc.match_substring_regex(present, pattern)).as_py():
            return order
    return None


def has_ambiguous_dates(table: Table, title: str) -> bool:
    """Whether all dates of a column could have day and month in the other order."""
    if table.date_order(title) != "dmy" or not is_text(table.columns[title].type):
        return False
    present = _without_missing(table.columns[title])
    return bool(pc.all(pc.match_substring_regex(present, DATES["mdy"])).as_py())


def iso_dates(table: Table, title: str) -> pa.ChunkedArray:
    """The dates of a column as 2024-05-17; unchanged if day and month could be in
    either order, which the model knows from its training data.
    """
    values = table.columns[title]
    order = table.date_order(title)
    if order not in ("dmy", "mdy") or has_ambiguous_dates(table, title):
        return words(values)
    first, second = (r"\2", r"\1") if order == "dmy" else (r"\1", r"\2")
    pattern = r"^(\d+)[-/.](\d+)[-/.](\d{4})"
    return pc.replace_substring_regex(words(values), pattern, rf"\3-{first}-{second}")


def _sample(values: pa.ChunkedArray) -> list[str]:
    """The first values that are there."""
    sample: list[str] = []
    for start in range(0, len(values), 10 * _SAMPLE):
        cells = values[start : start + 10 * _SAMPLE]
        sample += _without_missing(cells).drop_null().to_pylist()
        if len(sample) >= _SAMPLE:
            break
    return sample[:_SAMPLE]


def lists(values: pa.ChunkedArray) -> bool:
    """Whether the cells are lists."""
    return pa.types.is_list(values.type) or pa.types.is_large_list(values.type)


def quote_cell(values: pa.ChunkedArray, position: int) -> str:
    """A cell in messages."""
    return quote(str(values[position].as_py()))
