"""Augmentations that move pixels: as SciPy does it."""

import numpy as np
import pytest
import tensorflow as tf
from random_images import OPERATIONS, batch_of

from pipeline.data.augment import geometry


@pytest.mark.parametrize("mode", ["zero", "edge", "reflect"])
@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_transform_is_that_of_scipy(mode, interpolation):
    from scipy import ndimage

    batch, _ = batch_of(12)
    generator = np.random.default_rng(2)
    matrix = np.tile(np.eye(2, 3), (12, 1, 1)) + generator.normal(0, 0.4, (12, 2, 3))
    matrix[:, :, 2] *= 5
    done = geometry.transform(
        batch["image"], tf.constant(matrix), interpolation, mode
    ).numpy()
    modes = {"zero": "grid-constant", "edge": "nearest", "reflect": "mirror"}
    middle = (np.array([9, 7]) - 1) / 2
    for i, image in enumerate(batch["image"].numpy().astype(float)):
        offset = middle + matrix[i, :, 2] - matrix[i, :, :2] @ middle
        for channel in range(3):
            expected = ndimage.affine_transform(
                image[..., channel],
                matrix[i, :, :2],
                offset,
                order=int(interpolation == "bilinear"),
                mode=modes[mode],
            )
            # Weights are rounded to 2**-8: half a level each way, and the level itself.
            assert np.abs(expected - done[i, ..., channel]).max() <= 1.6


def test_affine_moves_by_the_amounts_asked_for():
    """The map is found again from a picture whose pixels say where they were."""
    count, size = 400, 33
    places = np.stack(np.mgrid[:size, :size], axis=-1).astype(np.float32) / size
    batch, example_seeds = batch_of(count)
    batch["image"] = tf.constant(np.tile(places, (count, 1, 1, 1)))
    middle = np.s_[:, 12:21, 12:21]
    from_middle = (places[12:21, 12:21].reshape(-1, 2) * size) - size // 2
    coordinates = np.column_stack([from_middle, np.ones(81)])

    def maps(**options):
        options = {"rotation": 0.0, "fill": "edge", **options}
        image = OPERATIONS["affine"](batch, example_seeds, **options)["image"].numpy()
        seen = image[middle].reshape(count, 81, 2) * size - size // 2
        matrices = np.array(
            [np.linalg.lstsq(coordinates, s, rcond=None)[0].T for s in seen]
        )
        return np.array(geometry.inverse(tf.constant(matrices, tf.float64)))

    still = maps()
    np.testing.assert_allclose(still, np.tile(np.eye(2, 3), (count, 1, 1)), atol=0.01)
    turned = maps(rotation=30.0)
    angles = np.degrees(np.arctan2(turned[:, 1, 0], turned[:, 1, 1]))
    assert angles.min() < -28 and angles.max() > 28 and np.abs(angles).max() < 30.5
    assert abs(angles.std() - 30 / 3**0.5) < 1.5
    moved = maps(translation=0.1)[:, :, 2] / size
    assert 0.09 < np.abs(moved).max() < 0.102
    assert abs(np.corrcoef(moved.T)[0, 1]) < 0.15
    sizes = maps(scale=(0.7, 1.2))
    np.testing.assert_allclose(sizes[:, 0, 0], sizes[:, 1, 1], atol=0.02)
    assert 0.68 < sizes[:, 0, 0].min() < 0.72 and 1.18 < sizes[:, 0, 0].max() < 1.22
    slanted = maps(shear=30.0)
    np.testing.assert_allclose(slanted[:, 0, :2], [[1, 0]] * count, atol=0.02)
    assert 0.55 < np.abs(slanted[:, 1, 0]).max() < 0.59


def test_random_resized_crop_is_a_resized_window():
    batch, example_seeds = batch_of(16, (24, 20, 3))
    done = OPERATIONS["random_resized_crop"](batch, example_seeds, scale=(0.1, 0.6))[
        "image"
    ].numpy()
    places = np.stack(np.mgrid[:24, :20], axis=-1).astype(np.float32)
    located = {**batch, "image": tf.constant(np.tile(places, (16, 1, 1, 1)) / 24)}
    where = OPERATIONS["random_resized_crop"](located, example_seeds, scale=(0.1, 0.6))[
        "image"
    ].numpy()
    shares = []
    for image, result, position in zip(batch["image"], done, where * 24, strict=True):
        # Border pixels are repeated, so the first and the last place are the window's
        # own.
        first, last = (
            np.rint(p).astype(int) for p in (position[0, 0], position[-1, -1])
        )
        window = image[first[0] : last[0] + 1, first[1] : last[1] + 1]
        expected = tf.image.resize(window, (24, 20)).numpy()
        assert np.abs(expected - result).max() <= 1.6
        shares.append(window.shape[0] * window.shape[1] / 480)
    assert 0.08 < min(shares) < 0.25 and 0.4 < max(shares) < 0.65
    kept = OPERATIONS["random_resized_crop"](batch, example_seeds, probability=0.0)[
        "image"
    ]
    np.testing.assert_array_equal(kept, batch["image"])
