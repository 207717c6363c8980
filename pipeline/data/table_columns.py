"""What the columns of a table hold: what is to be predicted, and from what."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data import file_search, file_types, names
from pipeline.data.table import (
    Table,
    are_like_thousands,
    has_ambiguous_dates,
    is_text,
    lists,
    missing,
    quote_cell,
    texts,
)
from pipeline.utils.console import join_words, pluralize
from pipeline.utils.errors import NoLabels, UsageError
from pipeline.utils.table_column import TableColumn

TRUTHS = ("label", "labels", "target", "mask", "transcript")
"""Fields of what is to be predicted; each has an option that names its column."""
NUMBERS = "numbers"
"""The raw field of the numbers of a table's rows; words are in `strings`."""
_MAX_CLASSES = 20  # whole numbers with more values are numbers to predict
_MIN_WORDS = 3  # on average, in a column of texts
_MIN_WORDS_ALONE = 8  # on average, in texts beside which other columns are left out
_MIN_SHARE_OF_TEXTS = 0.2  # of different values in a column of texts
_MAX_CLASSES_OF_WORDS = 0.5  # of the rows; more are names of rows
# Of numbers in a column in which the rest are errors; in one of any name.
_MIN_SHARE_OF_NUMBERS, _MIN_SHARE_OF_ALL = 0.5, 0.9
_SEPARATORS = re.compile(r"\s*[|;,]\s*")
_ROW_NAME = re.compile(
    r"(?<![a-z])ids?$|Ids?$|ID$|(?<![a-z])n(o|r|um)$|N(o|r|um)$|numm?er$"
)
_TIME_NAME = re.compile("year|month|week|day|hour|minute|second|time|date|step", re.I)
_MAX_NAMED = 5  # columns in a message
_MIN_SPEAKERS = 10  # fewer are not kept apart: a split might be empty
_SAMPLE = 100  # rows whose files are searched


@dataclasses.dataclass(frozen=True)
class Options:
    """Columns that the user named; None: by their names in the table."""

    image: str | None = None
    column: str | None = None
    """The column of the values of an input, such as texts."""
    label: str | None = None
    labels: str | None = None
    target: str | None = None
    mask: str | None = None
    transcript: str | None = None
    predict: str | None = None
    """What is to be predicted: classes or numbers by its values."""
    group: str | None = None
    split: str | None = None
    columns: tuple[str, ...] = ()
    """Columns that are inputs; beside files or texts none by default, else all."""
    model_columns: tuple[TableColumn, ...] | None = None
    """The columns that a model takes, instead of `columns`."""
    field: str | None = None
    """The raw field for the content of a file, or of the rows."""
    suffixes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Roles:
    """What the columns of a table are for."""

    field: str
    """The raw field of the examples: `image`, `text`, `features`, `numbers`, ..."""
    truths: Mapping[str, Sequence[str]]
    """One of `TRUTHS` -> its columns: one, or of `labels` one for each class."""
    source: str = ""
    """The column of files, of texts or of lists; empty for the rows of a table."""
    has_files: bool = False
    columns: tuple[TableColumn, ...] = ()
    """Columns that are inputs, beside `source` if there is one."""
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Column that is not used -> why; empty beside texts or files."""
    group: str | None = None
    split: str | None = None


def find_roles(table: Table, options: Options) -> Roles:
    """What the columns are for, by the options or else by their names and values.

    Raises UsageError if a column is missing, or if it is not obvious which one is to
    be predicted.
    """
    truths = _named_truths(table, options) or _usual_truths(table, options)
    split = options.split or names.first(["split"], table.columns)
    split = split and _require(table, split, "--source.split")
    group = options.group and _require(table, options.group, "--source.group")
    used: set[str | None] = {split, group}
    for titles in truths.values():
        used.update(titles)
    file = "" if options.column else file_column(table, options, used)
    if file:
        truths = truths or _transcripts(table)
        used.update(*truths.values())
        field = options.field or _field_of_files(table, file, options)
        if field == "audio":
            _require_whole_recordings(table)
            group = group or _speaker_column(table, used)
        columns, left_out = _named_columns(table, options, file, used | {group})
        if columns and truths.keys() & {"mask", "transcript"}:
            raise UsageError(
                f"{table.name}: --source.columns: with columns beside files, only"
                " classes, labels and numbers can be predicted; remove it"
            )
        roles = Roles(
            field,
            truths,
            source=file,
            has_files=True,
            columns=columns,
            left_out=left_out,
        )
    else:
        roles = _roles_without_files(table, options, truths, used)
        group = group or names.first(["group"], table.columns)
    if not roles.truths:
        raise _no_truths(table, used | {roles.source})
    return dataclasses.replace(roles, split=split, group=group)


def _require_whole_recordings(table: Table) -> None:
    """Raises UsageError if examples are parts of recordings, as in NeMo's manifests."""
    title = table.find("offset")
    offsets = table.numbers(title) if title else None
    if title is None or offsets is None:
        return
    for row in np.flatnonzero(offsets > 0)[:1].tolist():
        raise UsageError(
            f"{table.where(row)}: {title} {quote_cell(table.columns[title], row)};"
            " parts of recordings are not read: cut them, one file for each"
            f" {table.noun}, and remove the {table.key} {title!r}"
        )


def _speaker_column(table: Table, used: Collection[str | None]) -> str | None:
    """The column of who speaks, if there are enough of them to keep apart."""
    title = names.first(names.SPEAKERS, table.columns)
    if title is None or title in used or _has_gap(table, title):
        return None
    count = pc.count_distinct(table.columns[title]).as_py()
    return title if count >= _MIN_SPEAKERS else None


def _has_gap(table: Table, title: str) -> bool:
    return bool(missing(table.columns[title]).any())


def _roles_without_files(
    table: Table,
    options: Options,
    truths: Mapping[str, Sequence[str]],
    used: set[str | None],
) -> Roles:
    """The roles of a column of texts or of lists, or else of all columns."""
    field, column = _column_of_values(table, options, used)
    used = used | {names.first(["group"], table.columns)}
    if column and (options.column or _is_text_alone(table, column, used)):
        columns, left_out = _named_columns(table, options, column, used)
        return Roles(field, truths, source=column, columns=columns, left_out=left_out)
    if options.columns or options.model_columns is not None:
        columns, _ = _named_columns(table, options, "", used)
        return Roles(NUMBERS, truths, columns=columns)
    title = table.find("features")
    if title and title not in used and lists(table.columns[title]):
        _, left_out = _named_columns(table, Options(), title, used)
        return Roles("features", truths, source=title, left_out=left_out)
    columns, left_out = _input_columns(table, used)
    if [column.kind for column in columns] == ["text"] and options.field != NUMBERS:
        field = next(iter(file_types.value_columns()))
        return Roles(field, truths, source=columns[0].name, left_out=left_out)
    if not columns and truths:
        reasons = [f"{title!r} ({why})" for title, why in left_out.items()]
        raise UsageError(
            f"{table.name} has nothing to predict from:"
            f" {join_words(reasons) or 'it has no other columns'}"
        )
    return Roles(NUMBERS, truths, columns=columns, left_out=left_out)


def _named_columns(
    table: Table, options: Options, source: str, used: Collection[str | None]
) -> tuple[tuple[TableColumn, ...], dict[str, str]]:
    """The inputs beside a column of files or texts, and the columns left out."""
    if options.model_columns is not None:
        return _matching(table, options.model_columns), {}
    columns = []
    for title in _titles(table, options.columns):
        if title == source:
            continue
        column, reason = None, "it has another use"
        if title not in used:
            column, reason = _input_column(table, title, is_named=True)
        if column is None:
            raise UsageError(
                f"{table.name}: --source.columns: the {table.key} {title!r} cannot be"
                f" an input: {reason}; remove it there"
            )
        columns.append(column)
    titles = {column.name for column in columns}
    others = (title for title in table.columns if title not in {*used, source, *titles})
    return tuple(columns), dict.fromkeys(others, "")


def _titles(table: Table, names: Sequence[str]) -> list[str]:
    """The titles of columns; a name may also be several with commas between them."""
    titles: dict[str, None] = {}  # ordered, without duplicates
    for name in names:
        parts = [name] if table.find(name) else name.split(",")
        for part in parts:
            titles[_require(table, part, "--source.columns")] = None
    return [*titles]


def _matching(table: Table, columns: Sequence[TableColumn]) -> tuple[TableColumn, ...]:
    """The columns of a model in a table, which has the same names in upper or lower
    case.

    Raises UsageError if one is missing or has other values.
    """
    for column in columns:
        title = _require(table, column.name, "--source.column")
        values = table.columns[title]
        if column.kind in ("number", "boolean") and table.numbers(title) is None:
            if table.booleans(title) is not None:
                continue
            row = table.not_numbers(title)[0]
            raise UsageError(
                f"{table.where(row)}: {quote_cell(values, row)} in the {table.key}"
                f" {title!r} is not a number, which the model takes; correct it"
            )
    return tuple(columns)


def _is_text_alone(table: Table, title: str, used: Collection[str | None]) -> bool:
    """Whether a column of texts is all that a model should read: it is long, or there
    is nothing else.
    """
    words = texts(table.columns[title])
    spaces = pc.mean(pc.count_substring(words[:1000], " ")).as_py() or 0
    others, _ = _input_columns(table, {*used, title})
    return spaces >= _MIN_WORDS_ALONE - 1 or not others


def _require(table: Table, name: str, flag: str) -> str:
    """The title of a column; UsageError if there is none."""
    title = table.find(name)
    if title is None:
        raise UsageError(
            f"{table.name} has no {table.key} {name!r}; it has"
            f" {', '.join(table.columns)}; name one with {flag}"
        )
    return title


def _no_truths(table: Table, used: Collection[str | None]) -> NoLabels:
    titles = [title for title in table.columns if title not in used]
    example = titles[-1] if titles else "NAME"
    return NoLabels(
        f"{table.name}: which {table.key} is to be predicted? It has"
        f" {', '.join(titles) or 'no others'}; write for example --target"
        f" {_quoted(example)}"
    )


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w.-]+", word) else f'"{word}"'


def _named_truths(table: Table, options: Options) -> dict[str, Sequence[str]]:
    """The columns of what is to be predicted that the user named."""
    truths: dict[str, Sequence[str]] = {}
    for field in TRUTHS:
        name = getattr(options, field)
        if name and field == "labels" and table.find(name) is None:
            truths[field] = _indicators(table, name)
        elif name:
            truths[field] = (_require(table, name, f"--source.{field}"),)
    if options.predict:
        title = _require(table, options.predict, "--target")
        truths[_kind(table, title, "")] = (title,)
    return truths


def _indicators(table: Table, name: str) -> Sequence[str]:
    """Columns of 0 and 1 with commas between their names, one for each class."""
    titles = [_require(table, part, "--source.labels") for part in name.split(",")]
    for title in titles:
        values = table.numbers(title)
        if values is None or not np.isin(values, (0, 1)).all():
            raise UsageError(
                f"{table.name}: the {table.key} {title!r} must be 0 or 1 in each"
                f" {table.noun}, as one of several --source.labels"
            )
    return titles


def _usual_truths(table: Table, options: Options) -> dict[str, Sequence[str]]:
    """The column with a usual name of what is to be predicted; empty if there is none
    or the table has files and what they say.
    """
    for field, usual in (
        ("label", names.LABELS),
        ("labels", names.SEVERAL_LABELS),
        ("target", names.TARGETS),
        ("mask", names.MASKS),
    ):
        title = names.first(usual, table.columns)
        if title and title not in (options.column, options.image):
            return {_kind(table, title, field): (title,)}
    return {}


def _transcripts(table: Table) -> dict[str, Sequence[str]]:
    title = names.first(names.TRANSCRIPTS, table.columns)
    return {"transcript": (title,)} if title else {}


def _kind(table: Table, title: str, field: str) -> str:
    """The field for a column, whose name is usual for `field`.

    Lists are several of either kind. Words are labels, and numbers that are not whole
    are numbers to predict. Whole numbers are labels if the name says so, if they are 0
    and 1, or if the name says nothing and there are few of them.
    """
    values = table.columns[title]
    if field in ("labels", "mask"):
        return field
    if lists(values):
        return "labels" if is_text(values.type.value_type) else "target"
    numbers = table.numbers(title)
    if numbers is None:
        # Other values of a column of numbers are reported.
        share = _MIN_SHARE_OF_NUMBERS if field == "target" else _MIN_SHARE_OF_ALL
        are_labels = field == "label" or not _mostly_numbers(table, title, share)
        return "label" if are_labels else "target"
    different = np.unique(numbers[~np.isnan(numbers)])
    if (different != np.round(different)).any():
        return "target"
    if field == "label" and names.column(title) not in names.TARGETS:
        return "label"
    if field in ("label", "target"):
        words = texts(values)
        has_points = pc.any(pc.match_substring(words, ".")).as_py()
        is_binary = len(different) == 2 and different.tolist() == [0, 1]
        is_label = is_binary or (field == "label" and not has_points)
        return "label" if is_label else "target"
    return "label" if len(different) <= _MAX_CLASSES else "target"


def _mostly_numbers(table: Table, title: str, share: float) -> bool:
    """Whether more than a share of the values of a column of words are numbers."""
    values = table.columns[title]
    if not pa.types.is_string(values.type):
        return False
    wrong = len(table.not_numbers(title))
    present = len(values) - int(missing(values).sum())
    return present - wrong > share * present


def file_column(
    table: Table, options: Options, used: Collection[str | None] = ()
) -> str:
    """The column of files; empty if there is none."""
    if options.image:
        return _require(table, options.image, "--source.image")
    if options.field == NUMBERS:
        return ""
    types = file_types.select(options.field, options.suffixes)
    for usual in names.FILES:
        title = names.first([usual], table.columns)
        if not title or title in used or not _are_words(table, title):
            continue
        if _names_files(table, title, types):  # not those of source code
            return title
    for field in types:
        title = names.first([field], table.columns)
        if not title or title in used or not _are_words(table, title):
            continue
        if field not in file_types.value_columns() or _are_files(table, title, types):
            return title
    title = table.find("id")
    if title is None or title in used or not _names_files(table, title, types):
        return ""
    return title


def _field_of_type(options: Options) -> str | None:
    return None if options.field == NUMBERS else options.field


def _are_words(table: Table, title: str) -> bool:
    """Whether a column has words, not numbers or lists."""
    return is_text(table.columns[title].type) and table.numbers(title) is None


def _are_files(table: Table, title: str, types: Mapping[str, tuple[str, ...]]) -> bool:
    words = [word for word in texts(table.columns[title]).to_pylist() if word]
    return bool(words) and all(file_types.field_of(word, types) for word in words)


def _names_files(
    table: Table, title: str, types: Mapping[str, tuple[str, ...]]
) -> bool:
    """Whether the first rows name files of these types; the column `id` of tables of
    Kaggle does so without suffixes.
    """
    words = texts(table.columns[title][:_SAMPLE]).to_pylist()
    if any(file_types.field_of(word, types) for word in words):
        return True
    files, _ = file_search.find_files(words, table.folder, table.name, types)
    return any(files)


def _field_of_files(table: Table, title: str, options: Options) -> str:
    """The raw field of files, by the suffixes of most of them; else `image`."""
    types = types_of_files(title, options)
    words = texts(table.columns[title]).to_pylist()
    if not any(file_types.field_of(word, types) for word in words):
        words, _ = file_search.find_files(words, table.folder, table.name, types)
    return file_types.most_common(words, types)


def types_of_files(title: str, options: Options) -> dict[str, tuple[str, ...]]:
    """Field -> suffixes of the files that a column may name.

    A column that has the name of a field names files of this field.
    """
    types = file_types.select(_field_of_type(options), options.suffixes)
    name = names.column(title)
    return {name: types[name]} if name in types else types


def _column_of_values(
    table: Table, options: Options, used: Collection[str | None]
) -> tuple[str, str]:
    """The field and the column of texts; both empty if there is none."""
    fields = file_types.value_columns()
    if options.column:
        title = _require(table, options.column, "--source.column")
        field = options.field if options.field in fields else next(iter(fields))
        return str(field), title
    if options.field:
        fields = {name: fields[name] for name in fields if name == options.field}
    for field, usual in fields.items():
        titles = []
        for title in table.columns:
            is_usual = names.column(title) in usual and title not in used
            if is_usual and _are_words(table, title):
                titles.append(title)
        if len(titles) > 1:
            return "", ""
        if titles:
            return field, titles[0]
    return "", ""


def text_column(table: Table, options: Options) -> str:
    """The column of texts for a model that takes them; empty if there is none."""
    if options.column:
        return table.find(options.column) or ""
    return _column_of_values(table, options, ())[1]


def _input_columns(
    table: Table, used: Collection[str | None]
) -> tuple[tuple[TableColumn, ...], dict[str, str]]:
    """The columns from which is predicted, and why others are left out."""
    columns = []
    left_out = {}
    for title in table.columns:
        if title in used:
            continue
        column, reason = _input_column(table, title)
        if column is None:
            left_out[title] = reason
        else:
            columns.append(column)
    return tuple(columns), left_out


def _input_column(
    table: Table, title: str, is_named: bool = False
) -> tuple[TableColumn | None, str]:
    """What a column holds, or why it is not used; one that is named may identify the
    rows.
    """
    values = table.columns[title]
    if lists(values):
        return None, "lists"
    booleans = table.booleans(title)
    numbers = table.numbers(title) if booleans is None else booleans
    if numbers is not None:
        present = numbers[~np.isnan(numbers)]
        if not len(present):
            return None, "no values"
        if len(present) == len(numbers) and present.min() == present.max():
            return None, "one value"
        is_name = names.column(title) in names.ROW_NAMES
        if not is_named and (is_name or _are_row_numbers(title, numbers)):
            return None, "it identifies the rows"
        return TableColumn(title, "number" if booleans is None else "boolean"), ""
    order = table.date_order(title)
    if order:
        return TableColumn(title, "date", order), ""
    is_varied = pc.count_distinct(values).as_py() > _MAX_CLASSES
    if is_varied and _mostly_numbers(table, title, _MIN_SHARE_OF_ALL):
        row = table.not_numbers(title)[0]
        cell = f"{quote_cell(values, row)} in {table.noun} {table.row_numbers[row]}"
        return None, f"{cell} is not a number; correct it"
    return _column_of_words(table, title, is_named)


def _are_row_numbers(title: str, numbers: np.ndarray) -> bool:
    """Whether a column has another whole number in each row, and a name such as
    `PassengerId`, or the numbers of a count that does not measure time.
    """
    is_whole = np.isfinite(numbers).all() and (numbers == np.round(numbers)).all()
    if not is_whole or len(np.unique(numbers)) < len(numbers):
        return False
    if _ROW_NAME.search(title):
        return True
    is_count = numbers.max() - numbers.min() == len(numbers) - 1
    return bool(is_count and len(numbers) > _SAMPLE and not _TIME_NAME.search(title))


def _column_of_words(
    table: Table, title: str, is_named: bool
) -> tuple[TableColumn | None, str]:
    words = texts(table.columns[title])
    present = words.filter(pa.array(~missing(words)))
    count = pc.count_distinct(present).as_py()
    if not count:
        return None, "no values"
    if count == 1 and len(present) == len(words):
        return None, "one value"
    share = count / len(present)
    spaces = pc.count_substring(present[:1000], " ")
    if share > _MIN_SHARE_OF_TEXTS and pc.mean(spaces).as_py() >= _MIN_WORDS - 1:
        return TableColumn(title, "text"), ""
    if is_named:
        return TableColumn(title, "category"), ""
    if names.column(title) in names.ROW_NAMES or share == 1:
        return None, "it identifies the rows"
    if count > 10 and share > _MAX_CLASSES_OF_WORDS and len(present) > 100:
        return None, f"{count:,} different words in {len(present):,} rows"
    return TableColumn(title, "category"), ""


def split_labels(text: str) -> tuple[str, ...]:
    """The labels of a cell, without repetition, with `|`, `;` or `,` between them, or
    as a list of Python or JSON.
    """
    inner = text.strip()
    if inner[:1] in "[(" and inner[-1:] in "])":
        inner = re.sub("['\"]", "", inner[1:-1])
    labels = {part.strip() for part in _SEPARATORS.split(inner)}
    return tuple(sorted(labels - {""}))


def describe(table: Table, roles: Roles) -> list[str]:
    """Notes about the columns that are used, and how to say otherwise."""
    truths = []
    for field, titles in roles.truths.items():
        listing = ", ".join(map(repr, titles[:_MAX_NAMED]))
        truths.append(f"{field} is the {table.key} {listing}")
    note = f"{table.name}: inputs are {_inputs(table, roles)}; {', '.join(truths)}"
    if roles.group:
        note += f"; groups of {roles.group!r} stay together"
    notes = [note + _other_kind(table, roles)]
    notes += _ambiguity_notes(table, roles)
    reasons: dict[str, list[str]] = {}
    for title, reason in roles.left_out.items():
        reasons.setdefault(reason, []).append(repr(title))
    for reason, titles in reasons.items():
        listing = (
            join_words(titles)
            if len(titles) <= _MAX_NAMED
            else (f"{', '.join(titles[:_MAX_NAMED])}, ...")
        )
        why = f" ({reason})" if reason else ""
        if not reason and roles.truths.keys() <= {"label", "labels", "target"}:
            columns = [column.name for column in roles.columns]
            words = map(_quoted, [*columns, *roles.left_out][:_MAX_NAMED])
            why = f"; --source.columns {' '.join(words)} makes them inputs, too"
        notes.append(f"{table.name}: left out: {listing}{why}")
    return notes


def _ambiguity_notes(table: Table, roles: Roles) -> list[str]:
    """Notes about dates and numbers that could mean something else."""
    titles = [column.name for column in roles.columns if column.kind == "date"]
    dates = [repr(t) for t in titles if has_ambiguous_dates(table, t)]
    titles = [column.name for column in roles.columns if column.kind == "number"]
    titles += roles.truths.get("target", ())
    numbers = [repr(title) for title in titles if are_like_thousands(table, title)]
    notes = []
    if dates:
        listing = ", ".join(dates[:_MAX_NAMED])
        notes.append(
            f"{table.name}: the dates in {listing} are read as day/month/year; write"
            " 2024-05-17 if the month comes first"
        )
    if numbers:
        listing = ", ".join(numbers[:_MAX_NAMED])
        notes.append(
            f"{table.name}: 1.234 in {listing} is read as a little more than 1; remove"
            " the points if they separate thousands"
        )
    return notes


def _inputs(table: Table, roles: Roles) -> str:
    parts = []
    if roles.source:
        of_files = f"{roles.field} files"
        parts.append(
            of_files if roles.has_files else f"the {table.key} {roles.source!r}"
        )
    if roles.columns:
        listing = ", ".join(column.name for column in roles.columns[:_MAX_NAMED])
        if len(roles.columns) > _MAX_NAMED:
            listing += ", ..."
        parts.append(f"{pluralize(len(roles.columns), table.key)}, {listing}")
    return " and ".join(parts)


def _other_kind(table: Table, roles: Roles) -> str:
    """How to predict the same column as another kind."""
    for field, other, kind in (
        ("label", "target", "numbers, not classes"),
        ("target", "label", "classes, not numbers"),
    ):
        titles = roles.truths.get(field)
        if titles and not lists(table.columns[titles[0]]):
            numbers = table.numbers(titles[0])
            is_whole = numbers is not None and not np.any(
                numbers[~np.isnan(numbers)] % 1
            )
            if is_whole:
                return f"; --source.{other} {_quoted(titles[0])} predicts its {kind}"
    return ""
