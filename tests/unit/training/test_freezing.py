"""Frozen layers, and what is trained once they are unfrozen."""

from fractions import Fraction

import keras

from pipeline.training import freezing
from pipeline.training.train_step import SteppedModel


def test_batch_normalization_stays_frozen_once_the_rest_is_not():
    x = keras.Input((4,))
    inner = keras.Sequential([keras.layers.Dense(3), keras.layers.BatchNormalization()])
    inner.build((None, 4))
    inner.name = "backbone"
    model = SteppedModel(x, keras.layers.Dense(2, name="logits")(inner(x)))
    freezing.freeze(model, model.layers, ("backbone",))
    dense, norm = inner.layers
    assert (dense.trainable, norm.trainable) == (False, False)
    freezing.unfreeze(model, Fraction(1))
    assert (dense.trainable, norm.trainable) == (True, False)
    mean = norm.moving_mean.numpy()
    inner(100 * keras.random.normal((8, 4)), training=True)
    assert (norm.moving_mean.numpy() == mean).all(), "nor do its statistics change"
