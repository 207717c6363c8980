"""Encoded images to pixels inside the graph: one way for training, export and every server.

Only operations that TensorFlow has had since 2.20, the newest runtime of TensorFlow Serving. What
an image will need is read from its header first: a file of a megabyte may unfold to gigabytes.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.data.image_headers import MOST_PIXELS

# Pillow's weights of red, green and blue for grey (ITU-R 601-2), in 65536ths.
_GREY = (19595, 38470, 7471)
# What the formats begin with, in the order of `_decoders`; no byte of these is zero.
_ANY = 0
_STARTS = np.array(
    [
        list(start.ljust(12, b"\0"))
        for start in (
            b"\xff\xd8\xff",
            b"\x89PNG\r\n\x1a\n",
            b"GIF8",
            b"BM",
            b"RIFF\0\0\0\0WEBP",
        )
    ],
    np.uint8,
)
# What a small file could cost without limits: each step of a walk in the graph takes 16 to 50 us,
# each scan of a progressive JPEG as long as its pixels take, each compressed text of a PNG 8 MB.
_MOST_BLOCKS = 2**16  # of a GIF's frame, 255 bytes each
_MOST_SCANS = 32  # of an image with the most pixels; about ten are usual
_LEAST_SCAN = 10  # bytes
_MOST_TEXTS = 16
_SHORT = 2**16  # bytes of a PNG whose texts need not be counted


def pixels(contents: tf.Tensor, channels: int) -> tf.Tensor:
    """JPEG, PNG, GIF (the first frame), BMP or WebP to uint8 of shape (height, width, channels).

    A JPEG is turned upright by its EXIF orientation, and its cosine transform is the accurate one,
    so that the pixels are Pillow's in every bit. Alpha is dropped; 16 bits keep the higher 8; grey
    is the luma of ITU-R 601-2. Of a GIF, the first frame is taken without a canvas around it.

    Args:
        contents: The bytes of one file: string, shape ().
        channels: 3 for red, green and blue; 1 for grey.

    Raises:
        tf.errors.InvalidArgumentError: The file is no such image, is damaged, or has more than
            `MOST_PIXELS` pixels, which is found before they are decoded.
    """
    return _traced(channels)(tf.ensure_shape(contents, ()))


def resize(image: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """uint8 (any height, any width, channels) to uint8 (height, width, channels).

    Bilinear with antialiasing, rounded; in the graph, so that a server does the same.
    """
    resized = tf.image.resize(image, (height, width), antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)


@functools.cache
def _traced(channels: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """One graph for all that decode: each tracing of these 1,500 operations takes a second."""
    signature = [tf.TensorSpec((), tf.string)]
    return tf.function(functools.partial(_pixels, channels=channels), signature, autograph=False)


@functools.cache
def _decoders() -> list[Callable[[tf.Tensor], tf.Tensor]]:
    """A function for each format."""
    # Called as one: inlined, those that are not run would cost as much time as 32x32 pixels do.
    signature, apart = [tf.TensorSpec((), tf.string)], {"_noinline": True}
    return [
        tf.function(decode, signature, autograph=False, experimental_attributes=apart)
        for decode in (_jpeg, _png, _gif, _bmp, _webp)
    ]


def _pixels(contents: tf.Tensor, channels: int) -> tf.Tensor:
    head = _raw_bytes(tf.strings.substr(tf.strings.substr(contents, 0, 12) + bytes(12), 0, 12))
    found = tf.reduce_all((head == _STARTS) | (_STARTS == _ANY), axis=1)
    contents = _require(
        tf.reduce_any(found), ("the file is no JPEG, PNG, GIF, BMP or WebP image",), contents
    )
    decoders = [functools.partial(decode, contents) for decode in _decoders()]
    image = tf.switch_case(tf.argmax(found, output_type=tf.int32), decoders)
    image.set_shape((None, None, 3))
    if channels == 1:
        # Three equal values stay what they are: the weights sum to 65536.
        weighted = tf.reduce_sum(tf.cast(image, tf.int32) * _GREY, axis=-1, keepdims=True)
        image = tf.cast(tf.bitwise.right_shift(weighted + 2**15, 16), tf.uint8)
    return image


def _require(condition: tf.Tensor, message: tuple[Any, ...], value: tf.Tensor) -> tf.Tensor:
    """`value`, which nothing can use unless the condition holds; a message in parts."""
    with tf.control_dependencies([tf.debugging.Assert(condition, list(message))]):
        return tf.identity(value)


def _within(height: tf.Tensor, width: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
    """`contents`, unless its header announces no pixels or too many."""
    height, width = tf.cast(height, tf.int64), tf.cast(width, tf.int64)
    # A quotient, because the product of two sides of 32 bits could overflow.
    good = (height > 0) & (width > 0) & (height <= MOST_PIXELS // tf.maximum(width, 1))
    wrong = f"the image has no pixels, or more than the limit of {MOST_PIXELS}: height"
    return _require(good, (wrong, height, "width", width), contents)


def _jpeg(contents: tf.Tensor) -> tf.Tensor:
    shape = tf.io.extract_jpeg_shape(contents)  # reads the header alone
    contents = _within(shape[0], shape[1], contents)
    contents = _scanned(tf.cast(shape[0], tf.int64) * tf.cast(shape[1], tf.int64), contents)
    # The default transform differs from the accurate one in two of three pixels, by up to 4.
    image = tf.io.decode_jpeg(contents, channels=3, dct_method="INTEGER_ACCURATE")
    # Looked for only where it may be: the walk over the segments takes as long as the decoding.
    one = tf.constant(1, tf.int64)
    may = tf.strings.regex_full_match(contents, r"\C*Exif\x00\x00\C*")
    way = tf.cond(may, lambda: _orientation(_raw_bytes(contents)), lambda: one)
    return tf.cond(way > 1, lambda: _upright(image, way), lambda: image)


def _scanned(pixels: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
    """A JPEG's bytes, unless its scans go over too many pixels together; libjpeg has no limit."""
    most = _MOST_SCANS * MOST_PIXELS // tf.maximum(pixels, 1)

    def few() -> tf.Tensor:
        raw = _raw_bytes(contents)
        return tf.math.count_nonzero((raw[:-1] == 0xFF) & (raw[1:] == 0xDA)) <= most

    short = tf.cast(tf.strings.length(contents), tf.int64) // _LEAST_SCAN <= most
    good = tf.cond(short, lambda: tf.constant(True), few)
    return _require(good, ("the JPEG has too many scans for its pixels",), contents)


def _png(contents: tf.Tensor) -> tf.Tensor:
    header = tf.strings.substr(tf.strings.substr(contents, 0, 24) + bytes(24), 16, 8)
    # As signed numbers, where more than 2**31 is refused as less than 1.
    size = tf.io.decode_raw(header, tf.int32, little_endian=False)
    contents = _within(size[1], size[0], contents)
    many = rf"(\C*?[zi]TXt){{{_MOST_TEXTS + 1}}}\C*"
    short = tf.strings.length(contents) <= _SHORT
    good = short | tf.cond(
        short, lambda: True, lambda: ~tf.strings.regex_full_match(contents, many)
    )
    contents = _require(good, (f"the PNG has more than {_MOST_TEXTS} texts",), contents)
    return tf.io.decode_png(contents, channels=3)


def _webp(contents: tf.Tensor) -> tf.Tensor:
    """Lossy, lossless or extended, but not animated (RFC 9649, sections 2.5 to 2.7)."""
    raw = _raw_bytes(contents)
    kind = tf.strings.substr(contents + bytes(16), 12, 4)
    packed = _number(raw, 21, 4)
    sides = {
        b"VP8 ": (_number(raw, 28, 2) % 2**14, _number(raw, 26, 2) % 2**14),
        b"VP8L": (packed // 2**14 % 2**14 + 1, packed % 2**14 + 1),
        b"VP8X": (_number(raw, 27, 3) + 1, _number(raw, 24, 3) + 1),
    }
    height = width = tf.constant(0, tf.int64)  # refused
    for name, (high, wide) in sides.items():
        height, width = tf.where(kind == name, high, height), tf.where(kind == name, wide, width)
    contents = _within(height, width, contents)
    # Of an animation without alpha, TensorFlow 2.21 writes past its memory and ends the process.
    still = (kind != b"VP8X") | (_number(raw, 20, 1) % 4 < 2)
    contents = _require(still, ("an animated WebP is not read",), contents)
    # The operation refuses 3 channels for a file with alpha.
    image = tf.io.decode_image(contents, channels=0, expand_animations=False)
    image.set_shape((None, None, None))
    return image[..., :3]


def _bmp(contents: tf.Tensor) -> tf.Tensor:
    """Uncompressed, of 8, 24 or 32 bits. TensorFlow takes palette indices for grey; not so here."""
    raw = _raw_bytes(contents)
    header, bits = _number(raw, 14, 4), _number(raw, 28, 2)
    plain = (header >= 40) & (_number(raw, 30, 4) == 0) & tf.reduce_any(bits == (8, 24, 32))
    contents = _require(
        plain, ("the BMP is not an uncompressed one of 8, 24 or 32 bits",), contents
    )
    height = _number(raw, 22, 4)
    height = tf.minimum(height, 2**32 - height)  # negative where the rows go downward
    contents = _within(height, _number(raw, 18, 4), contents)
    image = tf.io.decode_image(contents, channels=3, expand_animations=False)
    image.set_shape((None, None, 3))

    def coloured() -> tf.Tensor:
        first = 14 + header  # four bytes a colour: blue, green, red, nothing
        colours = first + 4 * tf.cast(image[..., :1], tf.int64) + tf.constant([2, 1, 0], tf.int64)
        inside = tf.reduce_all(colours < tf.size(raw, tf.int64))
        return tf.gather(raw, _require(inside, ("the BMP lacks colours",), colours))

    return tf.cond(bits == 8, coloured, lambda: image)


def _gif(contents: tf.Tensor) -> tf.Tensor:
    """The first frame; the others are cut off, as TensorFlow would unfold them all (GIF89a)."""
    raw = _raw_bytes(contents)
    end = tf.size(raw, tf.int64)

    def table(flags: tf.Tensor) -> tf.Tensor:
        """Bytes of a colour table."""
        size = 3 * tf.bitwise.left_shift(tf.constant(2, tf.int64), flags % 8)
        return tf.where(flags >= 128, size, 0)

    def blocks(at: tf.Tensor) -> tf.Tensor:
        """Where a chain of blocks, each behind its length, has ended; behind all if it has not."""
        (at,) = tf.while_loop(
            lambda at: (_number(raw, at, 1) > 0) & (at < end),
            lambda at: (at + 1 + _number(raw, at, 1),),
            (at,),
            maximum_iterations=_MOST_BLOCKS,
        )
        return tf.where(_number(raw, at, 1) == 0, at + 1, end + 1)

    (at,) = tf.while_loop(  # over extensions
        lambda at: (_number(raw, at, 1) == ord("!")) & (at < end),
        lambda at: (blocks(at + 2),),
        (13 + table(_number(raw, 10, 1)),),
        maximum_iterations=MOST_SEGMENTS,
    )
    framed = (_number(raw, at, 1) == ord(",")) & (at + 10 < end)
    contents = _require(framed, ("the GIF has no frame",), contents)
    contents = _within(_number(raw, at + 7, 2), _number(raw, at + 5, 2), contents)
    last = blocks(at + 11 + table(_number(raw, at + 9, 1)))
    contents = _require(last <= end, ("the GIF ends within its first frame",), contents)
    # The frame moves to the corner of the canvas, which is its own size.
    head = tf.strings.substr(contents, 0, tf.cast(at + 1, tf.int32)) + bytes(4)
    rest = tf.strings.substr(contents, tf.cast(at + 5, tf.int32), tf.cast(last - at - 5, tf.int32))
    image = tf.io.decode_image(head + rest + b";", channels=3, expand_animations=False)
    image.set_shape((None, None, 3))
    return image


MOST_SEGMENTS = 256
"""In front of the EXIF data, which stand first: a step of the loop takes 16 to 50 us."""
_TAG = 0x0112  # EXIF 2.3, 4.6.4 A


def _orientation(raw: tf.Tensor) -> tf.Tensor:
    """EXIF orientation of a JPEG's bytes (uint8): int64, 1 ... 8; 1 where it says none."""

    def exif(at: tf.Tensor) -> tf.Tensor:
        # Marker APP1, its length, `Exif`, two zeros.
        return (_number(raw, at, 2, False) == 0xFFE1) & (
            _number(raw, at + 4, 6, False) == int.from_bytes(b"Exif\0\0", "big")
        )

    def searching(at: tf.Tensor) -> tf.Tensor:
        marker = _number(raw, at, 2, False)
        # Segments end where the scan (SOS) or the picture (EOI) does; what is no marker is damage.
        segment = (marker >= 0xFF01) & (marker != 0xFFDA) & (marker != 0xFFD9)
        return segment & ~exif(at) & (at < tf.size(raw, tf.int64))

    def following(at: tf.Tensor) -> tuple[tf.Tensor]:
        fill = _number(raw, at, 2, False) == 0xFFFF
        return (at + tf.where(fill, tf.constant(1, tf.int64), 2 + _number(raw, at + 2, 2, False)),)

    start = (tf.constant(2, tf.int64),)
    (at,) = tf.while_loop(searching, following, start, maximum_iterations=MOST_SEGMENTS)
    base = at + 10  # of the TIFF structure, from which its offsets count
    little = _number(raw, base, 1) == ord("I")
    directory = base + _number(raw, base + 4, 4, little)
    count = tf.where(exif(at), _number(raw, directory, 2, little), 0)
    entries = directory + 2 + 12 * tf.range(count)
    tags = _number(raw, entries, 2, little)
    values = _number(raw, entries + 8, 2, little)
    value = tf.reduce_max(tf.where(tags == _TAG, values, 0))
    return tf.where(exif(at) & (value >= 1) & (value <= 8), value, 1)


def _upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """uint8 (height, width, channels), turned and mirrored by an EXIF orientation."""

    def among(*orientations: int) -> tf.Tensor:
        return tf.reduce_any(orientation == orientations)

    def when(condition: tf.Tensor, change: Callable, image: tf.Tensor) -> tf.Tensor:
        return tf.cond(condition, lambda: change(image), lambda: image)

    image = when(orientation >= 5, _transposed, image)
    image = when(among(2, 3, 6, 7), lambda i: tf.reverse(i, [1]), image)
    return when(among(3, 4, 7, 8), lambda i: tf.reverse(i, [0]), image)


def _transposed(image: tf.Tensor) -> tf.Tensor:
    # `tf.transpose` of integers makes TensorFlow 2.21 write "E0000 ... oneDNN supports DT_UINT8
    # only on platforms with AVX-512" to stderr, even on CPUs that have it, in a server too. For 12
    # megapixels this takes 33 ms instead of 19.
    height, width, channels = tf.unstack(tf.shape(image))
    places = tf.range(width)[:, None] + width * tf.range(height)
    return tf.gather(tf.reshape(image, [-1, channels]), places)


def _raw_bytes(contents: tf.Tensor) -> tf.Tensor:
    """Of a string, shape (): uint8 of shape (length,)."""
    return tf.io.decode_raw(contents, tf.uint8)


def _number(
    raw: tf.Tensor, at: tf.Tensor | int, count: int, little: tf.Tensor | bool = True
) -> tf.Tensor:
    """Unsigned number of `count` bytes at each place; behind the end stands the last byte.

    Args:
        raw: uint8, of shape (length,), at least one.
        at: Places, of any shape.
        count: Up to 7.
        little: Whether the lowest byte comes first.

    Returns:
        int64, of the shape of `at`.
    """
    places = tf.cast(at, tf.int64)[..., None] + tf.range(count, dtype=tf.int64)
    found = tf.gather(raw, tf.clip_by_value(places, 0, tf.size(raw, tf.int64) - 1))
    powers = tf.constant([256**power for power in range(count)], tf.int64)
    powers = tf.where(little, powers, tf.reverse(powers, [0]))
    return tf.reduce_sum(tf.cast(found, tf.int64) * powers, axis=-1)
