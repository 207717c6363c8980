"""Disturbed images for the robustness of a model."""

import numpy as np
import pytest

from pipeline.tasks.inputs import image_corruptions
from pipeline.tasks.inputs.image import ImageInput

METADATA = {"image_shape": [16, 20, 3]}


def smooth_images(channels):
    """Images that change slowly, with an edge."""
    y, x = np.mgrid[:16, :20]
    image = (60 + 4 * y + 3 * x).astype(np.uint8)
    image[:, 10:] //= 2
    return np.repeat(image[None, ..., None], 2, axis=0).repeat(channels, axis=-1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", image_corruptions.ALL)
def test_each_strength_changes_more_and_nothing_else(name, channels):
    images = smooth_images(channels)
    task_input = ImageInput({"image_shape": list(images.shape[1:])})
    batch = {"id": np.arange(2), "image": images.copy()}
    changes = []
    for strength in (1, 2, 3):
        after = task_input.corruptions()[name](batch, strength)
        assert after["image"].shape == images.shape
        assert after["image"].dtype == np.uint8 and after["id"] is batch["id"]
        difference = after["image"].astype(int) - images
        changes.append(np.abs(difference).mean())
        again = task_input.corruptions()[name](batch, strength)
        np.testing.assert_array_equal(again["image"], after["image"])
    np.testing.assert_array_equal(batch["image"], images)
    assert 0 < changes[0] < changes[1] < changes[2]


def test_brightness_and_contrast_are_those_of_the_paper():
    images = smooth_images(1)
    brighter = image_corruptions.brightness(images, 1).astype(int)
    np.testing.assert_allclose(brighter - images, 25.5, atol=1)
    flat = image_corruptions.contrast(images, 1)
    assert flat.std() == pytest.approx(0.4 * images.std(), rel=0.02)
    assert flat.mean() == pytest.approx(images.mean(), abs=0.5)


def test_only_pixels_from_0_to_255_are_disturbed():
    floats = ImageInput({**METADATA, "image_dtype": "float32"})
    assert floats.corruptions() == {}
