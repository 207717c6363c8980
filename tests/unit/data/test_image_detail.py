"""The detail of images is found, whatever the size of their files."""

import io

import numpy as np
import pytest
from PIL import Image

from pipeline.data.image_sizes import detail_size


def picture(detail, size, seed):
    """A scene of rectangles, seen by a camera of `detail` pixels;
    enlarged, as a JPEG.
    """
    generator = np.random.default_rng(seed)
    scene = np.zeros((512, 512, 3), np.uint8)
    for _ in range(30):
        top, left, height, width = generator.integers(8, 400, 4)
        scene[top : top + height, left : left + width] = generator.integers(0, 256, 3)
    seen = Image.fromarray(scene).resize((detail, detail), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    seen.resize((size, size), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


@pytest.mark.parametrize(("detail", "size"), [(32, 128), (48, 200), (64, 256)])
def test_the_detail_is_that_of_the_camera_not_that_of_the_file(detail, size):
    images = [picture(detail, size, seed) for seed in range(5)]
    assert detail_size([b"damaged", *images]) == detail


def test_pixels_and_small_images_are_measured_and_nothing_is_nothing():
    generator = np.random.default_rng(0)
    for channels in (1, 3):
        assert (
            detail_size(generator.integers(0, 256, (4, 28, 28, channels), np.uint8))
            == 32
        )
    assert detail_size([np.zeros((200, 200, 3), np.uint8)]) == 32  # blank
    assert detail_size([b"", b"damaged"]) is None


def test_16_bits_are_not_clipped():
    for bits in (10, 16):
        file = io.BytesIO()
        deep = np.asarray(
            Image.open(io.BytesIO(picture(128, 128, 1))).convert("L"), np.uint16
        )
        Image.fromarray(deep * 2 ** (bits - 8)).save(file, "PNG")
        assert detail_size([file.getvalue()]) > 48
