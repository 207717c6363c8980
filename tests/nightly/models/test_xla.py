"""Networks whose gradients XLA must accept: it is on by default on GPUs."""

import keras
import pytest
import tensorflow as tf

from pipeline.models.detector import detector
from pipeline.models.diffusion_unet import diffusion_unet
from pipeline.models.unet import unet


@pytest.fixture
def bfloat16():
    old = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(old)


@pytest.mark.parametrize(
    "features",
    [
        lambda x: detector(x, widths=(4, 8, 8), min_level=1, pyramid_channels=4),
        lambda x: unet(x, widths=(4, 8)),
        lambda x: diffusion_unet(x, widths=(8, 8, 8)),
    ],
    ids=["detector", "unet", "diffusion_unet"],
)
def test_maps_that_are_enlarged_are_trained_under_xla(features, bfloat16):
    inputs = keras.Input((20, 14, 3))
    model = keras.Model(inputs, features(inputs))
    images = tf.random.stateless_uniform((2, 20, 14, 3), (0, 1))

    @tf.function(jit_compile=True)
    def gradients():
        with tf.GradientTape() as tape:
            maps = tf.nest.flatten(model(images, training=True))
            total = tf.add_n([tf.reduce_sum(tf.cast(x, "float32") ** 2) for x in maps])
        return tape.gradient(total, model.trainable_variables)

    for gradient in gradients():
        assert bool(tf.reduce_all(tf.math.is_finite(gradient)))
