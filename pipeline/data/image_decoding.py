"""Decodes images inside the graph, in the same way in training, in the export and on any server.

Uses only operations that exist since TensorFlow 2.20, the newest runtime of TensorFlow Serving. The
size of an image is first read from its header, because a megabyte may expand to gigabytes.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.utils.image_formats import MOST_PIXELS, NAMES, SIGNATURES

# Pillow's weights of red, green and blue for gray (ITU-R 601-2), in 65536ths.
_GRAY = (19595, 38470, 7471)
# The first bytes of each format, padded with zeros; a zero matches any byte.
_STARTS = np.array([list(start.ljust(12, b"\0")) for start in SIGNATURES.values()], np.uint8)
# Without limits, a small file could take minutes or gigabytes: each step of a loop in the graph
# takes 16 to 50 us, each scan of a progressive JPEG takes time proportional to its pixels, and each
# compressed text of a PNG expands to 8 MB.
_MOST_BLOCKS = 2**16  # in a frame of a GIF, 255 bytes each
_MOST_EXTENSIONS = 256  # in a GIF before its first frame
_MOST_SCANS = 32  # in an image with the most pixels allowed; about ten are usual
_LEAST_SCAN = 10  # bytes
_MOST_TEXTS = 16
_SHORT = 2**16  # bytes of a PNG whose texts need not be counted
_ORIENTATION = 0x0112  # EXIF 2.3, 4.6.4 A


def pixels(contents: tf.Tensor, channels: int) -> tf.Tensor:
    """Decodes JPEG, PNG, GIF (first frame), BMP or WebP to uint8 (height, width, channels).

    A JPEG is rotated according to its EXIF orientation, and the accurate cosine transform is used,
    so that the pixels equal Pillow's bit for bit. Alpha is dropped; of 16 bits, the higher 8 are
    kept; gray is the luma of ITU-R 601-2. The first frame of a GIF is returned without the canvas
    around it.

    Args:
        contents: The bytes of one file: a string of shape ().
        channels: 3 for RGB, 1 for grayscale.

    Raises:
        tf.errors.InvalidArgumentError: The file is not an image of these formats, is damaged, or
            has more than `MOST_PIXELS` pixels, which is detected before they are decoded.
    """
    return _traced(channels)(tf.ensure_shape(contents, ()))


def resize(image: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Resizes pixels (any height, any width, channels) to (height, width, channels), same dtype.

    Bilinear with antialiasing, rounded; part of the graph, so that a server does the same.
    """
    resized = tf.image.resize(image, (height, width), antialias=True)
    if image.dtype.is_floating:
        return resized
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, image.dtype.max), image.dtype)


@functools.cache
def _traced(channels: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """One graph for all callers, because tracing these 1,500 operations takes a second."""
    signature = [tf.TensorSpec((), tf.string)]
    return tf.function(functools.partial(_pixels, channels=channels), signature, autograph=False)


@functools.cache
def _decoders() -> list[Callable[[tf.Tensor], tf.Tensor]]:
    """A decoding function for each format, in the order of `SIGNATURES`."""
    # Not inlined, because branches not taken would cost as much as decoding 32x32 pixels.
    signature, options = [tf.TensorSpec((), tf.string)], {"_noinline": True}
    return [
        tf.function(decode, signature, autograph=False, experimental_attributes=options)
        for decode in (_jpeg, _png, _gif, _bmp, _webp)
    ]


def _pixels(contents: tf.Tensor, channels: int) -> tf.Tensor:
    start = tf.strings.substr(tf.strings.substr(contents, 0, 12) + bytes(12), 0, 12)
    head = tf.io.decode_raw(start, tf.uint8)
    found = tf.reduce_all((head == _STARTS) | (_STARTS == 0), axis=1)
    contents = _require(tf.reduce_any(found), (f"the file is not a {NAMES} image",), contents)
    decoders = [functools.partial(decode, contents) for decode in _decoders()]
    image = tf.switch_case(tf.argmax(found, output_type=tf.int32), decoders)
    image.set_shape((None, None, 3))
    if channels == 1:
        # Gray pixels are unchanged: the weights sum to 65536.
        weighted = tf.reduce_sum(tf.cast(image, tf.int32) * _GRAY, axis=-1, keepdims=True)
        image = tf.cast(tf.bitwise.right_shift(weighted + 2**15, 16), tf.uint8)
    return image


def _require(condition: tf.Tensor, message: tuple[Any, ...], value: tf.Tensor) -> tf.Tensor:
    """`value`, guarded by a condition; the message is passed in parts."""
    with tf.control_dependencies([tf.debugging.Assert(condition, list(message))]):
        return tf.identity(value)


def _within(height: tf.Tensor, width: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
    """`contents`, unless its header declares no pixels or too many."""
    height, width = tf.cast(height, tf.int64), tf.cast(width, tf.int64)
    # A quotient, because the product of two 32-bit sides could overflow.
    good = (height > 0) & (width > 0) & (height <= MOST_PIXELS // tf.maximum(width, 1))
    wrong = f"the image has no pixels, or more than the limit of {MOST_PIXELS}: height"
    return _require(good, (wrong, height, "width", width), contents)


def _jpeg(contents: tf.Tensor) -> tf.Tensor:
    shape = tf.io.extract_jpeg_shape(contents)  # reads the header alone
    contents = _within(shape[0], shape[1], contents)
    size = tf.cast(shape[0], tf.int64) * tf.cast(shape[1], tf.int64)
    most = _MOST_SCANS * MOST_PIXELS // tf.maximum(size, 1)

    def few_scans() -> tf.Tensor:  # libjpeg has no limit
        raw = tf.io.decode_raw(contents, tf.uint8)
        return tf.math.count_nonzero((raw[:-1] == 0xFF) & (raw[1:] == 0xDA)) <= most

    short = tf.cast(tf.strings.length(contents), tf.int64) // _LEAST_SCAN <= most
    good = tf.cond(short, lambda: tf.constant(True), few_scans)
    contents = _require(good, ("the JPEG has too many scans for its pixels",), contents)
    # The default transform differs from the accurate one in two of three pixels, by up to 4.
    image = tf.io.decode_jpeg(contents, channels=3, dct_method="INTEGER_ACCURATE")
    return _upright(image, _orientation(contents))


def _png(contents: tf.Tensor) -> tf.Tensor:
    header = tf.strings.substr(tf.strings.substr(contents, 0, 24) + bytes(24), 16, 8)
    # As signed numbers: more than 2**31 is rejected as less than 1.
    size = tf.io.decode_raw(header, tf.int32, little_endian=False)
    contents = _within(size[1], size[0], contents)
    many = rf"(\C*?[zi]TXt){{{_MOST_TEXTS + 1}}}\C*"
    good = tf.cond(
        tf.strings.length(contents) <= _SHORT,
        lambda: True,
        lambda: ~tf.strings.regex_full_match(contents, many),
    )
    contents = _require(good, (f"the PNG has more than {_MOST_TEXTS} texts",), contents)
    return tf.io.decode_png(contents, channels=3)


def _webp(contents: tf.Tensor) -> tf.Tensor:
    """Lossy, lossless or extended, but not animated (RFC 9649, sections 2.5 to 2.7)."""
    raw = tf.io.decode_raw(contents, tf.uint8)
    kind = tf.strings.substr(contents + bytes(16), 12, 4)
    packed = _number(raw, 21, 4)
    height = width = tf.constant(0, tf.int64)  # refused
    for name, high, wide in (
        (b"VP8 ", _number(raw, 28, 2) % 2**14, _number(raw, 26, 2) % 2**14),
        (b"VP8L", packed // 2**14 % 2**14 + 1, packed % 2**14 + 1),
        (b"VP8X", _number(raw, 27, 3) + 1, _number(raw, 24, 3) + 1),
    ):
        height, width = tf.where(kind == name, high, height), tf.where(kind == name, wide, width)
    contents = _within(height, width, contents)
    # TensorFlow 2.21 crashes on an animation without alpha.
    still = (kind != b"VP8X") | (_number(raw, 20, 1) % 4 < 2)
    contents = _require(still, ("an animated WebP cannot be read",), contents)
    return _decoded(contents, channels=0)[..., :3]  # it refuses 3 channels for a file with alpha


def _bmp(contents: tf.Tensor) -> tf.Tensor:
    """Uncompressed, with 8, 24 or 32 bits; TensorFlow would return palette indices as gray."""
    raw = tf.io.decode_raw(contents, tf.uint8)
    header, bits = _number(raw, 14, 4), _number(raw, 28, 2)
    plain = (header >= 40) & (_number(raw, 30, 4) == 0) & tf.reduce_any(bits == (8, 24, 32))
    contents = _require(plain, ("the BMP must be uncompressed with 8, 24 or 32 bits",), contents)
    height = _number(raw, 22, 4)
    height = tf.minimum(height, 2**32 - height)  # negative if the first row is the top one
    contents = _within(height, _number(raw, 18, 4), contents)
    image = _decoded(contents, channels=3)

    def from_palette() -> tf.Tensor:
        first = 14 + header  # four bytes per color: blue, green, red, unused
        colors = first + 4 * tf.cast(image[..., :1], tf.int64) + tf.constant([2, 1, 0], tf.int64)
        inside = tf.reduce_all(colors < tf.size(raw, tf.int64))
        return tf.gather(raw, _require(inside, ("the palette of the BMP is incomplete",), colors))

    return tf.cond(bits == 8, from_palette, lambda: image)


def _gif(contents: tf.Tensor) -> tf.Tensor:
    """The first frame; other frames are cut off, because TensorFlow would expand all (GIF89a)."""
    raw = tf.io.decode_raw(contents, tf.uint8)
    end = tf.size(raw, tf.int64)

    def table(flags: tf.Tensor) -> tf.Tensor:
        """Bytes of a color table."""
        size = 3 * tf.bitwise.left_shift(tf.constant(2, tf.int64), flags % 8)
        return tf.where(flags >= 128, size, 0)

    def walk(going: Callable, following: Callable, start: tf.Tensor, most: int) -> tf.Tensor:
        """The first position that is not `going`; `following` maps a position to the next one."""
        (at,) = tf.while_loop(
            lambda at: going(at) & (at < end),
            lambda at: (following(at),),
            (start,),
            maximum_iterations=most,
        )
        return at

    def after_blocks(at: tf.Tensor) -> tf.Tensor:
        """The position after a chain of blocks, each preceded by its length."""
        size = functools.partial(_number, raw, count=1)
        at = walk(lambda at: size(at) > 0, lambda at: at + 1 + size(at), at, _MOST_BLOCKS)
        return tf.where(size(at) == 0, at + 1, end + 1)

    at = walk(
        lambda at: _number(raw, at, 1) == ord("!"),
        lambda at: after_blocks(at + 2),
        13 + table(_number(raw, 10, 1)),
        _MOST_EXTENSIONS,
    )
    framed = (_number(raw, at, 1) == ord(",")) & (at + 10 < end)
    contents = _require(framed, ("the GIF has no frame",), contents)
    contents = _within(_number(raw, at + 7, 2), _number(raw, at + 5, 2), contents)
    last = after_blocks(at + 11 + table(_number(raw, at + 9, 1)))
    contents = _require(last <= end, ("the GIF ends within its first frame",), contents)
    # The frame is moved to the corner of the canvas, and the canvas is reduced to its size.
    head = tf.strings.substr(contents, 0, tf.cast(at + 1, tf.int32)) + bytes(4)
    rest = tf.strings.substr(contents, tf.cast(at + 5, tf.int32), tf.cast(last - at - 5, tf.int32))
    return _decoded(head + rest + b";", channels=3)


def _decoded(contents: tf.Tensor, channels: int) -> tf.Tensor:
    image = tf.io.decode_image(contents, channels=channels, expand_animations=False)
    image.set_shape((None, None, channels or None))
    return image


def _orientation(contents: tf.Tensor) -> tf.Tensor:
    """EXIF orientation of a JPEG: int64, 1 to 8; 1 if it has none."""
    # The marker APP1, its length, "Exif", two zeros, and a TIFF structure.
    parts = tf.strings.split(contents, b"Exif\0\0", maxsplit=1)
    before = tf.strings.length(parts[0])
    marker = tf.strings.substr(parts[0], tf.maximum(before, 4) - 4, 2)

    def from_exif() -> tf.Tensor:
        raw = tf.io.decode_raw(parts[1] + b"\0", tf.uint8)
        little = _number(raw, 0, 1) == ord("I")
        directory = _number(raw, 4, 4, little)
        entries = directory + 2 + 12 * tf.range(_number(raw, directory, 2, little))
        tags, values = _number(raw, entries, 2, little), _number(raw, entries + 8, 2, little)
        value = tf.reduce_max(tf.where(tags == _ORIENTATION, values, 0))
        return tf.where((value >= 1) & (value <= 8), value, 1)

    found = (tf.size(parts) > 1) & (marker == b"\xff\xe1")
    return tf.cond(found, from_exif, lambda: tf.constant(1, tf.int64))


def _upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """uint8 (height, width, channels), rotated and mirrored by an EXIF orientation."""

    def when(orientations: tuple[int, ...], change: Callable, image: tf.Tensor) -> tf.Tensor:
        chosen = tf.reduce_any(orientation == orientations)
        return tf.cond(chosen, lambda: change(image), lambda: image)

    image = when((5, 6, 7, 8), _transposed, image)
    image = when((2, 3, 6, 7), lambda i: tf.reverse(i, [1]), image)
    return when((3, 4, 7, 8), lambda i: tf.reverse(i, [0]), image)


def _transposed(image: tf.Tensor) -> tf.Tensor:
    # `tf.transpose` of integers makes TensorFlow 2.21 write "E0000 ... oneDNN supports DT_UINT8
    # only on platforms with AVX-512" to stderr, even on CPUs that have it, in a server too. For 12
    # megapixels this takes 33 ms instead of 19.
    height, width, channels = tf.unstack(tf.shape(image))
    places = tf.range(width)[:, None] + width * tf.range(height)
    return tf.gather(tf.reshape(image, [-1, channels]), places)


def _number(
    raw: tf.Tensor, at: tf.Tensor | int, count: int, little: tf.Tensor | bool = True
) -> tf.Tensor:
    """Unsigned number of up to 7 bytes at each position; the last byte is repeated at the end."""
    places = tf.cast(at, tf.int64)[..., None] + tf.range(count, dtype=tf.int64)
    found = tf.gather(raw, tf.clip_by_value(places, 0, tf.size(raw, tf.int64) - 1))
    powers = tf.constant([256**power for power in range(count)], tf.int64)
    powers = tf.where(little, powers, tf.reverse(powers, [0]))
    return tf.reduce_sum(tf.cast(found, tf.int64) * powers, axis=-1)
