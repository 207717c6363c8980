"""RandAugment: each of its operations against Pillow's, or SciPy's where
pixels move.
"""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage

from pipeline.config import registry
from pipeline.data import seeds
from pipeline.data.augment.rand_augment import OPERATIONS

rand_augment = registry.load("augment", "rand_augment")
COUNT, SIZE, MAGNITUDE = 280, 24, 17.0
STRENGTH = MAGNITUDE / 30


def batch_of():
    """Smooth random pictures of few levels, so that equalize and autocontrast have work
    to do.
    """
    generator = np.random.default_rng(8)
    noise = generator.normal(0, 60, (COUNT, SIZE, SIZE, 3))
    images = ndimage.gaussian_filter(noise, (0, 1, 1, 0)) + generator.uniform(
        60, 190, (COUNT, 1, 1, 3)
    )
    ids = tf.range(COUNT, dtype=tf.int64)
    example_seeds = seeds.example_seeds(3, tf.zeros_like(ids), ids)
    return {
        "image": tf.constant(np.clip(images, 0, 255).astype(np.uint8))
    }, example_seeds


def pillow(name, image, sign):
    """What Pillow makes of the image."""
    picture = Image.fromarray(image)
    enhance = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "color": ImageEnhance.Color,
        "sharpness": ImageEnhance.Sharpness,
    }
    if name in enhance:
        return enhance[name](picture).enhance(
            1 + sign * round(0.9 * STRENGTH * 1024) / 1024
        )
    return {
        "identity": lambda: picture,
        "posterize": lambda: ImageOps.posterize(picture, 8 - round(4 * STRENGTH)),
        "solarize": lambda: ImageOps.solarize(picture, 255 * (1 - STRENGTH)),
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
    }[name]()


def scipy(name, image, sign):
    """What SciPy makes of it: (row, column) of the output to that in the input."""
    matrix, shift, angle = np.eye(2), np.zeros(2), np.radians(sign * 30 * STRENGTH)
    if name == "shear_x":
        matrix[1, 0] = sign * 0.3 * STRENGTH
    elif name == "shear_y":
        matrix[0, 1] = sign * 0.3 * STRENGTH
    elif name == "rotate":
        matrix = np.array(
            [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        )
    else:
        shift[int(name == "translate_x")] = sign * SIZE * 150 / 331 * STRENGTH
    middle = np.full(2, (SIZE - 1) / 2)
    offset = middle + shift - matrix @ middle
    return np.stack(
        [
            ndimage.affine_transform(
                image[..., c], matrix, offset, order=0, mode="grid-constant"
            )
            for c in range(3)
        ],
        axis=-1,
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_pillows_or_scipys(name):
    batch, example_seeds = batch_of()
    after = rand_augment(batch, example_seeds, layers=1, magnitude=MAGNITUDE)[
        "image"
    ].numpy()
    first = seeds.fold(example_seeds, 0)
    kinds = seeds.integers(first, len(OPERATIONS)).numpy()
    signs = 1 - 2 * seeds.integers(first, 2, draw=1).numpy()
    mine = np.flatnonzero(kinds == OPERATIONS.index(name))
    assert len(mine) >= 8 and len(set(signs[mine])) == 2
    for i in mine:
        image = batch["image"][i].numpy()
        if name in OPERATIONS[9:]:
            same = (scipy(name, image, signs[i]) == after[i]).all(axis=-1)
            assert same.mean() > 0.99
            continue
        expected = np.asarray(pillow(name, image, int(signs[i]))).astype(int)
        exact = name in ("identity", "posterize", "solarize", "equalize")
        assert np.abs(expected - after[i]).max() <= (0 if exact else 1)
