"""Turns texts of any bytes into words, with core operations of TensorFlow, in training
as in serving.
"""

import functools
import sys
import unicodedata

import numpy as np
import tensorflow as tf

MOST_BYTES = 2**20
"""Only the beginning of a longer text is read."""
PADDING = 0
UNKNOWN = 1
FIRST = 2
"""The number of the first word of a vocabulary."""
_HASHES = 2**63 - 1
_CODE_BITS = 21  # of a code point
# A word may have apostrophes inside; anything else is a word of one character.
_LETTERS = r"[\pL\pM\pN]"
_WORD = rf"({_LETTERS}+(?:['’]{_LETTERS}+)*|[^\s\pL\pM\pN])"
_SPACE = r"[\p{Cc}\pZ\s]+"


def standardize(
    texts: tf.Tensor, unit: str, *, lower: bool = True, accents: bool = True
) -> tf.Tensor:
    """Texts in one form, which this function leaves unchanged, strings (n,).

    Invalid UTF-8 becomes U+FFFD, control characters and white space become one space,
    and letters with accents are composed (NFC, up to two accents). There is a space
    between words if `unit` is `words`.

    Args:
        texts: Strings of any bytes, (n,).
        unit: `words` or `characters`.
        lower: Convert to lower case.
        accents: Keep accents, as in "café".
    """
    texts = tf.strings.substr(texts, 0, MOST_BYTES)
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    # First, because `tf.strings.lower` ends at a NUL.
    texts = tf.strings.regex_replace(texts, _SPACE, " ")
    if lower:
        texts = tf.strings.lower(texts, encoding="utf-8")
    texts = _compose(texts)
    if not accents:
        texts = _without_accents(texts)
    if unit == "words":
        texts = tf.strings.regex_replace(texts, _WORD, r"\1 ")
        texts = tf.strings.regex_replace(texts, " +", " ")
    return tf.strings.strip(texts)


def cut(texts: tf.Tensor, size: int) -> tf.Tensor:
    """The beginnings of at most `size` bytes of texts in UTF-8, without half a
    character.
    """
    texts = tf.strings.substr(texts, 0, size)
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
    return tf.strings.strip(texts)


def split(texts: tf.Tensor, unit: str) -> tf.RaggedTensor:
    """The words or characters of standardized texts (n,), strings (n, None)."""
    if unit == "words":
        return tf.strings.split(texts)
    return tf.strings.unicode_split(texts, "UTF-8")


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
def _letters() -> tuple[np.ndarray, np.ndarray]:
    """Letters with accents, ascending, and the same letters without."""
    plain = {}
    for code in range(sys.maxunicode + 1):
        letters = unicodedata.normalize("NFD", chr(code))
        if len(letters) > 1 and all(map(unicodedata.combining, letters[1:])):
            plain[code] = ord(letters[0])
    keys = np.array(sorted(plain), np.int32)
    return keys, np.array([plain[key] for key in keys.tolist()], np.int32)


def _without_accents(texts: tf.Tensor) -> tf.Tensor:
    keys, letters = _letters()
    ragged = tf.strings.unicode_decode(texts, "UTF-8")
    position, is_found = _search(keys, ragged.values)
    codes = tf.where(is_found, tf.gather(letters, position), ragged.values)
    texts = tf.strings.unicode_encode(ragged.with_values(codes), "UTF-8")
    return tf.strings.regex_replace(texts, r"\p{Mn}+", "")
