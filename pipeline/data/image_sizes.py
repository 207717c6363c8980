"""Sizes of images: in their headers, and as small as keeps their detail."""

import io
import itertools
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from pipeline.contracts import Source
from pipeline.utils import image_formats
from pipeline.utils.image_formats import MOST_PIXELS
from pipeline.utils.tf_data import with_options

SIZES = (32, 48, 64, 96, 128, 160, 224)
"""Sides of square images in pixels."""
_LOST = 0.013  # fraction of an image's variance
_SECONDS = 2.0  # at most, for all images
_DEEP = 100  # PNGs with 16 bits
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def common_shape(images: Iterable[bytes]) -> tuple[int | None, int | None, int | None]:
    """The common (height, width, channels) of all images, upright; None where images
    differ.

    Channels are 1 if all images are grayscale, else 3. Images that are damaged, or have
    no pixels or too many, are skipped: decoding or cleaning reports them. The beginning
    of each file is enough.
    """
    sizes, gray = set(), True
    for image in images:
        height, width, is_gray = _shape(image)
        if not 0 < height * width <= MOST_PIXELS:
            continue
        sizes.add((height, width))
        gray &= is_gray
        if len(sizes) > 1:
            return None, None, None
    for height, width in sizes:
        return height, width, 1 if gray else 3
    return None, None, None


def _shape(image: bytes) -> tuple[int, int, bool]:
    """(height, width, whether the image is grayscale); zeros for a damaged image."""
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # about large images
            Image.open(io.BytesIO(image), formats=_FORMATS) as opened,
        ):
            turned = (
                opened.format in ("JPEG", "MPO") and opened.getexif().get(274, 1) >= 5
            )
            height, width = opened.size if turned else opened.size[::-1]
            return (
                height,
                width,
                opened.mode in ("1", "L", "LA") or opened.mode.startswith("I"),
            )
    except Exception:  # Pillow raises many types of exceptions for damaged files
        return 0, 0, False


def used_bits(images: Iterable[bytes]) -> tuple[int, tuple[str, ...]]:
    """How many bits the values of 16-bit PNGs use, and lines for the user about them.

    A camera or an instrument with 12 bits writes values up to 4,095, whose higher 8 of
    16 bits are nearly black. 16 and no line if there are no such PNGs; the first
    `_DEEP` of them are measured.
    """
    deep = list(itertools.islice(filter(image_formats.is_deep, images), _DEEP))
    if not deep:
        return 16, ()
    highest = max(map(_highest, deep))
    bits = highest.bit_length() or 16
    kept = "the higher 8 are kept" if bits > 8 else "all are kept"
    about = f"values up to {highest:,}, {bits} bits, of which {kept}"
    return bits, (f"16-bit PNGs: {about}, in training and in the exported model",)


def _highest(image: bytes) -> int:
    """The highest value of a PNG; 0 if it is damaged or too large."""
    height, width, _ = _shape(image)
    if not 0 < height * width <= MOST_PIXELS:
        return 0
    try:
        return int(tf.reduce_max(tf.io.decode_png(image, dtype=tf.uint16)))
    except tf.errors.OpError:
        return 0


def spread(count: int, most: int) -> np.ndarray:
    """Positions of at most `most` examples out of `count`, evenly spread; int64."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))


def sample(source: Source, most: int) -> Iterator[Any]:
    """Some images of train, evenly spread, as they are in the source; damaged ones are
    left out.
    """
    source.info.field("image")
    read = source.reader("train")
    positions = tf.data.Dataset.from_tensor_slices(
        spread(source.info.splits["train"], most)
    )
    images = positions.map(lambda position: read(position)["image"]).ignore_errors()
    yield from with_options(images).as_numpy_iterator()


def needed(images: Iterable[bytes | np.ndarray]) -> int | None:
    """The smallest of `SIZES` to which half of the images can be reduced with hardly
    any loss.

    Each image is reduced and enlarged again, and compared with the original: images
    that were enlarged from 32 pixels need 32, whatever their size. Images are encoded
    files, or uint8 pixels (height, width, 1 or 3); damaged ones are skipped, and after
    two seconds all others. Returns None if no image can be read.
    """
    found, start = [], time.monotonic()
    for image in images:
        try:
            with warnings.catch_warnings(action="ignore"):  # about large images
                found.append(_needed(image))
        except Exception:  # Pillow raises many types for damaged files
            continue
        if time.monotonic() - start > _SECONDS:
            break
    return sorted(found)[len(found) // 2] if found else None


def _needed(image: bytes | np.ndarray) -> int:
    most = (2 * SIZES[-1], 2 * SIZES[-1])
    if isinstance(image, bytes):
        opened: Image.Image = Image.open(io.BytesIO(image))
        opened.draft("L", most)  # decodes a large JPEG at a fraction of its size
    else:
        opened = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    if opened.mode.startswith("I"):  # `convert` would clip 16 bits to 255
        deep = np.asarray(opened, np.float32)
        opened = Image.fromarray((deep * (255 / max(deep.max(), 1))).astype(np.uint8))
    gray = opened.convert("L")
    gray.thumbnail(most)
    before = np.asarray(gray, np.float32)
    for size in SIZES[:-1]:
        small = gray.resize((size, size), Image.Resampling.BILINEAR)
        after = np.asarray(
            small.resize(gray.size, Image.Resampling.BICUBIC), np.float32
        )
        lost = np.square(after - before).mean()
        if size >= max(gray.size) or lost <= _LOST * before.var():
            return size
    return SIZES[-1]
