"""Random replacement of words."""

from typing import Annotated

import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.text_decoding import UNKNOWN
from pipeline.utils.errors import UsageError


@register
def word_dropout(
    batch: Example,
    seeds: tf.Tensor,
    *,
    probability: Annotated[float, (0, 1)] = 0.1,
) -> Example:
    """Replaces words of a text by the unknown word.

    Iyyer et al., "Deep Unordered Composition Rivals Syntactic Methods for Text
    Classification", ACL 2015, section 3.1, leave the words out. The characters of a
    text, which `bag` reads, are not changed.

    Args:
        probability: Probability that a word is replaced.
    """
    if "tokens" not in batch:
        raise UsageError(
            "--data.augment: word_dropout changes texts, but the examples have no texts"
        )
    tokens = batch["tokens"]
    count = tokens.shape[1]
    word_seeds = draw.fold(seeds[:, None], tf.range(count, dtype=tf.int64))
    is_replaced = (draw.uniform(word_seeds) < probability) & (tokens > 0)
    return {**batch, "tokens": tf.where(is_replaced, UNKNOWN, tokens)}


word_dropout.moves = ()  # type: ignore[attr-defined]
