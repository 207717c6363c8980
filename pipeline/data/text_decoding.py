"""Turns texts of any bytes into words or word pieces, with core operations of
TensorFlow, in training as in serving.
"""

import functools
import sys
import unicodedata

import numpy as np
import tensorflow as tf

MAX_BYTES = 2**20
"""Only the beginning of a longer text is read."""
PADDING = 0
UNKNOWN = 1
FIRST = 2
"""The number of the first word of a vocabulary."""
_HASHES = 2**63 - 1
_CODE_BITS = 21  # of a code point
# A word may have apostrophes inside; anything else is a word of one character.
_LETTERS = r"[\pL\pM\pN]"
# Without groups, which would take RE2 six times as long.
_WORD = rf"{_LETTERS}+(?:['’]{_LETTERS}+)*|[^\s\pL\pM\pN]"
_SPACE = r"[\p{Cc}\pZ\s]+"
# Of BERT: control characters are left out, and a word is one character of punctuation
# or of Chinese, or what is between these and spaces.
_IGNORED = r"[\x00-\x08\x0B\x0C\x0E-\x1F\x7F-\x9F\p{Cf}\p{Co}\x{FFFD}]+"
_CHINESE = (
    r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}"
    r"\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{2F800}-\x{2FA1F}"
)
_BERT_WORD = rf"[!-/:-@\[-`{{-~\pP{_CHINESE}]|[^\s!-/:-@\[-`{{-~\pP{_CHINESE}]+"
_MAX_CHARACTERS = 100  # of a word that is not unknown


def standardize(
    texts: tf.Tensor, unit: str, *, lower: bool = True, accents: bool = True
) -> tf.Tensor:
    """Texts in one form, which this function leaves unchanged, strings (n,).

    Invalid UTF-8 becomes U+FFFD, control characters and white space become one space,
    and letters with accents are composed (NFC, up to two accents). There is a space
    between words if `unit` is `words` or `pieces`. For `pieces`, the words are those of
    BERT: invalid UTF-8 and control characters are left out, and nothing is composed.

    Args:
        texts: Strings of any bytes, (n,).
        unit: `words`, `characters` or `pieces`.
        lower: Convert to lower case.
        accents: Keep accents, as in "café". If not, characters are decomposed (NFD).
    """
    texts = tf.strings.substr(texts, 0, MAX_BYTES)
    # Of most texts, all is printable ASCII, which takes a tenth of the time.
    is_plain = tf.strings.regex_full_match(texts, "[ -~]*")
    others = _standardize_any(tf.where(is_plain, "", texts), unit, lower)
    plain = tf.strings.regex_replace(texts, "  +", " ")
    texts = tf.where(is_plain, tf.strings.lower(plain) if lower else plain, others)
    if not accents:
        texts = _without_accents(texts)
    if unit != "characters":
        texts = _with_spaces(texts, _BERT_WORD if unit == "pieces" else _WORD)
    return tf.strings.strip(texts)


def _standardize_any(texts: tf.Tensor, unit: str, lower: bool) -> tf.Tensor:
    """As `standardize`, without spaces between words."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    # First, because `tf.strings.lower` ends at a NUL.
    if unit == "pieces":
        texts = tf.strings.regex_replace(texts, _IGNORED, "")
    texts = tf.strings.regex_replace(texts, _SPACE, " ")
    if lower:
        texts = tf.strings.lower(texts, encoding="utf-8")
    if unit == "pieces":
        return texts
    # Nothing is composed of ASCII, which is most of many texts.
    is_ascii = tf.strings.regex_full_match(texts, r"[\x00-\x7F]*")
    composed = _compose(tf.where(is_ascii, "", texts))
    return tf.where(is_ascii, texts, composed)


def _with_spaces(texts: tf.Tensor, word: str) -> tf.Tensor:
    """The same texts with one space between words."""
    # Without apostrophes, words of ASCII are letters and digits, or one other sign.
    is_simple = tf.strings.regex_full_match(texts, "[ -&(-~]*")
    simple = tf.where(is_simple, texts, "")
    simple = tf.strings.regex_replace(simple, "[^ A-Za-z0-9]", r" \0 ")
    others = tf.strings.regex_replace(tf.where(is_simple, "", texts), word, r"\0 ")
    return tf.strings.regex_replace(tf.where(is_simple, simple, others), "  +", " ")


def cut(texts: tf.Tensor, size: int) -> tf.Tensor:
    """The beginnings of at most `size` bytes of texts in UTF-8, without half a
    character.
    """
    texts = tf.strings.substr(texts, 0, size)
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
    return tf.strings.strip(texts)


def split(texts: tf.Tensor, unit: str) -> tf.RaggedTensor:
    """The words or characters of standardized texts (n,), strings (n, None)."""
    if unit == "characters":
        return tf.strings.unicode_split(texts, "UTF-8")
    return tf.strings.split(texts)


class Vocabulary:
    """Numbers of words, from `FIRST` in the order of the vocabulary."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    @functools.cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """Hashes of the words in ascending order, and their numbers."""
        with tf.init_scope():
            hashes = _hash(tf.constant(self._words, tf.string)).numpy()
        order = np.argsort(hashes)
        return hashes[order], (order + FIRST).astype(np.int32)

    def look_up(self, words: tf.Tensor) -> tf.Tensor:
        """The number of each word, int32; `UNKNOWN` for other words.

        Words are compared by their 64-bit hashes, so that no table needs to be
        initialized where the model is loaded.
        """
        if not self._words:
            return tf.fill(tf.shape(words), UNKNOWN)
        hashes, numbers = self._table
        position, is_equal = _search(hashes, _hash(words))
        return tf.where(is_equal, tf.gather(numbers, position), UNKNOWN)

    def encode(self, words: tf.RaggedTensor, length: int) -> tf.RaggedTensor:
        """The numbers of the first `length` words of texts (n, None), int32."""
        words = words[:, :length]
        return words.with_values(self.look_up(words.values))


class WordPieces(Vocabulary):
    """Numbers of the pieces of words: the longest beginning of a word that is in the
    vocabulary, then that of the rest, which the vocabulary has after `##`.

    Devlin et al., "BERT", NAACL 2019; Wu et al., arXiv 1609.08144, section 4.1.
    """

    def __init__(self, words: list[str]) -> None:
        super().__init__(words)
        self._longest = max(len(word.removeprefix("##")) for word in words)

    def encode(self, words: tf.RaggedTensor, length: int) -> tf.RaggedTensor:
        """[CLS], the first pieces of texts as numbers (n, None), and [SEP], int32."""
        different, position = tf.unique(words.values)
        pieces = tf.gather(self._pieces(different), position)
        pieces = words.with_values(pieces).merge_dims(1, 2)[:, : max(length - 2, 0)]
        edge = tf.ones([words.nrows(), 1], tf.int32)
        first, last = (FIRST + self._words.index(name) for name in ("[CLS]", "[SEP]"))
        return tf.concat([edge * first, pieces, edge * last], axis=1)

    def _pieces(self, words: tf.Tensor) -> tf.RaggedTensor:
        """The numbers of the pieces of each word, (n, None); one `UNKNOWN` for a word
        that cannot be divided or has more than 100 characters.
        """
        is_long = tf.strings.length(words, "UTF8_CHAR") > _MAX_CHARACTERS
        pieces = tf.zeros([tf.size(words), 0], tf.int32)
        _, pieces = tf.while_loop(
            lambda rests, pieces: tf.reduce_any(rests != ""),
            self._next_pieces,
            (tf.where(is_long, "", words), pieces),
            shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None, None])),
        )
        is_unknown = is_long | tf.reduce_any(pieces == UNKNOWN, axis=1)
        pieces = tf.where(is_unknown[:, None], PADDING, pieces)
        unknown = tf.where(is_unknown, UNKNOWN, PADDING)
        pieces = tf.concat([unknown[:, None], pieces], axis=1)
        return tf.ragged.boolean_mask(pieces, pieces != PADDING)

    def _next_pieces(
        self, rests: tf.Tensor, pieces: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """What is left of words (n,), and their pieces (n, k) with one more: `PADDING`
        after the last one.
        """
        size = tf.strings.length(rests, "UTF8_CHAR")
        sizes = tf.minimum(tf.range(1, self._longest + 1), size[:, None])
        starts = _parts(rests[:, None], tf.zeros_like(sizes), sizes)
        mark = tf.where(tf.shape(pieces)[1] == 0, "", "##")
        numbers = self.look_up(tf.reshape(mark + starts, [-1]))
        numbers = tf.reshape(numbers, tf.shape(sizes))
        sizes = tf.where(numbers == UNKNOWN, 0, sizes)
        best = tf.argmax(sizes, axis=1)
        number = tf.gather(numbers, best, batch_dims=1)
        # Nothing is left of a word that cannot be divided.
        used = tf.where(number == UNKNOWN, size, tf.gather(sizes, best, batch_dims=1))
        number = tf.where(size == 0, PADDING, number)
        rests = _parts(rests, used, size - used)
        return rests, tf.concat([pieces, number[:, None]], axis=1)


def _parts(texts: tf.Tensor, start: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    return tf.strings.substr(texts, start, size, unit="UTF8_CHAR")


def _hash(words: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(words, _HASHES)


def _search(keys: np.ndarray, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Positions of values (n,) in ascending keys, and whether they are there."""
    position = tf.searchsorted(keys, values)
    position = tf.minimum(position, len(keys) - 1)
    return position, tf.equal(tf.gather(keys, position), values)


@functools.cache
def _pairs() -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a letter and an accent as one number, ascending, and what they compose.

    The version of Unicode is that of Python.
    """
    composed = {}
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) != 2 or parts[0].startswith("<"):
            continue
        first, second = (int(part, 16) for part in parts)
        if unicodedata.normalize("NFC", chr(first) + chr(second)) == chr(code):
            composed[first << _CODE_BITS | second] = code
    keys = np.array(sorted(composed), np.int64)
    return keys, np.array([composed[key] for key in keys.tolist()], np.int32)


def _compose(texts: tf.Tensor) -> tf.Tensor:
    """Replaces letters followed by accents by the letters with accents, twice."""
    keys, letters = _pairs()
    ragged = tf.strings.unicode_decode(texts, "UTF-8")
    codes = ragged.values
    rows = ragged.value_rowids()
    for _ in range(2):
        is_inside = tf.equal(rows[:-1], rows[1:])
        pairs = tf.cast(codes, tf.int64) * 2**_CODE_BITS
        pairs = pairs[:-1] + tf.cast(codes[1:], tf.int64)
        position, is_pair = _search(keys, pairs)
        is_pair &= is_inside
        new = tf.where(is_pair, tf.gather(letters, position), codes[:-1])
        codes = tf.concat([new, codes[-1:]], axis=0)
        is_kept = tf.concat([tf.ones_like(codes[:1], tf.bool), ~is_pair], axis=0)
        # An empty batch of characters has no first one to keep.
        is_kept = is_kept[: tf.size(codes)]
        codes = tf.boolean_mask(codes, is_kept)
        rows = tf.boolean_mask(rows, is_kept)
    count = tf.size(texts, out_type=tf.int64)
    ragged = tf.RaggedTensor.from_value_rowids(codes, rows, count, validate=False)
    return tf.strings.unicode_encode(ragged, "UTF-8")


@functools.cache
def _decompositions() -> tuple[np.ndarray, np.ndarray]:
    """Characters, ascending, and what they are in NFD without accents, if different."""
    plain = {}
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.normalize("NFD", chr(code))
        letters = "".join(part for part in parts if unicodedata.category(part) != "Mn")
        if letters != chr(code):
            plain[code] = letters.encode()
    keys = sorted(plain)
    return np.array(keys, np.int32), np.array([plain[key] for key in keys], object)


def _without_accents(texts: tf.Tensor) -> tf.Tensor:
    keys, plain = _decompositions()
    characters = tf.strings.unicode_split(texts, "UTF-8")
    codes = tf.strings.unicode_decode(texts, "UTF-8")
    position, is_found = _search(keys, codes.values)
    values = tf.where(is_found, tf.gather(plain, position), characters.values)
    return tf.strings.reduce_join(characters.with_values(values), axis=-1)
