"""Rows of a table: numbers, words, dates and short texts, with or without gaps."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from pipeline.config.registry import register
from pipeline.contracts import (
    Decision,
    Example,
    Info,
    Input,
    LearnedColumn,
    Metadata,
    Request,
    ServingInput,
    Source,
    TableColumn,
    TrainingExamples,
)
from pipeline.data import names, text_decoding
from pipeline.data.table import DATES
from pipeline.data.text_decoding import FIRST, Vocabulary
from pipeline.layers.columns import CATEGORIES, FEATURES, MAX_ONE_HOT, WORDS
from pipeline.serving import request_guards
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError, suggest

_MIN_COUNT = 3  # of a word in the training examples; others are unknown
_MAX_WORDS = 10_000  # of a column
_MAX_TEXT_WORDS = 16
_MAX_TEXT_BYTES = 128
_MAX_HASH = 2**31 - 2
_DATE_PARTS = 6  # year, month, day, hour, minute, second
_MAX_DAY = 31
_TIME_ZONE = r"(:\d{2}(?:\.\d+)?)[+-]\d{2}:?\d{2}$"
UNKNOWN = "?unknown?"
_SINGLE_PRECISION = 1e-4  # of a deviation, which float32 must be able to tell


@register
def table(info: Info | Metadata, *, field: str = "numbers", raw: bool = False) -> Input:
    """The columns of a table: numbers, words, dates and short texts.

    Numbers get mean 0 and deviation 1 over the training examples; where one is missing,
    it is the mean, and another input says so. Words of a column are one-hot, or
    embedded by the model if there are more than 10. Dates are numbers for the time and
    for the places in year, month, week and day.

    Args:
        info: The source's description, or the metadata of a run.
        field: The field of the source with the numbers.
        raw: Give the model numbers as they are.

    Raises:
        UsageError: The source has no columns.
    """
    if not isinstance(info, Info):
        return TableInput(info)
    columns: list[dict[str, Any]] = []
    arguments: dict[str, str] = {}
    for column in info.columns or _numbered(info, field):
        values: dict[str, Any] = {"name": column.name, "kind": column.kind}
        argument = names.argument(column.name)
        # Graphs of TensorFlow do not distinguish a and A.
        other = arguments.setdefault(argument.lower(), column.name)
        if other != column.name:
            raise UsageError(
                f"the columns {other!r} and {column.name!r} would both be the argument"
                f" {argument} of requests; rename one"
            )
        if column.order:
            values["order"] = column.order
        columns.append(values)
    metadata: dict[str, Any] = {"columns": columns}
    if field != "numbers":
        metadata["input_field"] = field
    if raw:
        metadata["raw"] = True
    return TableInput(metadata)


def _numbered(info: Info, field: str) -> list[TableColumn]:
    """Columns for the numbers of a source that does not describe them."""
    spec = info.field(field)
    is_number = spec.dtype.is_floating or spec.dtype.is_integer
    if not is_number or spec.shape.rank != 1 or not spec.shape.is_fully_defined():
        raise UsageError(
            f"{field}: the numbers of a row must be a vector of a fixed length; got"
            f" {spec.dtype.name} of shape {spec.shape}"
        )
    titles = info.feature_names or map(str, range(spec.shape[0]))
    return [TableColumn(title, "number") for title in titles]


class TableInput(Input):
    """Decoded examples have `numbers`, float32 (n,) with mean 0 and deviation 1;
    `gaps`, float32 (g,), 1 where a number is missing; `codes`, int32 (c,), 0 for
    unknown words; `dates`, int32 (d, 6); and of t texts `words`, int32 (t, 16), hashes
    of the first words, and `texts`, uint8 (t, 128). Fields without columns are left
    out.
    """

    decodes_batches = True

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.columns: list[dict[str, Any]] = list(metadata["columns"])
        self._field = metadata.get("input_field", "numbers")
        self._is_raw = bool(metadata.get("raw"))
        self._numbers = self._of_kinds("number", "boolean")
        self._words = self._of_kinds("category", "date", "text")
        self._gaps = [c for c in self._numbers if c.get("has_gaps")]
        self._categories = self._of_kinds("category")
        self._dates = self._of_kinds("date")
        self._texts = self._of_kinds("text")
        # Without texts, rows may be equal by chance.
        self.compared = ("numbers", "gaps", "codes") if self._texts else None
        self._order: tuple[list[int], list[int]] | None = None
        """Positions of the columns in those of other data: numbers, strings."""
        self._vocabularies = []
        for column in self._categories:
            self._vocabularies.append(Vocabulary(column.get("vocabulary", [])))

    def _of_kinds(self, *kinds: str) -> list[dict[str, Any]]:
        return [column for column in self.columns if column["kind"] in kinds]

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns mean and deviation of numbers, the words of categories, and the share
        of the examples in which a column is missing.
        """
        numbers: list[np.ndarray] = []
        years: list[np.ndarray] = []
        counts: list[Counter[bytes]] = [Counter() for _ in self._categories]
        empty = np.zeros(len(self._words), np.int64)
        is_short = self._field in examples.short_fields
        if is_short:
            numbers.append(examples.column(self._field))
        if self._words or not is_short:
            strings = ("strings",) if self._words else ()
            for batch in examples.batches((self._field, *strings)):
                if not is_short:
                    numbers.append(batch[self._field])
                if self._words:
                    self._count(batch["strings"], counts)
                    empty += (batch["strings"] == b"").sum(axis=0)
                if self._dates:
                    years.append(self._date_parts(tf.constant(batch["strings"])))
        columns = [dict(column) for column in self.columns]
        named = {column["name"]: column for column in columns}
        with np.errstate(invalid="ignore", over="ignore"):
            for position, column in enumerate(self._numbers):
                values = np.concatenate([part[:, position] for part in numbers])
                values = values.astype(np.float64)
                named[column["name"]] |= _moments(values, column["kind"])
        for column, count in zip(self._words, empty.tolist(), strict=True):
            named[column["name"]]["missing"] = count / max(len(examples), 1)
        for column, words in zip(self._categories, counts, strict=True):
            vocabulary, unknown = _vocabulary(words)
            named[column["name"]] |= {"vocabulary": vocabulary, "unknown": unknown}
        dates = np.concatenate(years) if years else np.empty((0, 0, _DATE_PARTS))
        for position, column in enumerate(self._dates):
            named[column["name"]] |= _moments_of_dates(dates[:, position])
        return {"columns": columns}

    def _count(self, strings: np.ndarray, counts: Sequence[Counter[bytes]]) -> None:
        positions = [self._words.index(column) for column in self._categories]
        for position, count in zip(positions, counts, strict=True):
            count.update(strings[:, position].tolist())

    def review(self) -> list[Decision]:
        kinds = Counter(column["kind"] for column in self.columns)
        parts = []
        for kind, plural in (
            ("number", "numbers"),
            ("boolean", "booleans"),
            ("category", "categories"),
            ("date", "dates"),
            ("text", "texts"),
        ):
            if kinds[kind]:
                word = kind if kinds[kind] == 1 else plural
                parts.append(f"{kinds[kind]} {word}")
        reason = "by their values"
        gaps = len(self._gaps) + sum(c.get("missing", 0) > 0 for c in self._words)
        if gaps:
            reason += f"; {pluralize(gaps, 'column')} with gaps"
        decisions = [Decision("columns", ", ".join(parts), reason)]
        precise = [c["name"] for c in self._numbers if c.get("dtype") == "float64"]
        if precise:
            note = f"{', '.join(precise[:3])} need float64 until they are scaled"
            why = "float32 would lose their differences"
            decisions.append(Decision("note", note, why))
        return decisions

    def decode(self, example: Example) -> tuple[Example, None]:
        """Takes one example, or a batch with the batch as the first axis."""
        numbers = tf.cast(example[self._field], tf.float64)
        strings = example.get("strings", tf.zeros((), tf.string))
        if self._order is not None:
            numbers = tf.gather(numbers, self._order[0], axis=-1)
            if self._words:
                strings = tf.gather(strings, self._order[1], axis=-1)
        fields: Example = {}
        if self._numbers:
            is_missing = tf.math.is_nan(numbers)
            mean, deviation = self._scale()
            scaled = (numbers - mean) / deviation
            scaled = tf.where(is_missing, self._default(), scaled)
            fields["numbers"] = tf.cast(scaled, tf.float32)
            positions = [self._numbers.index(column) for column in self._gaps]
            if positions:
                gaps = tf.gather(is_missing, positions, axis=-1)
                fields["gaps"] = tf.cast(gaps, tf.float32)
        codes = []
        for column, vocabulary in zip(
            self._categories, self._vocabularies, strict=True
        ):
            words = strings[..., self._words.index(column)]
            code = vocabulary.look_up(tf.reshape(words, [-1])) - (FIRST - 1)
            codes.append(tf.reshape(code, tf.shape(words)))
        if codes:
            fields["codes"] = tf.stack(codes, axis=-1)
        if self._dates:
            fields["dates"] = self._date_parts(strings)
        if self._texts:
            fields |= self._decode_texts(strings)
        return fields, None

    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of the numbers, float64 (n,)."""
        if self._is_raw:
            return np.zeros(len(self._numbers)), np.ones(len(self._numbers))
        mean = [column.get("mean", 0.0) for column in self._numbers]
        deviation = [column.get("deviation", 1.0) for column in self._numbers]
        return np.array(mean), np.array(deviation)

    def _default(self) -> np.ndarray:
        """The scaled number where one is missing, float64 (n,): the mean, or of a
        boolean without gaps in training the more frequent value, as requests have it.
        """
        values = np.zeros(len(self._numbers))
        for position, column in enumerate(self._numbers):
            if column["kind"] == "boolean" and not column.get("has_gaps"):
                mean, deviation = (scale[position] for scale in self._scale())
                values[position] = (np.round(mean) - mean) / deviation
        return values

    def _date_parts(self, strings: tf.Tensor) -> tf.Tensor:
        """Year, month, day, hour, minute and second, int32 (..., d, 6); 0: no date."""
        parts = []
        for column in self._dates:
            words = strings[..., self._words.index(column)]
            forms = rf"{DATES['ymd']}|{DATES[column['order']]}"
            is_date = tf.strings.regex_full_match(words, forms)
            words = tf.where(is_date, words, "")
            local = tf.strings.regex_replace(words, _TIME_ZONE, r"\1")
            digits = tf.strings.regex_replace(local, r"\D+|\d{10,}", " ")
            split = tf.strings.split(tf.strings.strip(tf.reshape(digits, [-1])))
            split = split[:, :_DATE_PARTS].to_tensor("0", shape=(None, _DATE_PARTS))
            values = tf.strings.to_number(split, tf.int32)
            order = [column["order"].index(part) for part in "ymd"]
            ordered = tf.gather(values, [*order, 3, 4, 5], axis=-1)
            # 2020-01-31 is understood whatever the order of the others.
            values = tf.where(values[:, :1] > _MAX_DAY, values, ordered)
            shape = tf.concat([tf.shape(words), [_DATE_PARTS]], 0)
            parts.append(tf.reshape(values, shape))
        stacked = tf.stack(parts, axis=-2)
        return tf.ensure_shape(stacked, (*strings.shape[:-1], len(parts), _DATE_PARTS))

    def _decode_texts(self, strings: tf.Tensor) -> Example:
        positions = [self._words.index(column) for column in self._texts]
        texts = tf.gather(strings, positions, axis=-1)
        flat = text_decoding.standardize(tf.reshape(texts, [-1]), "words")
        flat = text_decoding.cut(flat, _MAX_TEXT_BYTES)
        words = text_decoding.split(flat, "words")[:, :_MAX_TEXT_WORDS]
        hashes = tf.strings.to_hash_bucket_fast(words.values, _MAX_HASH) + 1
        numbers = words.with_values(tf.cast(hashes, tf.int32))
        numbers = numbers.to_tensor(shape=(None, _MAX_TEXT_WORDS))
        content = tf.io.decode_raw(flat, tf.uint8, fixed_length=_MAX_TEXT_BYTES)
        fields = {}
        for name, values in ((WORDS, numbers), ("texts", content)):
            shape = tf.concat([tf.shape(texts), tf.shape(values)[1:]], 0)
            values = tf.reshape(values, shape)
            size = _MAX_TEXT_WORDS if name == WORDS else _MAX_TEXT_BYTES
            fields[name] = tf.ensure_shape(values, (*texts.shape, size))
        return fields

    def match(self, source: Source) -> "TableInput":
        """Takes the columns by their names, in any order.

        Raises UsageError if one is missing, or has another kind.
        """
        columns = source.info.columns or _numbered(source.info, self._field)
        numbers = [c.name for c in columns if c.kind in ("number", "boolean")]
        words = [c.name for c in columns if c.kind not in ("number", "boolean")]
        order: tuple[list[int], list[int]] = ([], [])
        for wanted, available, positions in (
            (self._numbers, numbers, order[0]),
            (self._words, words, order[1]),
        ):
            for column in wanted:
                name = column["name"]
                if name not in available:
                    raise UsageError(
                        f"the data have no column {name!r} of the kind"
                        f" {column['kind']}; {suggest(name, available)}"
                    )
                positions.append(available.index(name))
        matched = TableInput(self.metadata)
        matched._order = order
        return matched

    def prepare(self, batch: Example) -> Example:
        """Adds `features`, float32 (batch, n), and codes of words to embed."""
        parts = [batch[name] for name in ("numbers", "gaps") if name in batch]
        embedded = []
        for position, column in enumerate(self._categories):
            codes = batch["codes"][:, position]
            if _size(column) > MAX_ONE_HOT:
                embedded.append(codes)
            else:
                parts.append(ops.one_hot(codes, _size(column)))
        for position, column in enumerate(self._dates):
            parts.append(_cycles(batch["dates"][:, position], column))
        if not parts:  # texts alone
            parts.append(ops.zeros_like(batch[WORDS][:, 0, :1], dtype="float32"))
        prepared = {**batch, FEATURES: ops.concatenate(parts, axis=-1)}
        if embedded:
            prepared[CATEGORIES] = ops.stack(embedded, axis=-1)
        return prepared

    @property
    def _width(self) -> int:
        """The length of `features`."""
        width = len(self._numbers) + len(self._gaps)
        for column in self._categories:
            width += _size(column) if _size(column) <= MAX_ONE_HOT else 0
        width += sum(_cycle_count(column) for column in self._dates)
        return max(width, 1)

    def inputs(self) -> Any:
        features = keras.Input((self._width,), name=FEATURES)
        embedded = [c for c in self._categories if _size(c) > MAX_ONE_HOT]
        inputs = {FEATURES: features}
        if embedded:
            inputs[CATEGORIES] = keras.Input(
                (len(embedded),), dtype="int32", name=CATEGORIES
            )
        if self._texts:
            shape = (len(self._texts), _MAX_TEXT_WORDS)
            inputs[WORDS] = keras.Input(shape, dtype="int32", name=WORDS)
        return inputs if len(inputs) > 1 else features

    def network_inputs(self, batch: Example) -> Any:
        inputs = {}
        for name in (FEATURES, CATEGORIES, WORDS):
            if name in batch:
                inputs[name] = batch[name]
        return inputs if len(inputs) > 1 else inputs[FEATURES]

    def signatures(self) -> list[ServingInput]:
        """`serving_default` takes an argument for each column, by its name."""
        specs = {}
        for column in self.columns:
            dtype = _dtype(column)
            argument = names.argument(column["name"])
            specs[argument] = tf.TensorSpec((None,), dtype, argument)
        return [
            ServingInput(
                "serving_default",
                specs,
                self._read_request,
                self.request,
                meaning=self._meaning(),
                example={names.argument(c["name"]): _example(c) for c in self.columns},
                optional=tuple(names.argument(c["name"]) for c in self._numbers),
            )
        ]

    def _meaning(self) -> str:
        """What the arguments of a request contain, for `SERVING.md`."""
        parts = []
        for column in self.columns:
            argument = names.argument(column["name"])
            if argument != column["name"]:
                parts.append(f"`{argument}` is the column {column['name']!r}")
            if column["kind"] == "date":
                parts.append(f"`{argument}` has dates such as {_example(column)}")
        if self._numbers:
            parts.append("a missing number is NaN, also in JSON")
        if self._words:
            parts.append('a missing text or date is ""')
        return "; ".join(parts)

    def _read_request(self, *arguments: tf.Tensor) -> Example:
        numbers = []
        strings = []
        size = tf.shape(arguments[0])[0]
        for column, values in zip(self.columns, arguments, strict=True):
            values = request_guards.batch(values, (None,))
            values = request_guards.count(values, size, column["name"])
            if column in self._words:
                strings.append(values)
                continue
            values = tf.cast(values, tf.float64)
            is_gap = tf.math.is_nan(values)
            present = tf.where(is_gap, tf.zeros_like(values), values)
            checked = request_guards.finite(present, column["name"])
            numbers.append(tf.where(is_gap, values, checked))
        batch = {
            self._field: tf.stack(numbers, -1) if numbers else tf.zeros((size, 0)),
            "strings": tf.stack(strings, -1) if strings else tf.fill((size, 0), ""),
        }
        ordered = TableInput(self.metadata)
        return ordered.decode(batch)[0]

    def request(self, columns: Mapping[str, np.ndarray]) -> Request:
        """The values of decoded examples; words that are unknown are any others."""
        arguments: Request = {}
        mean, deviation = self._scale()
        for column in self.columns:
            argument = names.argument(column["name"])
            if column in self._numbers:
                position = self._numbers.index(column)
                values = columns["numbers"][:, position].astype(np.float64)
                values = values * deviation[position] + mean[position]
                if column in self._gaps:
                    is_gap = columns["gaps"][:, self._gaps.index(column)] > 0
                    values = np.where(is_gap, np.nan, values)
                if column["kind"] == "boolean" and not column.get("has_gaps"):
                    values = np.round(values)
                arguments[argument] = values.astype(_dtype(column).as_numpy_dtype)
            elif column in self._categories:
                words = [UNKNOWN, *column["vocabulary"]]
                codes = columns["codes"][:, self._categories.index(column)]
                arguments[argument] = [words[code].encode() for code in codes]
            elif column in self._dates:
                parts = columns["dates"][:, self._dates.index(column)]
                dates = [_date(row, column["order"]) for row in parts.tolist()]
                arguments[argument] = dates
            else:
                texts = columns["texts"][:, self._texts.index(column)]
                arguments[argument] = [_text(row).encode() for row in texts]
        return arguments

    def standalone(self) -> tuple[Any, Any]:
        """The Keras model takes decoded examples."""
        sizes = {
            "numbers": len(self._numbers),
            "gaps": len(self._gaps),
            "codes": len(self._categories),
        }
        inputs = {}
        for name, size in sizes.items():
            dtype = "int32" if name == "codes" else "float32"
            if size:
                inputs[name] = keras.Input((size,), dtype=dtype, name=name)
        if self._dates:
            shape = (len(self._dates), _DATE_PARTS)
            inputs["dates"] = keras.Input(shape, dtype="int32", name="dates")
        if self._texts:
            shape = (len(self._texts), _MAX_TEXT_WORDS)
            inputs[WORDS] = keras.Input(shape, dtype="int32", name=WORDS)
        prepared = self.network_inputs(self.prepare(inputs))
        return inputs if len(inputs) > 1 else next(iter(inputs.values())), prepared

    def learned_columns(self) -> list[LearnedColumn]:
        learned = []
        for column in self.columns:
            learned.append(
                LearnedColumn(
                    column["name"],
                    column["kind"],
                    column.get("missing", 0.0),
                    _summary(column),
                    self._fields(column),
                )
            )
        return learned

    def _fields(self, column: dict[str, Any]) -> dict[str, int]:
        """The decoded fields with the values of a column, and its position in each."""
        fields = {}
        for name, columns in (
            ("numbers", self._numbers),
            ("gaps", self._gaps),
            ("codes", self._categories),
            ("dates", self._dates),
            (WORDS, self._texts),
            ("texts", self._texts),
        ):
            if column in columns:
                fields[name] = columns.index(column)
        return fields

    def limitations(self) -> list[str]:
        titles = ", ".join(column["name"] for column in self.columns)
        return [
            "The metrics hold for rows like those of the training examples; other rows"
            " have not been tested.",
            f"A request needs all columns: {titles}.",
        ]


def _size(column: Mapping[str, Any]) -> int:
    """The number of codes of a category, 0 for unknown words among them."""
    return len(column.get("vocabulary", ())) + 1


def _example(column: Mapping[str, Any]) -> Any:
    """A typical value of a column in a request."""
    if column["kind"] == "date":
        return _date([2024, 5, 17, 0, 0, 0], column["order"]).decode()
    if column["kind"] == "category":
        return next(filter(None, column.get("vocabulary", ())), "text")
    if column["kind"] == "text":
        return "text"
    mean = column.get("mean", 0.0)
    return bool(mean > 0.5) if _dtype(column) == tf.bool else float(f"{mean:.4g}")


def _dtype(column: Mapping[str, Any]) -> tf.DType:
    """The type of a column in a request."""
    if column["kind"] == "number":
        return tf.as_dtype(column.get("dtype", "float32"))
    if column["kind"] == "boolean":
        return tf.float32 if column.get("has_gaps") else tf.bool
    return tf.string


def _moments(values: np.ndarray, kind: str) -> dict[str, Any]:
    """Mean and deviation of the numbers of a column, and whether they need float64."""
    present = values[~np.isnan(values)]
    learned: dict[str, Any] = {"mean": 0.0, "deviation": 1.0}
    missing = 1 - len(present) / max(len(values), 1)
    if len(present):
        learned["mean"] = mean = float(present.mean())
        deviation = float(present.std())
        largest = float(np.abs(present).max())
        # Dividing a constant would only amplify rounding errors.
        if deviation > abs(mean) * np.finfo(np.float64).eps * 8:
            learned["deviation"] = deviation
        resolution = largest * np.finfo(np.float32).eps
        if resolution > _SINGLE_PRECISION * learned["deviation"]:
            learned["dtype"] = "float64"
    if len(present) < len(values):
        learned["has_gaps"] = True
    if kind == "boolean":
        learned.pop("dtype", None)
    return {**learned, "missing": missing}


def _summary(column: Mapping[str, Any]) -> str:
    """What was learned of a column, in words."""
    kind = column["kind"]
    mean = column.get("mean", 0.0)
    deviation = column.get("deviation", 1.0)
    if kind == "number":
        return f"mean {mean:.4g}, deviation {deviation:.4g}"
    if kind == "boolean":
        return f"true in {mean:.1%}"
    if kind == "date":
        return f"mean {mean:.1f}, deviation {deviation:.2g} years"
    if kind == "text":
        return f"nothing; its first {_MAX_TEXT_WORDS} words are used"
    count = len([word for word in column.get("vocabulary", ()) if word])
    unknown = column.get("unknown", 0.0)
    return f"{pluralize(count, 'word')}, {unknown:.1%} unknown"


def _vocabulary(counts: Counter[bytes]) -> tuple[list[str], float]:
    """The words of a category, the most frequent first, and the share of all others."""
    frequent = [word for word in counts if counts[word] >= _MIN_COUNT]
    frequent.sort(key=lambda word: (-counts[word], word))
    kept = frequent[:_MAX_WORDS]
    total = max(counts.total(), 1)
    unknown = 1 - sum(counts[word] for word in kept) / total
    return [word.decode(errors="replace") for word in kept], unknown


def _moments_of_dates(parts: np.ndarray) -> dict[str, Any]:
    """Mean and deviation of the time in years, and whether there are times of day."""
    is_date = parts[:, 0] > 0
    year, month, day = parts[is_date].astype(np.float64)[:, :3].T
    years = year + (month - 1) / 12 + (day - 1) / 372
    learned: dict[str, Any] = {"mean": 2000.0, "deviation": 10.0}
    if len(years) and years.std() > 0:
        learned = {"mean": float(years.mean()), "deviation": float(years.std())}
    learned["has_time"] = bool((parts[:, 3:] != 0).any())
    learned["has_gaps"] = bool(not is_date.all())
    return learned


def _cycle_count(column: Mapping[str, Any]) -> int:
    """The numbers of `_cycles`."""
    return 7 + 2 * bool(column.get("has_time")) + bool(column.get("has_gaps"))


def _cycles(parts: Any, column: Mapping[str, Any]) -> Any:
    """Numbers of dates (batch, 6): the time, and sine and cosine of the places in year,
    month, week and day; 0 where there is no date.
    """
    is_date = ops.cast(parts[:, :1] > 0, "float32")
    date = ops.cast(parts, "float32")
    # The year first, because float32 has few digits left beside it.
    years = date[:, 0] - column.get("mean", 2000.0)
    years = years + (date[:, 1] - 1) / 12 + (date[:, 2] - 1) / 372
    angles = [(date[:, 1] - 1) / 12, (date[:, 2] - 1) / 31, _weekday(parts) / 7]
    if column.get("has_time"):
        angles.append((date[:, 3] + date[:, 4] / 60) / 24)
    values = [years / column.get("deviation", 10.0)]
    for angle in angles:
        values += [ops.sin(2 * np.pi * angle), ops.cos(2 * np.pi * angle)]
    features = ops.stack(values, axis=-1) * is_date
    if column.get("has_gaps"):
        features = ops.concatenate([features, 1 - is_date], axis=-1)
    return features


def _weekday(parts: Any) -> Any:
    """0 to 6 for Saturday to Friday, float32 (batch,); Zeller's congruence."""
    year, month, day = parts[:, 0], parts[:, 1], parts[:, 2]
    is_winter = ops.cast(month < 3, "int32")
    month = month + 12 * is_winter
    year = year - is_winter
    leap_days = year // 4 - year // 100 + year // 400
    number = (day + 13 * (month + 1) // 5 + year + leap_days) % 7
    return ops.cast(number, "float32")


def _date(parts: Sequence[int], order: str) -> bytes:
    """A date as a string in the order of its column; empty for none."""
    if not parts[0]:
        return b""
    texts = {"y": f"{parts[0]:04}", "m": f"{parts[1]:02}", "d": f"{parts[2]:02}"}
    date = "-".join(texts[part] for part in order)
    if any(parts[3:]):
        date += " " + ":".join(f"{part:02}" for part in parts[3:])
    return date.encode()


def _text(content: np.ndarray) -> str:
    """The text in decoded bytes, which are filled with zeros."""
    return content.tobytes().rstrip(b"\0").decode(errors="replace")
