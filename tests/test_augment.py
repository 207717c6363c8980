"""Augmentations: per example, stateless, equal to a plain NumPy account of what they promise."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import seeds, shelf

OPERATIONS = {name: shelf.take("augment", name) for name in shelf.names("augment")}


def batch_of(count=64, shape=(9, 7, 3), dtype=np.uint8):
    images = np.random.default_rng(0).integers(1, 256, (count, *shape)).astype(dtype)
    own = seeds.of_examples(
        1, tf.zeros([count], tf.int64), tf.range(500, 500 + count, dtype=tf.int64)
    )
    return {"image": tf.constant(images), "label": tf.range(count)}, own


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", OPERATIONS)
def test_conformance(name, dtype):
    """Shape, dtype and labels stay; an image is changed alike in any batch; most are changed."""
    operation = OPERATIONS[name]
    batch, own = batch_of(dtype=dtype)
    done = operation(batch, own)
    assert done["image"].dtype == batch["image"].dtype
    assert done["image"].shape == batch["image"].shape
    np.testing.assert_array_equal(done["label"], batch["label"])
    part = {key: value[20:31] for key, value in batch.items()}
    np.testing.assert_array_equal(operation(part, own[20:31])["image"], done["image"][20:31])
    traced = tf.function(operation)(batch, own)
    np.testing.assert_array_equal(traced["image"], done["image"])
    compiled = tf.function(operation, jit_compile=True)(batch, own)
    np.testing.assert_array_equal(compiled["image"], done["image"])
    changed = (done["image"].numpy() != batch["image"].numpy()).any(axis=(1, 2, 3)).mean()
    assert 0.3 < changed <= 1
    again = operation(batch, seeds.fold(own, 1))
    assert (again["image"].numpy() != done["image"].numpy()).any(), "it ignores its seeds"


def test_flip_mirrors_half_of_the_images():
    batch, own = batch_of(1000)
    before, after = batch["image"].numpy(), OPERATIONS["flip"](batch, own)["image"].numpy()
    flipped = (after == before[:, :, ::-1]).all(axis=(1, 2, 3))
    kept = (after == before).all(axis=(1, 2, 3))
    assert (flipped ^ kept).all()
    assert 430 < flipped.sum() < 570


@pytest.mark.parametrize(("fill", "mode"), [("zero", "constant"), ("reflect", "reflect")])
def test_crop_is_a_window_of_the_padded_image(fill, mode):
    padding = 3
    batch, own = batch_of(400)
    after = OPERATIONS["crop"](batch, own, padding=padding, fill=fill)["image"].numpy()
    places = []
    for before, image in zip(batch["image"].numpy(), after, strict=True):
        padded = np.pad(before, ((padding, padding), (padding, padding), (0, 0)), mode)
        height, width, _ = before.shape
        found = [
            (i, j)
            for i in range(2 * padding + 1)
            for j in range(2 * padding + 1)
            if (padded[i : i + height, j : j + width] == image).all()
        ]
        assert len(found) == 1
        places += found
    # Each of the 49 places about 8 times; rows and columns are drawn independently.
    assert len(set(places)) == 49
    rows, columns = np.array(places).T
    assert abs(np.corrcoef(rows, columns)[0, 1]) < 0.2


def test_crop_without_padding_changes_nothing():
    batch, own = batch_of()
    np.testing.assert_array_equal(
        OPERATIONS["crop"](batch, own, padding=0)["image"], batch["image"]
    )
