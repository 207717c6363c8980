"""Augmentations move masks with their images, or are refused."""

import numpy as np
import pytest
import tensorflow as tf
from random_images import OPERATIONS

from pipeline.config import objects
from pipeline.data.augmentation import Augmenter
from pipeline.utils.errors import UsageError

COUNT = 16
RANDOM = np.random.default_rng(0)
MOVED = ("flip", "alternating_flip", "crop")
PIXELS_ONLY = ("color_jitter", "erase")


def batch():
    """Masks that are the images themselves, below 255."""
    images = RANDOM.integers(1, 255, (COUNT, 8, 8, 1)).astype(np.uint8)
    return {
        "id": tf.range(COUNT, dtype=tf.int64),
        "epoch": tf.zeros(COUNT, tf.int64),
        "image": tf.constant(images),
        "mask": tf.constant(images[..., 0]),
    }


@pytest.mark.parametrize("name", MOVED)
def test_a_mask_moves_with_its_image(name):
    examples = batch()
    after = Augmenter({name: {}}, 3, ("mask",))(examples)
    image = after["image"][..., 0].numpy()
    mask = after["mask"].numpy()
    assert (image != examples["image"][..., 0].numpy()).any()
    # Outside of the original image, pixels are black and do not count.
    np.testing.assert_array_equal(mask, np.where(image == 0, 255, image))


@pytest.mark.parametrize("name", sorted({*OPERATIONS} - {*MOVED}))
def test_others_leave_the_mask_or_are_refused(name):
    if name in PIXELS_ONLY:
        examples = batch()
        after = Augmenter({name: {}}, 3, ("mask",))(examples)
        np.testing.assert_array_equal(after["mask"], examples["mask"])
        return
    with pytest.raises(UsageError, match=f"{name} moves the image, but not its mask"):
        Augmenter({name: {}}, 3, ("mask",))


def test_an_own_augmentation_must_say_what_it_moves():
    def darken(batch, seeds):
        return {**batch, "image": batch["image"] // 2}

    name = objects.name_of(darken, "augment")
    with pytest.raises(UsageError, match="does not say which fields it moves; set"):
        Augmenter({name: {}}, 3, ("mask",))
    darken.moves = ()
    after = Augmenter({name: {}}, 3, ("mask",))(batch())
    assert after["image"].shape == (COUNT, 8, 8, 1)


def test_each_of_several_images_is_augmented():
    examples = batch()
    pair = {"id": examples["id"], "epoch": examples["epoch"]}
    pair |= {"left/image": examples["image"], "right/image": examples["image"]}
    after = Augmenter({"flip": {}}, 3)(pair)
    assert after.keys() == pair.keys()
    alone = Augmenter({"flip": {}}, 3)(examples)["image"]
    for name in ("left/image", "right/image"):
        np.testing.assert_array_equal(after[name], alone)
