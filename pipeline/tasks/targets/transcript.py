"""Transcripts: the text that a recording says, by connectionist temporal
classification (CTC).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from pipeline.config.registry import register
from pipeline.contracts import (
    Decision,
    Example,
    Info,
    Metadata,
    Source,
    Target,
    TrainingExamples,
)
from pipeline.data import text_decoding
from pipeline.data.text_decoding import FIRST, PADDING, Vocabulary
from pipeline.tasks.targets.ctc import ctc_loss
from pipeline.utils.errors import UsageError

_BLANK = 0
"""The class of no unit, and the padding of labels, which the loss does not see."""
_LONGER = 1.25  # than the longest training transcript may others be
_NEVER = -1e4  # logit of a unit where the recording has ended
_UNKNOWN_TEXT = "\ufffd"
_MIN_COUNT = 2  # times that a word occurs in training transcripts
_MAX_SHOWN = 60  # units in a note


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
        self.unit = metadata.get("transcript_unit", "characters")
        self._units: list[str] = list(metadata.get("units", ()))
        self._vocabulary = Vocabulary(self._units)
        self.length = int(metadata.get("transcript_length", 1))
        self._beam = int(metadata.get("beam", 1))

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns the units, and a length with room after the longest transcript."""
        counts: Counter[bytes] = Counter()
        longest = 0
        for batch in examples.batches():
            texts = self._split(tf.constant(batch[self._field], tf.string))
            counts.update(texts.values.numpy().tolist())
            longest = max(longest, int(tf.reduce_max(texts.row_lengths())))
        least = _MIN_COUNT if self.unit == "words" else 1
        frequent = [text for text in counts if counts[text] >= least]
        frequent.sort(key=lambda text: (-counts[text], text))
        if not frequent:
            raise UsageError(
                f"{self._field}: the training transcripts have no {self.unit} to"
                " learn; are they empty?"
            )
        units = [text.decode() for text in frequent[: self.metadata["most_units"]]]
        length = 1 + int(np.ceil(longest * _LONGER))
        return {"units": units, "transcript_length": length}

    def review(self, columns: Mapping[str, np.ndarray]) -> list[Decision]:
        units = " ".join("space" if unit == " " else unit for unit in self._units)
        if len(units) > _MAX_SHOWN:
            units = f"{units[:_MAX_SHOWN]} ..."
        value = f"{len(self._units):,} {self.unit}: {units}"
        return [Decision("units", value, "of the training transcripts")]

    def _split(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """The units of transcripts (n,), strings (n, None)."""
        lower = not self.metadata.get("keeps_case", False)
        texts = text_decoding.standardize(texts, self.unit, lower=lower)
        return text_decoding.split(texts, self.unit)

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        """Converts a text to the numbers of its units."""
        units = self._split(example[self._field][None])
        numbers = units.with_values(self._vocabulary.look_up(units.values))
        tokens = numbers.to_tensor(PADDING, shape=(1, self.length))
        return {"transcript": tf.ensure_shape(tokens, (1, self.length))[0]}

    def match(self, source: Source) -> "TranscriptTarget":
        fields = source.info.fields
        field = self._field if self._field in fields else "transcript"
        return TranscriptTarget({**self.metadata, "target_field": field})

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
            y = tf.where(fits(y, outputs)[:, None], y, PADDING)
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
        separator = " " if self.unit == "words" else ""
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

    def text_of(self, tokens: np.ndarray) -> str:
        """The text of numbers of units, up to the first padding."""
        names = ["", _UNKNOWN_TEXT, *self._units]
        texts = [names[token] for token in tokens.tolist()]
        return (" " if self.unit == "words" else "").join(texts).strip()

    def limitations(self) -> list[str]:
        return [
            (
                f"Predictions consist of {len(self._units)} {self.unit} of training"
                " transcripts; the model cannot output anything else."
            ),
            "Every recording is transcribed, even if nobody speaks in it.",
        ]

    def standalone_loss(self) -> tuple[Any, Any]:
        """None: Keras's loss needs other labels."""
        return None, None


def fits(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
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
    return tf.cast(~fits(y, outputs), tf.float32)


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
