"""Two small exports, an image classifier and a regressor, with every type of output."""

import io

import numpy as np
import tensorflow as tf
from PIL import Image

from pipeline.data import image_decoding

SIDE, WIDTH = 4, 3
CLASSES = ["zero", "one", "two", "drei", "vier", "fünf"]


def png(pixels):
    """Encodes pixels, uint8 (height, width, 3), as PNG."""
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "PNG")
    return encoded.getvalue()


def classifier(directory):
    """Writes an image classifier, with signatures for pixels and files."""
    weight = tf.constant(
        np.random.default_rng(0).normal(size=(SIDE * SIDE * 3, 6)), tf.float32
    )
    names = tf.constant(CLASSES)

    def predict(images):
        images = tf.ensure_shape(images, (None, SIDE, SIDE, 3))
        flat = tf.reshape(tf.cast(images, tf.float32) / 255, (-1, SIDE * SIDE * 3))
        scores = tf.nn.softmax(flat @ weight)
        best, places = tf.math.top_k(scores, 5)
        return {
            "probabilities": scores,
            "class": places[:, 0],
            "label": tf.gather(names, places[:, 0]),
            "top_scores": best,
            "top_labels": tf.gather(names, places),
        }

    def encoded(image_bytes):
        def decode(one):
            image = tf.image.resize(image_decoding.pixels(one, 3), (SIDE, SIDE))
            return tf.cast(image, tf.uint8)

        spec = tf.TensorSpec((SIDE, SIDE, 3), tf.uint8)
        return predict(tf.map_fn(decode, image_bytes, fn_output_signature=spec))

    strings = tf.TensorSpec((None,), tf.string)
    save(
        directory,
        serving_default=(
            predict,
            {"images": tf.TensorSpec((None, SIDE, SIDE, 3), tf.uint8)},
        ),
        image_bytes=(encoded, {"image_bytes": strings}),
    )


def regressor(directory):
    """Writes a model that adds its three features and refuses those that are not
    finite.
    """

    def total(features):
        features = tf.ensure_shape(features, (None, WIDTH))
        features = tf.debugging.assert_all_finite(features, "a feature is not finite")
        return {"prediction": tf.reduce_sum(features, axis=1)}

    save(
        directory,
        serving_default=(total, {"features": tf.TensorSpec((None, WIDTH), tf.float32)}),
    )


def save(directory, **signatures):
    traced = {
        name: (
            tf.function(function, autograph=False).get_concrete_function(
                **{
                    key: tf.TensorSpec(spec.shape, spec.dtype, key)
                    for key, spec in specs.items()
                }
            )
        )
        for name, (function, specs) in signatures.items()
    }
    module = tf.Module()
    module.weight = tf.Variable(0.0)  # for the directory variables/
    tf.saved_model.save(module, str(directory), traced)
    (directory / "assets.extra").mkdir()


BOXES = [[2, 2, 30, 20], [10, 24, 22, 38]]  # of every image that `detector` predictions


def detector(directory):
    """Writes a detector that answers `BOXES`, a cross and a square, for any image, and
    a third box that does not count.
    """

    def repeat(value, count):
        return tf.repeat(tf.constant([value]), count, axis=0)

    def predict(count):
        return {
            "boxes": repeat([*map(list, np.float32(BOXES)), [0.0] * 4], count),
            "scores": repeat([0.9, 0.75, 0.1], count),
            "classes": repeat([0, 1, 1], count),
            "labels": repeat(["cross", "square", "square"], count),
            "count": repeat(2, count),
        }

    strings = tf.TensorSpec((None,), tf.string)
    pixels = tf.TensorSpec((None, 40, 40, 3), tf.uint8)
    save(
        directory,
        serving_default=(
            lambda images: predict(tf.shape(images)[0]),
            {"images": pixels},
        ),
        image_bytes=(
            lambda image_bytes: predict(tf.size(image_bytes)),
            {"image_bytes": strings},
        ),
    )
