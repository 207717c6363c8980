"""Every augmentation keeps dtype, shape and labels, and draws from the seeds alone."""

import numpy as np
import pytest
import tensorflow as tf
from random_images import OPERATIONS, batch_of

from pipeline.data import seeds
from pipeline.utils.errors import UsageError


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_pure_function_of_batch_and_seeds(name, dtype):
    """Keeps shape, dtype and labels; changes most images, in the same way in every
    batch.
    """
    operation = OPERATIONS[name]
    batch, own = batch_of(dtype=dtype)
    try:
        done = operation(batch, own)
    except UsageError as error:
        assert dtype == np.float32 and f"{name} requires uint8 images" in str(error)
        return
    assert set(done) >= set(batch)
    assert done["image"].dtype == batch["image"].dtype
    assert done["image"].shape == batch["image"].shape
    np.testing.assert_array_equal(done["label"], batch["label"])
    part = {key: value[20:30] for key, value in batch.items()}
    np.testing.assert_array_equal(
        operation(part, own[20:30])["image"], done["image"][20:30]
    )
    if dtype == np.uint8:
        before, after = batch["image"].numpy().mean(), done["image"].numpy()
        assert after.max() > 200 and before / 4 < after.mean() < 2 * before
    changed = (
        (done["image"].numpy() != batch["image"].numpy()).any(axis=(1, 2, 3)).mean()
    )
    assert 0.3 < changed <= 1
    later = {**batch, "epoch": batch["epoch"] + 1}
    again = operation(later, seeds.fold(own, 1))
    assert (again["image"].numpy() != done["image"].numpy()).any(), (
        "it ignores its seeds"
    )


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("crop", "mixup")
        else pytest.param(name, marks=pytest.mark.long)
        for name in OPERATIONS
    ],
)
def test_xla_gives_the_same_images(name):
    """Of floats, a compiler may round the last bit otherwise."""
    batch, own = batch_of(16)
    expected = OPERATIONS[name](batch, own)
    compiled = tf.function(OPERATIONS[name], jit_compile=True)(batch, own)
    for key in {"image", "share"} & set(expected):  # the share of an area is a quotient
        np.testing.assert_array_equal(compiled[key], expected[key])


@pytest.mark.parametrize("name", OPERATIONS)
def test_examples_without_images_are_refused(name):
    _, own = batch_of()
    with pytest.raises(UsageError, match=rf"\b{name}\b.*images"):
        OPERATIONS[name]({"features": tf.zeros([64, 3])}, own)
