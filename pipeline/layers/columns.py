"""Joins the columns of a table's rows to a vector."""

from typing import Any

import keras
from keras import ops

from pipeline.contracts import Metadata
from pipeline.layers.joined import flatten
from pipeline.layers.tokens import ngram_features

FEATURES = "features"
CATEGORIES = "categories"
WORDS = "words"
"""Inputs of a network for rows: numbers, codes to embed, and hashes of words."""
MAX_ONE_HOT = 10
"""Words of a column that are one-hot; a column with more is embedded."""
_BUCKETS = 4096  # of words and pairs of words


def join_columns(
    x: Any, metadata: Metadata | None, dimension: int = 8
) -> keras.KerasTensor:
    """The columns of rows as a vector, (batch, n).

    Args:
        x: The inputs of a network for rows, or anything that `flatten` takes.
        metadata: Metadata of the task, with the words of each column.
        dimension: Length of the vector of a word, which is trained.
    """
    if not isinstance(x, dict) or FEATURES not in x:
        return flatten(x)
    parts = [x[FEATURES]]
    if CATEGORIES in x:
        sizes = []
        for column in (metadata or {}).get("columns", ()):
            size = len(column.get("vocabulary", ())) + 1
            if column["kind"] == "category" and size > MAX_ONE_HOT:
                sizes.append(size)
        starts = [sum(sizes[:position]) for position in range(len(sizes))]
        codes = x[CATEGORIES] + ops.convert_to_tensor(starts, "int32")
        vectors = keras.layers.Embedding(sum(sizes), dimension, name="embedding")
        parts.append(keras.layers.Flatten(name="join_categories")(vectors(codes)))
    if WORDS in x:
        count = x[WORDS].shape[1]
        for number in range(count):
            parts.append(
                ngram_features(
                    x[WORDS][:, number],
                    (1, 2),
                    buckets=_BUCKETS,
                    dimension=dimension,
                    name=f"text{number}",
                )
            )
    return keras.layers.Concatenate(name="join")(parts) if len(parts) > 1 else parts[0]
