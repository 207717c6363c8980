"""A bag of n-grams: a linear model of the words and characters of a text."""

from typing import Annotated, Any

import keras
from keras import ops

from pipeline.config.registry import register
from pipeline.layers.joined import flatten
from pipeline.layers.tokens import ngram_features, texts_of


@register
def bag(
    x: Any,
    *,
    words: tuple[Annotated[int, (1, 8)], ...] = (1, 2),
    characters: tuple[Annotated[int, (1, 8)], ...] = (3, 4, 5),
    dimension: Annotated[int, (1, 4096)] = 8,
    buckets: Annotated[int, (2, 16_777_216)] = 262_144,
    dropout: Annotated[float, (0, 1)] = 0.0,
) -> keras.KerasTensor:
    """Sums of vectors of hashed n-grams, weighted by how much each tells about the
    class.

    Takes texts, or a dictionary of several inputs, whose numbers are joined; returns a
    vector per example. As in Joulin et al., "Bag of Tricks for Efficient Text
    Classification", EACL 2017, but with the log-count ratios of Wang and Manning,
    "Baselines and Bigrams", ACL 2012, times inverse document frequencies as weights,
    and with n-grams of characters, which also describe words that the training texts do
    not have.

    Args:
        x: Texts, or several inputs with texts among them.
        words: Lengths of the n-grams of words.
        characters: Lengths of the n-grams of characters, as bytes of UTF-8.
        dimension: Length of a vector.
        buckets: Number of vectors into which n-grams are hashed, for words and again
            for characters.
        dropout: Fraction of the features to drop in training.
    """
    texts = texts_of(x, "bag")
    parts = []
    options = {"buckets": buckets, "dimension": dimension}
    for name, text in texts.items():
        start = f"{name}_" if name else ""
        kinds = {"words": ("tokens", words), "characters": ("text", characters)}
        for kind, (field, sizes) in kinds.items():
            if sizes and field in text:
                layers = f"{start}{kind}"
                parts.append(ngram_features(text[field], sizes, name=layers, **options))
    if "" not in texts and len(x) > len(texts):
        others = {name: part for name, part in x.items() if name not in texts}
        parts.append(flatten(others))
    features = ops.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
    if dropout:
        features = keras.layers.Dropout(dropout, name="dropout")(features)
    return features
