"""Injected differences between training and serving: the verification rejects each."""

import dataclasses
from functools import partial

import pytest
import reference_exports
import tensorflow as tf

from pipeline.export import proof, request_checks
from pipeline.serving.savedmodel_session import Session
from pipeline.utils.errors import Failure

NETWORK = reference_exports.Network()
HONEST = reference_exports.Parts(NETWORK, decode=lambda contents: accurate(contents))
SIZE = (reference_exports.SIDE, reference_exports.SIDE)


def scaled(images):
    return tf.cast(images, tf.float32)


def after(change):
    """The honest prediction for other pixels."""
    return lambda images: HONEST.prepare(change(images))


def rounded(image):
    return tf.clip_by_value(tf.round(image), 0, 255)


def accurate(contents):
    """JPEG or PNG to pixels: fewer operations than ours, which take seconds to be
    optimised.
    """
    return tf.io.decode_jpeg(contents, channels=3, dct_method="INTEGER_ACCURATE")


def reordered(logits):
    """Classes in the order of their names, as another loader lists them."""
    return reference_exports.answered(logits, sorted(reference_exports.CLASSES))


PIXELS = {
    "not scaled": {
        "prepare": lambda images: (
            (scaled(images) - reference_exports.MEAN) / reference_exports.DEVIATION
        )
    },
    "divided by 256": {
        "prepare": lambda images: (
            (scaled(images) / 256 - reference_exports.MEAN)
            / reference_exports.DEVIATION
        )
    },
    "blue first": {"prepare": after(lambda images: images[..., ::-1])},
    "mirrored": {"prepare": after(lambda images: images[:, :, ::-1])},
    "dropout left on": {"network": partial(NETWORK, dropout=True)},
    "statistics of the batch": {"network": partial(NETWORK, statistics=True)},
    "half precision": {"network": partial(NETWORK, dtype=tf.float16)},
    "weights of another step": {"network": partial(NETWORK, share=1.001)},
    "temperature left out": {
        "prediction": partial(reference_exports.answered, temperature=1.0)
    },
    "names in another order": {"prediction": reordered},
}
FILES = {
    "the nearest pixel": {
        "resize": lambda image: tf.image.resize(
            tf.cast(image, tf.float32), SIZE, "nearest"
        )
    },
    "no antialiasing": {"resize": lambda image: rounded(tf.image.resize(image, SIZE))},
    "bicubic": {
        "resize": lambda image: rounded(
            tf.image.resize(image, SIZE, "bicubic", antialias=True)
        )
    },
    "another cosine transform": {
        "decode": lambda contents: tf.io.decode_jpeg(contents, 3)
    },
    "grey": {
        "decode": lambda contents: tf.repeat(tf.io.decode_jpeg(contents, 1), 3, axis=-1)
    },
}


def named(skew):
    """The name of the signature with that skew."""
    return skew.replace(" ", "_")


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """Signature -> why its predictions were rejected, in a version with all skews."""
    served = {
        "serving_default": ("pixels", HONEST),
        "image_bytes": ("image_bytes", HONEST),
    }
    for kind, skews in (("pixels", PIXELS), ("image_bytes", FILES)):
        for skew, parts in skews.items():
            served[named(skew)] = (kind, dataclasses.replace(HONEST, **parts))
    directory = tmp_path_factory.mktemp("skews") / "1"
    reference_exports.write(directory, served, HONEST, warm=False)
    session, found = Session(directory), {}
    for signature, golden in proof.read_golden(directory / proof.GOLDEN).items():
        try:
            request_checks.check_predictions(session, signature, golden)
        except Failure as failure:
            found[signature] = str(failure)
    return found


def test_every_skew_is_rejected(refused):
    assert len(refused) == len(PIXELS) + len(FILES) >= 15
    assert set(refused) == {named(skew) for skew in (*PIXELS, *FILES)}, (
        "the correct ones pass"
    )
    assert all("differs by" in m or "instead of" in m for m in refused.values())
