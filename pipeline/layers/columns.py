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


_UNITS = 64  # of the columns beside features of something else
_JOINT_UNITS = 128


def join_features(
    features: keras.KerasTensor, columns: Any, metadata: Metadata
) -> keras.KerasTensor:
    """Features of an image, for example, with those of columns, (batch, n).

    Late fusion, as of images and clinical data by Huang et al., "Fusion of medical
    imaging and electronic health records using deep learning", npj Digital Medicine 3,
    2020: the features of each, and a layer of both for what depends on both.

    Args:
        features: A vector for each example.
        columns: The inputs of a network for rows.
        metadata: Metadata of the task, with the words of each column.
    """
    values = join_columns(columns, metadata, prefix="columns_")
    values = keras.layers.Dense(_UNITS, activation="relu", name="columns")(values)
    parts = keras.layers.Concatenate(name="features_and_columns")([features, values])
    layer = keras.layers.Dense(_JOINT_UNITS, activation="relu", name="joint")
    return keras.layers.Concatenate(name="joined")([parts, layer(parts)])


def join_columns(
    x: Any, metadata: Metadata | None, dimension: int = 8, prefix: str = ""
) -> keras.KerasTensor:
    """The columns of rows as a vector, (batch, n).

    Args:
        x: The inputs of a network for rows, or anything that `flatten` takes.
        metadata: Metadata of the task, with the words of each column.
        dimension: Length of the vector of a word, which is trained.
        prefix: The beginning of the names of the layers.
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
        name = f"{prefix}embedding"
        vectors = keras.layers.Embedding(sum(sizes), dimension, name=name)(codes)
        parts.append(keras.layers.Flatten(name=f"{prefix}join_categories")(vectors))
    if WORDS in x:
        count = x[WORDS].shape[1]
        for number in range(count):
            parts.append(
                ngram_features(
                    x[WORDS][:, number],
                    (1, 2),
                    buckets=_BUCKETS,
                    dimension=dimension,
                    name=f"{prefix}text{number}",
                )
            )
    if len(parts) == 1:
        return parts[0]
    return keras.layers.Concatenate(name=f"{prefix}join")(parts)
