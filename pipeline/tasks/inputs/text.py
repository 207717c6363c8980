"""Texts: words or characters, with a vocabulary from the training examples, or the
word pieces of a pretrained network.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Decision,
    Example,
    Info,
    Input,
    Metadata,
    Request,
    ServingInput,
    Similarity,
    Source,
    TrainingExamples,
)
from pipeline.data import text_decoding
from pipeline.data.cleaning import near_texts
from pipeline.data.text_decoding import UNKNOWN, Vocabulary, WordPieces
from pipeline.layers.presets import word_piece_tokenizer
from pipeline.serving import request_guards
from pipeline.utils.errors import UsageError

_MAX_QUANTILE = 0.99  # of the texts, which are not cut
_MAX_WORDS = 512
_MAX_BYTES = 4096
_MAX_COUNTED = 2_000_000  # different words; the rarest are forgotten above
_MIN_COUNT = 2  # times that a word of the vocabulary occurs


@register
def text(
    info: Info | Metadata,
    *,
    field: str = "text",
    suffixes: tuple[str, ...] = (".txt",),
    columns: tuple[str, ...] = (
        "text",
        "sentence",
        "review",
        "comment",
        "message",
        "content",
        "tweet",
        "description",
    ),
    unit: Literal["words", "characters"] = "words",
    vocabulary: Annotated[int, (1, 1_000_000)] = 20_000,
    length: Annotated[int, (1, 65536)] | None = None,
    lower: bool = True,
    accents: bool = True,
    preset: str | None = None,
    raw: bool = False,
) -> Input:
    """Texts in UTF-8 of any length: strings, or text files.

    The model gets the numbers of the first words of a text (0: no word, 1: unknown, 2:
    the most frequent word of the training texts) and the bytes of its beginning in
    lower case.

    Args:
        info: The source's description, or the metadata of a run.
        field: The field of the source.
        suffixes: The files of a directory that are texts.
        columns: The columns of a table that are texts.
        unit: What a token is: one of the `words`, which include punctuation marks and
            symbols, or of the `characters`, for languages without spaces between words.
        vocabulary: Largest number of words in the vocabulary. A word must occur at
            least twice in the training texts.
        length: Number of words of a text that the model gets, at most 512 by default.
            None: the length of 99% of the training texts.
        lower: Convert texts to lower case.
        accents: Keep accents.
        preset: Divide words into the word pieces of a text network of KerasHub, such as
            BERT, for the model `keras_hub` with this preset: a directory written by
            `save_to_preset`, or a name that KerasHub downloads. It determines the
            vocabulary, and whether case and accents are kept.
        raw: Give the model the numbers of the words only, as an array.

    Raises:
        UsageError: The field is missing or has another type; the preset cannot be
            loaded or does not use word pieces.
    """
    if not isinstance(info, Info):
        return TextInput(info)
    spec = info.field(field)
    if spec.dtype != tf.string or spec.shape.rank != 0:
        raise UsageError(
            f"{field}: texts must be one string for each example; got"
            f" {spec.dtype.name} of shape {spec.shape}"
        )
    metadata: dict[str, Any] = {"unit": unit, "vocabulary_size": vocabulary}
    if preset is not None:
        option = f"--task.input-options preset={preset}"
        tokenizer = word_piece_tokenizer(option, preset)
        metadata = {"unit": "pieces", "vocabulary": list(tokenizer.vocabulary)}
        lower = tokenizer.lowercase
        accents = not lower  # as BERT was trained
    if length is not None:
        metadata["length"] = length
    if field != "text":
        metadata["input_field"] = field
    if not lower:
        metadata["lower"] = False
    if not accents:
        metadata["accents"] = False
    if raw:
        metadata["raw"] = True
    return TextInput(metadata)


class TextInput(Input):
    """Decoded examples have `tokens`, int32 (length,), the numbers of the first words;
    and `text`, uint8 (bytes,), the beginning of the text in its standard form. Both are
    filled with zeros.
    """

    decodes_batches = True
    not_decoded = frozenset({"text_notes", "vocabulary_size"})
    compared = ("text",)

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.field = metadata.get("input_field", "text")
        self._unit = metadata.get("unit", "words")
        self._words: list[str] = list(metadata.get("vocabulary", ()))
        kind = WordPieces if self._unit == "pieces" else Vocabulary
        self._vocabulary = kind(self._words)
        self._length = int(metadata.get("length", 1))
        self._bytes = int(metadata.get("bytes", 1))

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns the vocabulary if there is none, and the length if it is open."""
        counts: Counter[Any] = Counter()
        lengths: list[np.ndarray] = []
        sizes: list[np.ndarray] = []
        spec = tf.TensorSpec((None,), tf.string)
        count_words = tf.function(self._count_words, input_signature=[spec])
        for batch in examples.batches():
            texts = tf.constant(batch[self.field], tf.string)
            different, count, length, size = count_words(texts)
            pairs = zip(different.numpy().tolist(), count.numpy().tolist(), strict=True)
            counts.update(dict(pairs))
            lengths.append(length.numpy())
            sizes.append(size.numpy())
            if len(counts) > _MAX_COUNTED:
                counts = Counter(dict(counts.most_common(_MAX_COUNTED // 2)))
        number_of_bytes = np.concatenate(sizes)
        if not number_of_bytes.any():
            raise UsageError(
                f"{self.field}: the training texts contain no words; are they empty?"
            )
        number_of_words = np.concatenate(lengths)
        length = self.metadata.get("length") or _longest(number_of_words, _MAX_WORDS)
        share = (number_of_words <= length).mean()
        reason = "no training text is longer"
        if share < 1:
            reason = (
                f"{share:.1%} of the training texts are not longer; the longest has"
                f" {number_of_words.max():,}"
            )
        unit = self._unit
        learned: dict[str, Any] = {
            "length": int(length),
            "bytes": _longest(number_of_bytes, _MAX_BYTES),
        }
        if unit == "pieces":
            size = f"{len(self._words):,} {unit} of the preset"
            unknown = counts[UNKNOWN]
            why = "words that the preset cannot divide"
        else:
            frequent = [word for word in counts if counts[word] >= _MIN_COUNT]
            frequent.sort(key=lambda word: (-counts[word], word))
            words_kept = frequent[: self.metadata["vocabulary_size"]]
            learned["vocabulary"] = [word.decode() for word in words_kept]
            size = f"{len(words_kept):,} of {len(counts):,} {unit}"
            unknown = counts.total() - sum(counts[word] for word in words_kept)
            why = "they occur only once, or are rarer than these"
        learned["text_notes"] = {
            "vocabulary": [
                size,
                f"{unknown / counts.total():.1%} of the {unit} in the training texts"
                f" are unknown: {why}",
            ],
            "length": [f"{length:,} {unit}", reason],
        }
        return learned

    def _count_words(
        self, texts: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The different words of texts and how often they occur; and the number of
        words and of bytes of each text, (n,).
        """
        texts = self._standardize(texts)
        words = text_decoding.split(texts, self._unit)
        if self._unit == "pieces":
            words = self._vocabulary.encode(words, text_decoding.MAX_BYTES)
        different, _, count = tf.unique_with_counts(words.values)
        return different, count, words.row_lengths(), tf.strings.length(texts)

    def review(self) -> list[Decision]:
        notes = self.metadata.get("text_notes", {})
        return [Decision(name, value, why) for name, (value, why) in notes.items()]

    def _standardize(self, texts: tf.Tensor) -> tf.Tensor:
        return text_decoding.standardize(
            texts,
            self._unit,
            lower=self.metadata.get("lower", True),
            accents=self.metadata.get("accents", True),
        )

    def _decode(self, texts: tf.Tensor) -> Example:
        """The decoded fields of texts, strings (n,)."""
        texts = text_decoding.cut(self._standardize(texts), self._bytes)
        words = text_decoding.split(texts, self._unit)
        numbers = self._vocabulary.encode(words, self._length)
        tokens = numbers.to_tensor(shape=(None, self._length))
        content = tf.io.decode_raw(texts, tf.uint8, fixed_length=self._bytes)
        return {
            "text": tf.ensure_shape(content, (None, self._bytes)),
            "tokens": tf.ensure_shape(tokens, (None, self._length)),
        }

    def decode(self, example: Example) -> tuple[Example, None]:
        """Converts a text of any bytes to numbers."""
        texts = example[self.field]
        if texts.shape.rank == 1:
            return self._decode(texts), None
        fields = self._decode(texts[None])
        return {name: values[0] for name, values in fields.items()}, None

    def match(self, source: Source) -> "TextInput":
        field = self.field if self.field in source.info.fields else "text"
        return TextInput({**self.metadata, "input_field": field})

    def prepare(self, batch: Example) -> Example:
        return dict(batch)

    def inputs(self) -> Any:
        tokens = keras.Input((self._length,), dtype="int32", name="tokens")
        if self.metadata.get("raw"):
            return tokens
        content = keras.Input((self._bytes,), dtype="uint8", name="text")
        return {"text": content, "tokens": tokens}

    def network_inputs(self, batch: Example) -> Any:
        if self.metadata.get("raw"):
            return batch["tokens"]
        return {"text": batch["text"], "tokens": batch["tokens"]}

    def signatures(self) -> list[ServingInput]:
        """`serving_default(text)` takes texts of any bytes, strings (batch,)."""
        spec = tf.TensorSpec((None,), tf.string, name="text")
        return [
            ServingInput(
                "serving_default",
                {"text": spec},
                self._read_request,
                self._request,
                files=(".txt",),
                meaning="in UTF-8",
            )
        ]

    def _read_request(self, texts: tf.Tensor) -> Example:
        return self._decode(request_guards.batch(texts, (None,)))

    def _request(self, columns: Mapping[str, np.ndarray]) -> Request:
        """The texts of decoded examples, every other one in upper case.

        Only of letters of ASCII, of which all are the same again in lower case.
        """
        texts = []
        for number, content in enumerate(columns["text"]):
            words = decode_codes(content)
            if number % 2 and words.isascii() and self.metadata.get("lower", True):
                words = words.upper()
            texts.append(words.encode())
        return {"text": texts}

    def similarity(self, info: Info) -> Similarity:
        """Words and pairs of words that two texts share."""
        return Similarity(
            sketch=self._sketch,
            spec=tf.TensorSpec((near_texts.HASHES,), tf.uint32),
            find=near_texts.find,
        )

    def _sketch(self, example: Example) -> tf.Tensor:
        text = self._standardize(example[self.field][None])
        # Punctuation and symbols do not count.
        text = tf.strings.regex_replace(text, r"[^\pL\pM\pN]+", " ")
        words = text_decoding.split(tf.strings.strip(text), self._unit)
        return near_texts.sketch(words[0])

    def limitations(self) -> list[str]:
        return [
            f"Only the first {self._length:,} {self._unit} and the first"
            f" {self._bytes:,} bytes of a text are read.",
            "The metrics hold for texts like those of the training examples; other"
            " languages, topics and times have not been tested.",
        ]


def _longest(lengths: np.ndarray, most: int) -> int:
    """The length of 99% of the texts, from 1 to `most`."""
    length = int(np.quantile(lengths, _MAX_QUANTILE, method="higher"))
    return min(max(length, 1), most)


def decode_codes(content: np.ndarray) -> str:
    """The text in decoded bytes, which are filled with zeros."""
    return content.tobytes().rstrip(b"\0").decode(errors="replace")
