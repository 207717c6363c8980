"""Augmentations: per example, stateless, equal to a plain NumPy account of what they
promise.
"""

import numpy as np
import pytest
import tensorflow as tf
from random_images import OPERATIONS, batch_of

from pipeline.data import seeds


def test_flip_mirrors_half_of_the_images():
    batch, example_seeds = batch_of(1000)
    before, after = (
        batch["image"].numpy(),
        OPERATIONS["flip"](batch, example_seeds)["image"].numpy(),
    )
    flipped = (after == before[:, :, ::-1]).all(axis=(1, 2, 3))
    kept = (after == before).all(axis=(1, 2, 3))
    assert (flipped ^ kept).all()
    assert 430 < flipped.sum() < 570


@pytest.mark.parametrize(
    ("fill", "mode"), [("zero", "constant"), ("reflect", "reflect")]
)
def test_crop_is_a_window_of_the_padded_image(fill, mode):
    padding = 3
    batch, example_seeds = batch_of(400)
    after = OPERATIONS["crop"](batch, example_seeds, padding=padding, fill=fill)[
        "image"
    ].numpy()
    places = []
    for before, image in zip(batch["image"].numpy(), after, strict=True):
        padded = np.pad(before, ((padding, padding), (padding, padding), (0, 0)), mode)
        height, width, _ = before.shape
        matches = [
            (i, j)
            for i in range(2 * padding + 1)
            for j in range(2 * padding + 1)
            if (padded[i : i + height, j : j + width] == image).all()
        ]
        assert len(matches) == 1
        places += matches
    # Each of the 49 places about 8 times; rows and columns are drawn independently.
    assert len(set(places)) == 49
    rows, columns = np.array(places).T
    assert abs(np.corrcoef(rows, columns)[0, 1]) < 0.2


def test_alternating_flip_shows_both_sides_in_two_epochs():
    batch, example_seeds = batch_of(1000)
    before, flip = batch["image"].numpy(), OPERATIONS["alternating_flip"]
    sides = []
    for epoch in range(4):
        epochs = tf.fill([1000], tf.constant(epoch, tf.int64))
        after = flip({**batch, "epoch": epochs}, seeds.fold(example_seeds, epoch))[
            "image"
        ].numpy()
        side = (after == before[:, :, ::-1]).all(axis=(1, 2, 3))
        np.testing.assert_array_equal(after[~side], before[~side])
        sides.append(side)
    np.testing.assert_array_equal(sides[0], ~sides[1])
    np.testing.assert_array_equal(sides[0], sides[2])
    np.testing.assert_array_equal(sides[1], sides[3])
    assert 430 < sides[0].sum() < 570


@pytest.mark.parametrize("fill", ["zero", "mean", "noise"])
def test_erase_covers_one_rectangle_of_the_asked_size(fill):
    batch, example_seeds = batch_of(600, (40, 30, 3))
    batch["image"] = batch["image"] // 2 * 2 + 1  # odd, so that 0 is never a pixel
    options = {
        "probability": 0.75,
        "area": (0.1, 0.3),
        "ratio": (0.5, 2.0),
        "fill": fill,
    }
    after = OPERATIONS["erase"](batch, example_seeds, **options)["image"].numpy()
    shares, ratios, noise = [], [], []
    for old, new in zip(batch["image"].numpy(), after, strict=True):
        changed = (old != new).any(axis=-1)
        if not changed.any():
            continue
        rows, columns = (
            np.flatnonzero(changed.any(axis=1)),
            np.flatnonzero(changed.any(axis=0)),
        )
        box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        inside = new[box]
        assert (new == old)[~changed].all()
        if fill == "zero":
            assert (inside == 0).all()
        elif fill == "mean":
            assert (inside == np.round(old.mean(axis=(0, 1)))).all()
        else:
            noise.append(inside.ravel())
        shares.append(inside[..., 0].size / changed.size)
        ratios.append(inside.shape[0] / inside.shape[1])
    assert 0.70 < len(shares) / 600 < 0.80
    assert 0.08 < min(shares) < 0.12 and 0.28 < max(shares) < 0.32
    assert abs(np.mean(shares) - 0.2) < 0.01, "areas are not uniform"
    assert 0.4 < min(ratios) < 0.55 and 1.8 < max(ratios) < 2.3
    assert abs(np.median(ratios) - 1) < 0.1, "height and width are not alike"
    if fill == "noise":
        counts = np.bincount(np.concatenate(noise), minlength=256)
        assert counts.min() > 0.8 * counts.mean() and counts.max() < 1.2 * counts.mean()


def test_color_jitter_is_pillows_enhancement():
    from PIL import Image, ImageEnhance

    batch, example_seeds = batch_of(200)
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    factors = [
        seeds.between(example_seeds, 0.3, 1.7, draw).numpy() for draw in range(3)
    ]
    options = {"brightness": 0.7, "contrast": 0.7, "saturation": 0.7}
    for number, (name, kind) in enumerate(zip(options, kinds, strict=True)):
        amounts = {**dict.fromkeys(options, 0.0), name: 0.7}
        after = (
            OPERATIONS["color_jitter"](batch, example_seeds, **amounts)["image"]
            .numpy()
            .astype(int)
        )
        for i, image in enumerate(batch["image"].numpy()):
            exact = np.asarray(
                kind(Image.fromarray(image)).enhance(float(factors[number][i]))
            )
            assert np.abs(exact.astype(int) - after[i]).max() <= 1, name
