"""Parts of models of texts: n-grams, embeddings and sums over the words of a text."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from pipeline.contracts import Metadata
from pipeline.data.text_decoding import FIRST
from pipeline.utils.errors import UsageError

_FACTOR = 1_000_003  # of the hash, whose values stay below 2**63
_SMOOTHING = 1.0  # occurrences added to each n-gram of each class


def tokens_of(x: Any, model: str) -> keras.KerasTensor:
    """The numbers of the words in the inputs of a model, int32 (batch, length).

    Raises UsageError naming the model if the inputs are no texts.
    """
    tokens = x.get("tokens") if isinstance(x, dict) else x
    if tokens is None or "int" not in tokens.dtype or len(tokens.shape) != 2:
        raise UsageError(
            f"--model.name {model} is for texts, but the task has another input; choose"
            " another model, such as mlp"
        )
    return tokens


def texts_of(x: Any, model: str) -> dict[str, dict[str, keras.KerasTensor]]:
    """The texts in the inputs of a model by their names, or by "" if x is a text: each
    has `tokens`, and perhaps `text`.

    Raises UsageError naming the model if there are no texts.
    """
    if not isinstance(x, dict) or "tokens" in x:
        tokens = tokens_of(x, model)
        return {"": x if isinstance(x, dict) else {"tokens": tokens}}
    texts = {}
    for name, part in x.items():
        if isinstance(part, dict) and "tokens" in part:
            texts[name] = part
    if not texts:
        tokens_of(x, model)
    return texts


def embed(
    tokens: keras.KerasTensor, metadata: Metadata | None, dimension: int
) -> keras.KerasTensor:
    """A trained vector for each word, (batch, length, dimension); zeros for padding."""
    count = FIRST + len((metadata or {}).get("vocabulary", ()))
    vectors = keras.layers.Embedding(count, dimension, name="embedding")(tokens)
    return vectors * mask_of(tokens, vectors)


def mask_of(tokens: keras.KerasTensor, like: keras.KerasTensor) -> keras.KerasTensor:
    """1 for words and 0 for padding, (batch, length, 1), in the dtype of a tensor."""
    return ops.expand_dims(ops.cast(tokens > 0, like.dtype), -1)


def attend(features: keras.KerasTensor, tokens: keras.KerasTensor) -> keras.KerasTensor:
    """The mean of the features of words, weighted by attention, (batch, channels)."""
    scores = keras.layers.Dense(1, name="attention", dtype="float32")(features)
    is_word = ops.expand_dims(tokens > 0, -1)
    weights = ops.softmax(ops.where(is_word, scores, -1e9), axis=1)
    weights = ops.cast(weights, features.dtype) * mask_of(tokens, features)
    return ops.sum(features * weights, axis=1)


def ngram_features(
    ids: keras.KerasTensor,
    sizes: Sequence[int],
    *,
    buckets: int,
    dimension: int,
    name: str,
) -> keras.KerasTensor:
    """The weighted sum of the vectors of all n-grams of a text, (batch, dimension).

    The weights are learned from the classes of the training examples by `importance`;
    their squares sum to 1.

    Args:
        ids: Words or characters as numbers, (batch, length); 0 for padding.
        sizes: Values of n.
        buckets: N-grams are hashed into this many vectors.
        dimension: Length of a vector.
        name: Name of the layers.
    """
    hashes = []
    masks = []
    length = ids.shape[1]
    ids = ops.cast(ids, "int64")
    for size in sizes:
        count = length - size + 1
        if count < 1:
            continue
        value = ids[:, :count] * 0 + size
        for start in range(size):
            value = (value * _FACTOR + ids[:, start : start + count]) % buckets
        is_inside = ids[:, size - 1 :] > 0
        # Bucket 0 is for padding alone.
        value = ops.where(is_inside, 1 + value % (buckets - 1), 0)
        hashes.append(value)
        masks.append(ops.cast(is_inside, "float32"))
    ngrams = ops.concatenate(hashes, axis=1)
    mask = ops.concatenate(masks, axis=1)
    weigh = keras.layers.Embedding(
        buckets,
        1,
        embeddings_initializer="ones",
        trainable=False,
        dtype="float32",
        name=f"{name}_importance",
    )
    weigh.adapt_to_classes = importance
    vectors = keras.layers.Embedding(
        buckets,
        dimension,
        embeddings_initializer="zeros",
        dtype="float32",
        name=f"{name}_vectors",
    )(ngrams)
    weights = ops.squeeze(weigh(ngrams), -1) * mask
    norm = ops.sqrt(ops.sum(weights * weights, axis=1, keepdims=True) + 1e-6)
    weights = ops.expand_dims(weights / norm, -1)
    return ops.sum(vectors * weights, axis=1)


def importance(
    layer: keras.layers.Embedding, batches: Iterable[tuple[np.ndarray, np.ndarray]]
) -> None:
    """Sets the weight of each n-gram to its largest log-count ratio times its inverse
    document frequency.

    The ratio compares how often n-grams occur in texts of a class and in other texts.
    Wang and Manning, "Baselines and Bigrams", ACL 2012, section 2.3: scaling features
    by it makes a linear classifier better on short texts. The inverse document
    frequency is 1 + log((1 + texts) / (1 + texts with the n-gram)).

    Args:
        layer: The embedding of n-grams to set.
        batches: The inputs of the layer, (batch, n), and the share of each class,
            (batch, classes), of all training examples.
    """
    counts: Any = 0.0
    totals: Any = 0.0
    texts = 0
    size = layer.input_dim
    for ngrams, shares in batches:
        rows = np.repeat(np.arange(len(ngrams)), ngrams.shape[1])
        present = np.unique(rows * size + ngrams.ravel())
        rows, buckets = present // size, present % size
        texts += len(ngrams)
        shares = shares.astype(np.float64)
        by_class = [
            np.bincount(buckets, column[rows], minlength=size) for column in shares.T
        ]
        counts = counts + np.stack(by_class)
        totals = totals + np.bincount(buckets, minlength=size)
    inside = counts + _SMOOTHING
    outside = totals - counts + _SMOOTHING
    inside[:, 0] = outside[:, 0] = 0  # padding
    inside /= inside.sum(axis=1, keepdims=True)
    outside /= outside.sum(axis=1, keepdims=True)
    inside[:, 0] = outside[:, 0] = 1
    ratios = np.abs(np.log(inside) - np.log(outside)).max(axis=0)
    weights = ratios * (1 + np.log((1 + texts) / (1 + totals)))
    layer.embeddings.assign(weights[:, None].astype(np.float32))
