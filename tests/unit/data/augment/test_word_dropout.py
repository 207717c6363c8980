"""Words are replaced by the unknown word, from the seeds alone."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.data import seeds
from pipeline.data.augment.word_dropout import word_dropout
from pipeline.utils.errors import UsageError


def test_a_share_of_the_words_is_replaced_and_padding_stays():
    tokens = np.repeat([[5, 6, 7, 8, 9, 0, 0, 0]], 500, axis=0).astype(np.int32)
    batch = {"tokens": tf.constant(tokens), "label": tf.range(500)}
    own = seeds.example_seeds(
        0, tf.zeros([500], tf.int64), tf.range(500, dtype=tf.int64)
    )
    done = word_dropout(batch, own, probability=0.2)
    after = done["tokens"].numpy()
    replaced = after != tokens
    assert (after[replaced] == 1).all() and not replaced[:, 5:].any()
    assert 0.15 < replaced[:, :5].mean() < 0.25
    np.testing.assert_array_equal(done["label"], batch["label"])
    part = word_dropout({"tokens": batch["tokens"][20:30]}, own[20:30], probability=0.2)
    np.testing.assert_array_equal(part["tokens"], after[20:30])
    compiled = tf.function(word_dropout, jit_compile=True)(batch, own, probability=0.2)
    np.testing.assert_array_equal(compiled["tokens"], after)


def test_other_examples_are_refused():
    with pytest.raises(UsageError, match="word_dropout changes texts"):
        word_dropout({"image": tf.zeros([2, 4, 4, 3])}, tf.zeros([2], tf.int64))
