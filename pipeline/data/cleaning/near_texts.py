"""Finds near duplicates among texts: MinHash and locality-sensitive hashing.

Near duplicates share most of their words and pairs of words, their shingles: the
intersection of both sets is at least 0.6 of their union, after one word of ten was
changed, for example. Broder, "On the resemblance and containment of documents",
Compression and Complexity of Sequences 1997: if shingles are hashed, the least hash of
two texts is the same with a probability equal to this similarity. So the equal ones
among 128 least hashes, each of another function, estimate it. Only texts that agree in
all of 4 consecutive hashes are compared (Leskovec, Rajaraman and Ullman, "Mining of
Massive Datasets", section 3.4): of pairs with similarity 0.6, 99% are.
"""

import numpy as np
import tensorflow as tf

from pipeline.contracts import Pairs

HASHES = 128
_BAND = 4  # consecutive hashes
_MIN_SIMILARITY = 0.6  # similarity of near duplicates
_MAX_WORDS = 10_000  # the rest of a longer text does not count
_MAX_ALIKE = 64  # more texts that agree are not all compared with each other
_MASK = 2**32 - 1
_FACTORS, _SHIFTS = np.random.default_rng(0).integers(0, 2**63, (2, HASHES)) | 1


def sketch(words: tf.Tensor) -> tf.Tensor:
    """The least hashes of the shingles of a text, uint32 (128,).

    `words` are strings (n,).
    """
    words = words[:_MAX_WORDS]
    pairs = tf.strings.join([words[:-1], words[1:]], " ")
    shingles = tf.concat([words, pairs], axis=0)
    keys = tf.strings.to_hash_bucket_fast(shingles, 2**63 - 1)
    # Multiply-shift hashing: the upper half of a product modulo 2**64.
    products = keys[:, None] * _FACTORS + _SHIFTS
    hashes = tf.bitwise.bitwise_and(tf.bitwise.right_shift(products, 32), _MASK)
    # A text without words is only like others without.
    empty = tf.fill([1, HASHES], tf.constant(_MASK, tf.int64))
    least = tf.reduce_min(tf.concat([hashes, empty], axis=0), axis=0)
    return tf.cast(least, tf.uint32)


def find(sketches: np.ndarray) -> Pairs:
    """Finds near duplicates among sketches, (texts, 128).

    `distance` is 1 minus the similarity. Of more than 64 texts that are alike, not all
    pairs are found, but each text is in one.
    """
    count = len(sketches)
    if count < 2:
        nothing = np.empty(0, np.int64)
        return Pairs(nothing, nothing, np.empty(0, np.float32), np.zeros(count, bool))
    keys = [np.empty(0, np.int64)]
    for start in range(0, HASHES, _BAND):
        band = np.ascontiguousarray(sketches[:, start : start + _BAND])
        rows = band.view(np.dtype((np.void, _BAND * band.itemsize)))[:, 0]
        order = np.argsort(rows, kind="stable")
        is_first = np.ones(count, bool)
        is_first[1:] = rows[order][1:] != rows[order][:-1]
        group = np.cumsum(is_first)
        for step in range(1, min(count, _MAX_ALIKE)):
            is_same = group[step:] == group[:-step]
            if not is_same.any():
                break
            keys.append(order[:-step][is_same] * count + order[step:][is_same])
    first, second = np.divmod(np.unique(np.concatenate(keys)), count)
    similarity = np.empty(len(first), np.float32)
    for start in range(0, len(first), 4096):
        part = slice(start, start + 4096)
        is_equal = sketches[first[part]] == sketches[second[part]]
        similarity[part] = is_equal.mean(axis=1)
    is_near = similarity >= _MIN_SIMILARITY
    return Pairs(
        first[is_near],
        second[is_near],
        1 - similarity[is_near],
        np.zeros(count, bool),
    )
