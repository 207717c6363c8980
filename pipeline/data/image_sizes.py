"""Sizes and bits of images, from their headers and their content."""

import io
import itertools
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from pipeline.contracts import ImageShape, Source
from pipeline.utils import image_formats
from pipeline.utils.image_formats import MAX_PIXELS
from pipeline.utils.tf_data import READ_ERRORS

SIZES = (32, 48, 64, 96, 128, 160, 224)
"""Sides of square images in pixels."""
_MAX_LOSS = 0.013  # fraction of an image's variance
_MAX_SECONDS = 2.0  # for all images
MAX_DEEP_PNGS = 100  # that are decoded
_ORIENTATION = 274  # EXIF
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")


def common_shape(shapes: Iterable[tuple[int, int, bool]]) -> ImageShape:
    """The (height, width, channels) that all upright images share.

    `shapes` are those of `shape`. Height and width are None if they differ. Channels
    are 1 if all images are grayscale, else 3. Images that are damaged, or have no
    pixels or too many, are skipped: decoding or cleaning reports them.
    """
    sizes = set()
    all_gray = True
    for height, width, is_gray in shapes:
        if not 0 < height * width <= MAX_PIXELS:
            continue
        sizes.add((height, width))
        all_gray &= is_gray
        if len(sizes) > 1:
            return None, None, None
    for height, width in sizes:
        return height, width, 1 if all_gray else 3
    return None, None, None


def shape(image: bytes) -> tuple[int, int, bool]:
    """(height, width, whether the image is grayscale); zeros for a damaged image.

    The beginning of the file is enough.
    """
    height, width, orientation, mode = _header(image)
    if orientation >= 5:
        height, width = width, height
    return height, width, mode in ("1", "L", "LA") or mode.startswith("I")


def stored_shape(image: bytes) -> tuple[int, int, int]:
    """(height, width, EXIF orientation), the size before the rotation; as `shape`."""
    return _header(image)[:3]


def _header(image: bytes) -> tuple[int, int, int, str]:
    """Height, width, EXIF orientation and mode of Pillow; zeros for a damaged image."""
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # about large images
            Image.open(io.BytesIO(image), formats=_FORMATS) as picture,
        ):
            width, height = picture.size
            orientation = 1
            if picture.format in ("JPEG", "MPO"):
                orientation = picture.getexif().get(_ORIENTATION, 1)
            return height, width, orientation, picture.mode
    except Exception:  # Pillow raises many types of exceptions for damaged files
        return 0, 0, 1, ""


def used_bits(images: Iterable[bytes]) -> tuple[int, tuple[str, ...]]:
    """How many bits the values of 16-bit images use, and notes for the user about them.

    A camera or an instrument with 12 bits writes values up to 4,095, whose higher 8 of
    16 bits are nearly black. Returns 16 and no note if there are no such PNGs. Only the
    first `MAX_DEEP_PNGS` are decoded.
    """
    pngs = filter(image_formats.is_deep, images)
    values = [_highest_value(png) for png in itertools.islice(pngs, MAX_DEEP_PNGS)]
    if not values:
        return 16, ()
    highest = max(values)
    bits = highest.bit_length() or 16
    kept = "the higher 8 are kept" if bits > 8 else "all are kept"
    note = f"16-bit images: values up to {highest:,}, {bits} bits, of which {kept}"
    return bits, (f"{note}, in training and in the exported model",)


def _highest_value(image: bytes) -> int:
    """The highest value of a PNG; 0 if it is damaged or too large."""
    height, width, _ = shape(image)
    if not 0 < height * width <= MAX_PIXELS:
        return 0
    try:
        return int(tf.reduce_max(tf.io.decode_png(image, dtype=tf.uint16)))
    except tf.errors.OpError:
        return 0


def spread(count: int, limit: int) -> np.ndarray:
    """Evenly spread positions of at most `limit` out of `count` examples, int64."""
    return np.unique(np.linspace(0, count - 1, min(limit, count)).astype(np.int64))


def sample(source: Source, limit: int) -> Iterator[Any]:
    """Yields evenly spread images of train, as they are in the source.

    Damaged images are left out.
    """
    source.info.field("image")
    read = source.reader("train")
    for position in spread(source.info.splits["train"], limit):
        # Without `tf.data`, whose graph would keep a copy of arrays in memory.
        try:
            image = read(tf.constant(position))["image"].numpy()
        except READ_ERRORS:
            continue
        yield image


def detail_size(images: Iterable[bytes | np.ndarray]) -> int | None:
    """The smallest of `SIZES` to which half of the images can be reduced without loss.

    Each image is reduced and enlarged again, and compared with the original: images
    that were enlarged from 32 pixels need 32, whatever their size. Images are encoded
    files, or uint8 pixels (height, width, 1 or 3). Damaged images are skipped, and
    after two seconds all remaining ones. Returns None if no image can be read.
    """
    sizes = []
    start = time.monotonic()
    for image in images:
        try:
            with warnings.catch_warnings(action="ignore"):  # about large images
                sizes.append(_detail_size(image))
        except Exception:  # Pillow raises many types for damaged files
            continue
        if time.monotonic() - start > _MAX_SECONDS:
            break
    return sorted(sizes)[len(sizes) // 2] if sizes else None


def _detail_size(image: bytes | np.ndarray) -> int:
    gray = _grayscale(image, (2 * SIZES[-1], 2 * SIZES[-1]))
    original = np.asarray(gray, np.float32)
    for size in SIZES[:-1]:
        small = gray.resize((size, size), Image.Resampling.BILINEAR)
        enlarged = small.resize(gray.size, Image.Resampling.BICUBIC)
        loss = np.square(np.asarray(enlarged, np.float32) - original).mean()
        if size >= max(gray.size) or loss <= _MAX_LOSS * original.var():
            return size
    return SIZES[-1]


def _grayscale(image: bytes | np.ndarray, max_size: tuple[int, int]) -> Image.Image:
    if isinstance(image, bytes):
        picture: Image.Image = Image.open(io.BytesIO(image))
        picture.draft("L", max_size)  # decodes a large JPEG at a fraction of its size
    else:
        picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    if picture.mode.startswith("I"):  # `convert` would clip 16 bits to 255
        values = np.asarray(picture, np.float32)
        values = values * (255 / max(values.max(), 1))
        picture = Image.fromarray(values.astype(np.uint8))
    gray = picture.convert("L")
    gray.thumbnail(max_size)
    return gray
