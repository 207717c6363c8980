"""Duplicates: every kind of copy is found, and no pair of different pictures."""

import io

import numpy as np
import pytest
from PIL import Image

from pipeline.data.cleaning import near_duplicates

COUNT = 400


def pictures(count=COUNT, seed=0):
    """Smooth random pictures with edges, uint8 (count, 32, 32, 3)."""
    generator = np.random.default_rng(seed)
    images = []
    for _ in range(count):
        colors = generator.integers(0, 256, (6, 6, 3), np.uint8)
        smooth = Image.fromarray(colors).resize((32, 32), Image.Resampling.BICUBIC)
        image = np.asarray(smooth).copy()
        top, left = generator.integers(0, 20, 2)
        image[top : top + 10, left : left + 10] = generator.integers(0, 256, 3)
        images.append(image)
    return np.stack(images)


def encode_jpeg(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=75, subsampling=0)
    return np.asarray(Image.open(file))


def resize(image):
    small = Image.fromarray(image).resize((24, 24), Image.Resampling.BICUBIC)
    return np.asarray(small.resize((32, 32), Image.Resampling.BICUBIC))


CHANGES = {
    "copy": lambda image: image,
    "mirror": lambda image: image[:, ::-1],
    "encoded": encode_jpeg,
    "resized": resize,
    "down": lambda image: np.concatenate([image[:1], image[:-1]]),
    "left": lambda image: np.concatenate([image[:, 1:], image[:, -1:]], axis=1),
    "mirrored and encoded": lambda image: encode_jpeg(image[:, ::-1].copy()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_copies_of_each_kind_are_found_and_nothing_else(change):
    originals = pictures()
    copies = np.stack([CHANGES[change](image) for image in originals[:100]])
    order = np.random.default_rng(1).permutation(COUNT + 100)
    pairs = near_duplicates.find(np.concatenate([originals, copies])[order])
    shows = np.concatenate([np.arange(COUNT), np.arange(100)])[order]
    right = shows[pairs.first] == shows[pairs.second]
    assert right.all(), "different pictures were taken for the same"
    assert len(set(shows[pairs.first])) >= 95
    assert (pairs.first < pairs.second).all()
    if change in ("copy", "mirror"):
        assert len(pairs.first) == 100 and (pairs.distance == 0).all()


def xrays(count, variation=6, seed=0):
    """One anatomy that varies a little from picture to picture, uint8 (count, 32, 32,
    3).
    """
    anatomy = pictures(1)[0].astype(float)
    individual = pictures(count, seed + 1).astype(float) - 128
    noise = np.random.default_rng(seed).normal(0, 2, individual.shape)
    return np.clip(
        anatomy + individual * variation / individual.std() + noise, 0, 255
    ).astype(np.uint8)


def test_similar_pictures_are_not_duplicates_but_their_copies_are():
    alike = xrays(120)
    assert len(near_duplicates.find(alike).first) == 0
    copies = [
        CHANGES[kind](alike[n]) for n, kind in enumerate(("mirror", "resized", "down"))
    ]
    pairs = near_duplicates.find(np.concatenate([alike, copies]))
    assert np.stack([pairs.first, pairs.second]).tolist() == [
        [0, 1, 2],
        [120, 121, 122],
    ]
    assert not pairs.is_ambiguous.any()


def test_nothing_is_found_if_different_pictures_are_as_near_as_an_encoding():
    alike = xrays(60, variation=0.5) // 16 * 16 + xrays(60, variation=0.5) % 2
    pairs = near_duplicates.find(np.concatenate([alike, alike[:1, :, ::-1]]))
    assert len(pairs.first) == 0 and pairs.is_ambiguous.mean() > 0.5


def test_three_copies_of_a_picture_are_found():
    """The surroundings are further away than copies of the same picture."""
    originals = pictures(40)
    copies = [CHANGES[kind](originals[0]) for kind in ("mirror", "encoded", "resized")]
    pairs = near_duplicates.find(np.concatenate([originals, copies]))
    assert set(pairs.first) | set(pairs.second) == {0, 40, 41, 42}
