"""Transcripts: the text that a recording says, by connectionist temporal
classification (CTC).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from pipeline.config.registry import register
from pipeline.contracts import (
    Decision,
    Evaluator,
    Example,
    Info,
    Metadata,
    Panel,
    Score,
    Source,
    Target,
    TrainingExamples,
)
from pipeline.data import text_decoding
from pipeline.data.text_decoding import FIRST, PADDING, UNKNOWN, Vocabulary
from pipeline.tasks.targets.ctc import ctc_loss
from pipeline.utils import console
from pipeline.utils.columns import Columns
from pipeline.utils.console import pluralize
from pipeline.utils.edit_distance import Edit, align, distance
from pipeline.utils.errors import UsageError

_BLANK = 0
"""The class of no unit, and the padding of labels, which the loss does not see."""
_LONGER = 1.25  # than the longest training transcript may others be
_NEVER = -1e4  # logit of a unit where the recording has ended
_UNKNOWN_TEXT = "\ufffd"
# Share of the errors of a prediction that is always the same, above which a model has
# learned nothing.
_BETTER = 0.9
_WORST = 5  # utterances in the metrics and on the terminal
_MIN_COUNT = 2  # times that a word occurs in training transcripts
_MAX_SHOWN = 60  # units in a note
_ALIGNED = ("errors", "alignment")
_LEGEND = "*inserted* [deleted] (truth > prediction)"


@register
def transcript(
    info: Info | Metadata,
    *,
    field: str = "transcript",
    unit: Literal["characters", "words"] = "characters",
    vocabulary: Annotated[int, (1, 100_000)] = 5000,
    lower: bool = True,
    beam: Annotated[int, (1, 1000)] = 1,
) -> Target:
    """Texts of any length, for recordings; units are learned from the training
    transcripts only.

    Graves et al., "Connectionist temporal classification", ICML 2006: the network
    predicts a unit or none for each window, and the loss sums over all alignments.

    Args:
        info: The source's description, or the metadata of a run.
        field: The field of the source.
        unit: `characters`, of which a space is one, or `words`: the network can output
            only those of the training transcripts.
        vocabulary: Largest number of units. A word must occur at least twice in the
            training transcripts.
        lower: Convert transcripts to lower case.
        beam: Beam width of the decoder. 1 is greedy decoding: the most probable unit
            of each window.

    Raises:
        UsageError: The field is missing or has another type.
    """
    if not isinstance(info, Info):
        return TranscriptTarget(info)
    spec = info.field(field)
    if spec.dtype != tf.string or spec.shape.rank != 0:
        raise UsageError(
            f"{field}: transcripts must be one string for each example; got"
            f" {spec.dtype.name} of shape {spec.shape}"
        )
    metadata: dict[str, Any] = {"transcript_unit": unit, "most_units": vocabulary}
    if not lower:
        metadata["keeps_case"] = True
    if beam > 1:
        metadata["beam"] = beam
    if field != "transcript":
        metadata["target_field"] = field
    return TranscriptTarget(metadata)


class TranscriptTarget(Target):
    """Decoded examples have `transcript`, int32 (units,): numbers of units, filled with
    zeros.
    """

    selection_metric = ("word_error_rate", -1)
    not_decoded = frozenset({"most_units", "beam"})

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self._field = metadata.get("target_field", "transcript")
        self._unit = metadata.get("transcript_unit", "characters")
        self._units: list[str] = list(metadata.get("units", ()))
        self._vocabulary = Vocabulary(self._units)
        self._length = int(metadata.get("transcript_length", 1))
        self._beam = int(metadata.get("beam", 1))

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns the units, and a length with room after the longest transcript."""
        counts: Counter[bytes] = Counter()
        longest = 0
        for batch in examples.batches():
            texts = self._split(tf.constant(batch[self._field], tf.string))
            counts.update(texts.values.numpy().tolist())
            longest = max(longest, int(tf.reduce_max(texts.row_lengths())))
        least = _MIN_COUNT if self._unit == "words" else 1
        frequent = [text for text in counts if counts[text] >= least]
        frequent.sort(key=lambda text: (-counts[text], text))
        if not frequent:
            raise UsageError(
                f"{self._field}: the training transcripts have no {self._unit} to"
                " learn; are they empty?"
            )
        units = [text.decode() for text in frequent[: self.metadata["most_units"]]]
        length = 1 + int(np.ceil(longest * _LONGER))
        return {"units": units, "transcript_length": length}

    def review(self, columns: Mapping[str, np.ndarray]) -> list[Decision]:
        units = " ".join("space" if unit == " " else unit for unit in self._units)
        if len(units) > _MAX_SHOWN:
            units = f"{units[:_MAX_SHOWN]} ..."
        value = f"{len(self._units):,} {self._unit}: {units}"
        return [Decision("units", value, "of the training transcripts")]

    def _split(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """The units of transcripts (n,), strings (n, None)."""
        lower = not self.metadata.get("keeps_case", False)
        texts = text_decoding.standardize(texts, self._unit, lower=lower)
        return text_decoding.split(texts, self._unit)

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        """Converts a text to the numbers of its units."""
        units = self._split(example[self._field][None])
        numbers = units.with_values(self._vocabulary.look_up(units.values))
        tokens = numbers.to_tensor(PADDING, shape=(1, self._length))
        return {"transcript": tf.ensure_shape(tokens, (1, self._length))[0]}

    def match(self, source: Source) -> "TranscriptTarget":
        fields = source.info.fields
        field = self._field if self._field in fields else "transcript"
        return TranscriptTarget({**self.metadata, "target_field": field})

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        for decision in self.review({}):
            yield decision.name, str(decision)

    def y(self, batch: Example) -> tf.Tensor:
        """Numbers of units, int32 (batch, units)."""
        return batch["transcript"]

    def head(self, features: keras.KerasTensor, mask: Any = None) -> keras.KerasTensor:
        """Logits (batch, time, classes): blank, unknown, and the units.

        After the end of a recording, all probability is on blank. Raises UsageError
        unless features are (batch, time, n).
        """
        if len(features.shape) != 3:
            shape = ", ".join(map(str, ("batch", *features.shape[1:])))
            raise UsageError(
                "--model.name: a transcript needs a sequence of features, (batch, time,"
                f" n); got ({shape}); choose another model, such as conv_recurrent"
            )
        classes = FIRST + len(self._units)
        dense = keras.layers.Dense(classes, dtype="float32", name="logits")
        logits = dense(features)
        if mask is None:
            return logits
        ended = np.full(classes, _NEVER, np.float32)
        ended[_BLANK] = 0.0
        is_sound = ops.expand_dims(ops.cast(mask, "float32") > 0.5, -1)
        return ops.where(is_sound, logits, ended)

    def loss(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        """The negative logarithm of the probability of the transcript, per unit.

        Frames after the end have the class blank with probability 1, which adds
        nothing, so that the number of frames is that of the recording. The loss of a
        transcript with more units than frames is 0.
        """

        def loss(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
            y = tf.where(_fits(y, outputs)[:, None], y, PADDING)
            length = tf.math.count_nonzero(y, axis=1, dtype=tf.int32)
            losses = ctc_loss(y, outputs)
            count = tf.cast(tf.maximum(length, 1), tf.float32)
            return tf.where(length > 0, losses / count, 0.0)

        return loss

    def metrics(self) -> list[keras.metrics.Metric]:
        """`too_long`: the share of transcripts with more units than frames, from which
        nothing is learned.
        """
        return [keras.metrics.MeanMetricWrapper(_is_too_long, name="too_long")]

    def predict(self, outputs: tf.Tensor, batch: Example) -> Example:
        """Returns `text`, string (batch,), and its `confidence`, float32 (batch,).

        The confidence is the probability of the best alignment, or with a beam of the
        text, as the geometric mean of its units.
        """
        outputs = tf.cast(outputs, tf.float32)
        decode = self._decode_beam if self._beam > 1 else _decode_greedily
        tokens, logarithm = decode(outputs)
        count = tf.math.count_nonzero(tokens, axis=1, dtype=tf.float32)
        confidence = tf.exp(logarithm / tf.maximum(count, 1.0))
        names = tf.constant(["", _UNKNOWN_TEXT, *self._units])
        separator = " " if self._unit == "words" else ""
        text = tf.strings.reduce_join(
            tf.gather(names, tokens), axis=1, separator=separator
        )
        return {"text": tf.strings.strip(text), "confidence": confidence}

    def _decode_beam(self, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The most probable of the texts that a beam search keeps."""
        frames = tf.shape(outputs)[1]
        # The operation expects blank to be the last class.
        logits = tf.concat([outputs[..., FIRST:], outputs[..., :1]], axis=2)
        logarithms = tf.nn.log_softmax(logits)
        (best,), scores = tf.nn.ctc_beam_search_decoder(
            tf.transpose(logarithms, (1, 0, 2)),
            tf.fill(tf.shape(outputs)[:1], frames),
            beam_width=self._beam,
            top_paths=1,
        )
        shape = tf.stack([tf.shape(outputs, tf.int64)[0], tf.cast(frames, tf.int64)])
        best = tf.SparseTensor(best.indices, best.values + FIRST, shape)
        tokens = tf.cast(tf.sparse.to_dense(best, PADDING), tf.int32)
        return tf.ensure_shape(tokens, outputs.shape[:2]), scores[:, 0]

    def evaluator(self, model: Any = None) -> Evaluator:
        return TranscriptEvaluator(self.text_of)

    def text_of(self, tokens: np.ndarray) -> str:
        """The text of numbers of units, up to the first padding."""
        names = ["", _UNKNOWN_TEXT, *self._units]
        texts = [names[token] for token in tokens.tolist()]
        return (" " if self._unit == "words" else "").join(texts).strip()

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`truth` and `prediction`, the `probability` of the prediction, whether it is
        `correct`, and `word_errors`.
        """
        truths = [self.text_of(row) for row in batch["transcript"].numpy()]
        texts = [text.decode() for text in predictions["text"].numpy()]
        pairs = list(zip(truths, texts, strict=True))
        errors = [distance(truth.split(), text.split()) for truth, text in pairs]
        return {
            "truth": np.array(truths),
            "prediction": np.array(texts),
            "probability": predictions["confidence"].numpy(),
            "correct": np.array([truth == text for truth, text in pairs]),
            "word_errors": np.array(errors, np.int32),
        }

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """The word error rate, and the share of exact transcripts."""
        words = [float(len(truth.split())) for truth in rows["truth"]]
        rate = Score(rows["word_errors"].astype(np.float64), np.array(words), -1)
        return {"word_error_rate": rate, "exact": super().scores(rows)["accuracy"]}

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """The worst utterances, aligned, and notes about transcripts."""
        lines = []
        if metrics["worst"]:
            rows = []
            for row in metrics["worst"]:
                rows.append([f"{row['errors']}", row["alignment"]])
            table = console.table(rows, ["errors", f"worst: {_LEGEND}"], right=(0,))
            lines += table.splitlines()
        if metrics["unknown_units"]:
            lines.append(
                f"{'note':10} {metrics['unknown_units']:,} of the {self._unit} of"
                f" {split} are in no training transcript, and count as errors"
            )
        if metrics.get("too_long"):
            count = pluralize(metrics["too_long"], "transcript")
            lines.append(
                f"{'note':10} more units than the model has outputs in {count} of"
                f" {split}, which cannot be right; use a model with smaller strides, or"
                " words as units"
            )
        if metrics["cut"]:
            count = pluralize(metrics["cut"], "transcript")
            lines.append(
                f"{'note':10} more than {self._length - 1} {self._unit}, many more than"
                f" in training, in {count} of {split}; the rest is not counted"
            )
        return lines

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """The same transcript for all recordings."""
        constant = metrics["constant"]
        if metrics["character_error_rate"] < _BETTER * constant["character_error_rate"]:
            return ""
        text = repr(constant["text"]) if constant["text"] else "an empty transcript"
        return (
            f"always predicting {text} (character error rate"
            f" {constant['character_error_rate']:.3f})"
        )

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        """The kinds of errors, and the worst utterances, aligned."""
        kinds = ("substituted", "deleted", "inserted")
        counts = [metrics[kind] for kind in kinds]
        shares = [count / max(metrics["words"], 1) for count in counts]
        table = Columns({"words": kinds, "count": counts, "share of all words": shares})
        yield Panel("Errors", table)
        if worst := metrics["worst"]:
            aligned = {name: [row[name] for row in worst] for name in _ALIGNED}
            yield Panel("Worst transcripts", Columns(aligned), f"{_LEGEND}.")

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Adds the text as the title: green if right, red if wrong."""
        text = bytes(prediction["text"]).decode()
        truth = self.text_of(np.asarray(example["transcript"]))
        title, color = f"predicted {text[:40] or 'nothing'}", "green"
        if text != truth:
            title += f"\ntrue: {truth[:40]}"
            color = "red"
        axes.set_title(title, color=color, fontsize=8, parse_math=False)

    def limitations(self) -> list[str]:
        return [
            (
                f"Predictions consist of {len(self._units)} {self._unit} of training"
                " transcripts; the model cannot output anything else."
            ),
            "Every recording is transcribed, even if nobody speaks in it.",
        ]

    def standalone_loss(self) -> tuple[Any, Any]:
        """None: Keras's loss needs other labels."""
        return None, None


def _fits(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Whether a transcript can be aligned with the frames of its recording, (batch,).

    Between two equal units there must be a blank.
    """
    is_sound = tf.reduce_any(outputs[..., 1:] > _NEVER / 2, axis=2)
    frames = tf.math.count_nonzero(is_sound, axis=1, dtype=tf.int32)
    units = tf.math.count_nonzero(y, axis=1, dtype=tf.int32)
    is_repeated = tf.equal(y[:, 1:], y[:, :-1]) & (y[:, 1:] != PADDING)
    repeated = tf.math.count_nonzero(is_repeated, axis=1, dtype=tf.int32)
    return units + repeated <= frames


def _is_too_long(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.cast(~_fits(y, outputs), tf.float32)


def _decode_greedily(outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The best unit of each frame without repetitions and blanks, int32 (batch, time),
    filled with zeros; and the logarithm of the probability of this alignment, (batch,).
    """
    never = tf.fill(tf.shape(outputs[..., :1]), _NEVER)
    logits = tf.concat([outputs[..., :1], never, outputs[..., FIRST:]], axis=2)
    logarithm = tf.reduce_sum(tf.reduce_max(tf.nn.log_softmax(logits), axis=2), axis=1)
    best = tf.argmax(logits, axis=2, output_type=tf.int32)
    before = tf.pad(best[:, :-1], [[0, 0], [1, 0]])
    is_new = (best != _BLANK) & (best != before)
    frames = tf.shape(best)[1]
    order = tf.range(frames) + tf.where(is_new, 0, frames)
    new_first = tf.argsort(order, axis=1)
    tokens = tf.gather(tf.where(is_new, best, PADDING), new_first, batch_dims=1)
    return tokens, logarithm


class TranscriptEvaluator(Evaluator):
    """Loss, word and character error rate, and the share of exact transcripts.

    An error rate is the number of substitutions, deletions and insertions divided by
    the number of words or characters of all truths. `constant` is the better of two
    transcripts for all recordings: the most frequent and the empty one. `worst` has the
    utterances with most word errors. `too_long` is left out if the outputs are not
    known.
    """

    def __init__(self, text_of: Callable[[np.ndarray], str]) -> None:
        self._text_of = text_of
        self._loss = 0.0
        self._cut = 0
        self._unknown = 0
        self._counts: Counter[str] = Counter()
        self._truths: Counter[str] = Counter()
        self._worst: list[tuple[int, int, str, str, str]] = []

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        truths = batch["transcript"].numpy()
        self._loss += float(predictions["loss"].numpy().astype(np.float64).sum())
        if outputs is not None:
            is_too_long = ~_fits(batch["transcript"], outputs).numpy()
            self._counts["too_long"] += int(is_too_long.sum())
        self._cut += int((truths[:, -1] != PADDING).sum())
        self._unknown += int((truths == UNKNOWN).sum())
        for truth, text in zip(truths, predictions["text"].numpy(), strict=True):
            self._add(self._text_of(truth), text.decode())

    def _add(self, truth: str, text: str) -> None:
        changes = align(truth.split(), text.split())
        kinds = Counter(change.kind for change in changes)
        errors = len(changes) - kinds["equal"]
        counts = self._counts
        counts.update(kinds)
        self._truths[truth] += 1
        counts["examples"] += 1
        counts["words"] += len(truth.split())
        counts["characters"] += len(truth)
        counts["character_errors"] += distance(truth, text)
        counts["exact"] += truth == text
        if errors:
            order = counts["examples"]
            alignment = " ".join(map(_show, changes))
            self._worst.append((-errors, order, truth, text, alignment))
            self._worst = sorted(self._worst)[:_WORST]

    def result(self) -> dict[str, Any]:
        counts = self._counts
        errors = counts["substituted"] + counts["deleted"] + counts["inserted"]
        worst = []
        for negative, _, truth, text, alignment in self._worst:
            row = {"truth": truth, "prediction": text, "alignment": alignment}
            worst.append({"errors": -negative, **row})
        metrics = {
            "examples": counts["examples"],
            "loss": self._loss / counts["examples"],
            "word_error_rate": errors / max(counts["words"], 1),
            "character_error_rate": counts["character_errors"]
            / max(counts["characters"], 1),
            "exact": counts["exact"] / counts["examples"],
            "words": counts["words"],
            "substituted": counts["substituted"],
            "deleted": counts["deleted"],
            "inserted": counts["inserted"],
            "unknown_units": self._unknown,
            "cut": self._cut,
            "constant": self._constant(),
            "worst": worst,
        }
        if "too_long" in counts:
            metrics["too_long"] = counts["too_long"]
        return metrics

    def _constant(self) -> dict[str, Any]:
        ((text, _),) = self._truths.most_common(1)
        errors = sum(distance(truth, text) * n for truth, n in self._truths.items())
        characters = max(self._counts["characters"], 1)
        if errors >= characters:
            text, errors = "", characters
        return {"text": text, "character_error_rate": errors / characters}


def _show(change: Edit) -> str:
    """A word of an alignment."""
    if change.kind == "inserted":
        return f"*{change.prediction}*"
    if change.kind == "deleted":
        return f"[{change.truth}]"
    if change.kind == "substituted":
        return f"({change.truth} > {change.prediction})"
    return str(change.truth)
