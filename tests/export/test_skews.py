"""Planted differences between training and serving: the proof refuses every one of them."""

import dataclasses
from functools import partial

import exports
import pytest
import tensorflow as tf

from pipeline.export import golden_answers, proof
from pipeline.export.verification import verify
from pipeline.serving.savedmodel_session import Session
from pipeline.utils.errors import Failure

NETWORK = exports.Network()
HONEST = exports.Parts(NETWORK, decode=lambda contents: accurate(contents))
SIZE = (exports.SIDE, exports.SIDE)


def scaled(images):
    return tf.cast(images, tf.float32)


def after(change):
    """The honest answer to other pixels."""
    return lambda images: HONEST.prepare(change(images))


def rounded(image):
    return tf.clip_by_value(tf.round(image), 0, 255)


def accurate(contents):
    """JPEG or PNG to pixels: fewer operations than ours, which take seconds to be optimised."""
    return tf.io.decode_jpeg(contents, channels=3, dct_method="INTEGER_ACCURATE")


def reordered(logits):
    """Classes in the order of their names, as another loader lists them."""
    return exports.answered(logits, sorted(exports.CLASSES))


def off_by_one(logits):
    answer = exports.answered(logits)
    return {**answer, "class": answer["class"] + 1}


def worst_first(logits):
    answer = exports.answered(logits)
    turned = {name: tf.reverse(answer[name], [1]) for name in ("top_scores", "top_labels")}
    return {**answer, **turned}


PIXELS = {
    "not scaled": {"prepare": lambda images: (scaled(images) - exports.MEAN) / exports.DEVIATION},
    "scaled to -1 ... 1": {"prepare": lambda images: scaled(images) / 127.5 - 1},
    "divided by 256": {
        "prepare": lambda images: (scaled(images) / 256 - exports.MEAN) / exports.DEVIATION
    },
    "divided as whole numbers": {
        "prepare": lambda images: (scaled(images // 255) - exports.MEAN) / exports.DEVIATION
    },
    "the mean of another data set": {
        "prepare": lambda i: (scaled(i) / 255 - (0.485, 0.456, 0.406)) / exports.DEVIATION
    },
    "the deviation of another data set": {
        "prepare": lambda i: (scaled(i) / 255 - exports.MEAN) / (0.229, 0.224, 0.225)
    },
    "the mean left out": {"prepare": lambda images: scaled(images) / 255 / exports.DEVIATION},
    "blue first": {"prepare": after(lambda images: images[..., ::-1])},
    "sides transposed": {"prepare": after(lambda images: tf.transpose(images, (0, 2, 1, 3)))},
    "mirrored": {"prepare": after(lambda images: images[:, :, ::-1])},
    "upside down": {"prepare": after(lambda images: images[:, ::-1])},
    "channels first": {
        "prepare": after(
            lambda images: tf.reshape(tf.transpose(images, (0, 3, 1, 2)), (-1, *SIZE, 3))
        )
    },
    "dropout left on": {"network": partial(NETWORK, dropout=True)},
    "statistics of the batch": {"network": partial(NETWORK, statistics=True)},
    "half precision": {"network": partial(NETWORK, dtype=tf.float16)},
    "weights of another step": {"network": partial(NETWORK, share=1.001)},
    "logits for probabilities": {"answer": exports.named},
    "temperature left out": {
        "answer": lambda logits: exports.answered(logits * exports.TEMPERATURE)
    },
    "sigmoid for softmax": {"answer": lambda logits: exports.named(tf.sigmoid(logits))},
    "names in another order": {"answer": reordered},
    "probabilities in another order": {
        "answer": lambda logits: exports.answered(tf.roll(logits, 1, axis=-1))
    },
    "classes counted from 1": {"answer": off_by_one},
    "the worst first": {"answer": worst_first},
}
FILES = {
    "the nearest pixel": {
        "resize": lambda image: tf.image.resize(tf.cast(image, tf.float32), SIZE, "nearest")
    },
    "no antialiasing": {"resize": lambda image: rounded(tf.image.resize(image, SIZE))},
    "not rounded": {"resize": lambda image: tf.image.resize(image, SIZE, antialias=True)},
    "bicubic": {
        "resize": lambda image: rounded(tf.image.resize(image, SIZE, "bicubic", antialias=True))
    },
    "cropped": {
        "resize": lambda image: tf.cast(tf.image.resize_with_crop_or_pad(image, *SIZE), tf.float32)
    },
    "padded": {"resize": lambda i: rounded(tf.image.resize_with_pad(i, *SIZE, antialias=True))},
    "another cosine transform": {"decode": lambda contents: tf.io.decode_jpeg(contents, 3)},
    "grey": {"decode": lambda contents: tf.repeat(tf.io.decode_jpeg(contents, 1), 3, axis=-1)},
}


def named(skew):
    """A signature of that skew; its name is one that a graph can have."""
    return skew.replace(" ", "_").replace("-", "minus").replace("...", "to")


@pytest.fixture(scope="module")
def proved(tmp_path_factory):
    """Name of a signature -> why its answers were refused; of one version with all the skews."""
    served = {"serving_default": ("pixels", HONEST), "image_bytes": ("image_bytes", HONEST)}
    for kind, skews in (("pixels", PIXELS), ("image_bytes", FILES)):
        for skew, parts in skews.items():
            served[named(skew)] = (kind, dataclasses.replace(HONEST, **parts))
    directory = tmp_path_factory.mktemp("skews") / "1"
    exports.write(directory, served, HONEST, warm=False)
    session, refused = Session(directory), {}
    for signature, golden in proof.read_golden(directory / proof.GOLDEN).items():
        try:
            golden_answers.check(session, signature, golden)
        except Failure as failure:
            refused[signature] = str(failure)
    return refused


def test_what_is_served_as_it_was_trained_passes(proved):
    """So that each refusal below is one of the skew."""
    assert len(PIXELS) + len(FILES) >= 20
    assert set(proved) == {named(skew) for skew in (*PIXELS, *FILES)}


@pytest.mark.parametrize("skew", [*PIXELS, *FILES])
def test_a_planted_skew_is_refused(proved, skew):
    assert "differs by" in proved[named(skew)] or "instead of" in proved[named(skew)]


def test_a_skewed_version_fails_its_verification(tmp_path):
    skewed = dataclasses.replace(HONEST, **PIXELS["divided by 256"])
    exports.write(tmp_path / "1", {"serving_default": ("pixels", skewed)}, HONEST)
    outcome = verify(tmp_path / "1")
    wrong = {check.name for check in outcome.checks if not check.passed}
    assert wrong == {"answers serving_default", "still answers serving_default"}
