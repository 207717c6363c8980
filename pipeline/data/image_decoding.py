"""Decodes images inside the graph, in the same way in training, in the export and on
any server.

Uses only operations that exist since TensorFlow 2.20, the newest runtime of TensorFlow
Serving. The size of an image is first read from its header, because a megabyte may
expand to gigabytes.
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
_STARTS = np.array(
    [list(start.ljust(12, b"\0")) for start in SIGNATURES.values()], np.uint8
)
# Without limits, a small file could take minutes or gigabytes: each step of a loop in
# the graph takes 16 to 50 us, each scan of a progressive JPEG takes time proportional
# to its pixels, and each compressed text of a PNG expands to 8 MB.
_MOST_BLOCKS = 2**17  # in a GIF up to the end of its first frame, 255 bytes each
_MOST_SCANS = 32  # in an image with the most pixels allowed; about ten are usual
_LEAST_SCAN = 10  # bytes
_MOST_TEXTS = 16
_SHORT = 2**16  # bytes of a PNG whose texts need not be counted
_HEADER = 34  # bytes, in which the sizes of a GIF, BMP or WebP are
# Bytes of a color table in a GIF, by the flags before it.
_TABLES = np.array([3 * 2 ** (1 + flags % 8) * (flags >= 128) for flags in range(256)])
WARNINGS = (
    *(
        "Corrupt JPEG data",
        "Premature end of JPEG",
        "Invalid SOS parameters for sequential JPEG",
    ),
    *("Unknown Adobe color transform", "Inconsistent progression sequence"),
    *("unknown JFIF revision number", "Application transferred too"),
    *("PNG warning:", "Only partially decoded the GIF"),
)
"""Parts of the lines that decoders write to stderr, without the name of the file."""
_ORIENTATION = 0x0112  # EXIF 2.3, 4.6.4 A


def pixels(contents: tf.Tensor, channels: int, bits: int = 16) -> tf.Tensor:
    """Decodes JPEG, PNG, GIF (first frame), BMP or WebP to uint8 (height, width,
    channels).

    A JPEG is rotated according to its EXIF orientation, and the accurate cosine
    transform is used, so that the pixels equal Pillow's bit for bit. Alpha is dropped;
    of the `bits` that 16-bit PNGs use, the higher 8 are kept; gray is the luma of ITU-R
    601-2. The first frame of a GIF is returned without the canvas around it.

    Args:
        contents: The bytes of one file: a string of shape ().
        channels: 3 for RGB, 1 for grayscale.
        bits: Of a 16-bit PNG, values of 2**bits and more become 255.

    Raises:
        tf.errors.InvalidArgumentError: The file is not an image of these formats, is
        damaged, or
            has more than `MOST_PIXELS` pixels, which is detected before they are
            decoded.
    """
    return _traced(channels, bits)(tf.ensure_shape(contents, ()))


def resize(image: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Resizes pixels (any height, any width, channels) to (height, width, channels),
    same dtype.

    Bilinear with antialiasing, rounded; part of the graph, so that a server does the
    same.
    """

    def resized() -> tf.Tensor:
        found = tf.image.resize(image, (height, width), antialias=True)
        if image.dtype.is_floating:
            return found
        return tf.cast(
            tf.clip_by_value(tf.round(found), 0, image.dtype.max), image.dtype
        )

    # It would return the same pixels, but take as long as decoding a PNG of 32x32.
    return tf.cond(
        tf.reduce_all(tf.shape(image)[:2] == (height, width)), lambda: image, resized
    )


@functools.cache
def _traced(channels: int, bits: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """One graph for all callers, because tracing these operations takes a fifth of a
    second.
    """
    signature = [tf.TensorSpec((), tf.string)]
    decode = functools.partial(_pixels, channels=channels, bits=bits)
    return tf.function(decode, signature, autograph=False)


@functools.cache
def _decoders(bits: int) -> list[Callable[[tf.Tensor], tf.Tensor]]:
    """A decoding function for each format, in the order of `SIGNATURES`."""
    # Not inlined, because branches not taken would cost as much as decoding 32x32
    # pixels.
    signature, options = [tf.TensorSpec((), tf.string)], {"_noinline": True}
    return [
        tf.function(decode, signature, autograph=False, experimental_attributes=options)
        for decode in (_jpeg, functools.partial(_png, bits=bits), _gif, _bmp, _webp)
    ]


def _pixels(contents: tf.Tensor, channels: int, bits: int) -> tf.Tensor:
    head = tf.io.decode_raw(contents, tf.uint8, fixed_length=12)
    found = tf.reduce_all((head == _STARTS) | (_STARTS == 0), axis=1)
    contents = _require(
        tf.reduce_any(found), (f"the file is not a {NAMES} image",), contents
    )
    decoders = [functools.partial(decode, contents) for decode in _decoders(bits)]
    image = tf.switch_case(tf.argmax(found, output_type=tf.int32), decoders)
    image.set_shape((None, None, 3))
    if channels == 1:
        # Gray pixels are unchanged: the weights sum to 65536.
        weighted = tf.reduce_sum(
            tf.cast(image, tf.int32) * _GRAY, axis=-1, keepdims=True
        )
        image = tf.cast(tf.bitwise.right_shift(weighted + 2**15, 16), tf.uint8)
    return image


def _require(
    condition: tf.Tensor, message: tuple[Any, ...], value: tf.Tensor
) -> tf.Tensor:
    """`value`, guarded by a condition; the message is passed in parts."""
    # `tf.debugging.Assert` would trace two functions if a part is int64.
    with tf.control_dependencies(
        [tf.raw_ops.Assert(condition=condition, data=list(message))]
    ):
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
    # libjpeg has no limit. A short file cannot have too many, and is not searched.
    short = tf.cast(tf.strings.length(contents), tf.int64) // _LEAST_SCAN <= most
    raw = tf.io.decode_raw(tf.where(short, b"", contents), tf.uint8)
    scans = tf.math.count_nonzero((raw[:-1] == 0xFF) & (raw[1:] == 0xDA))
    contents = _require(
        scans <= most, ("the JPEG has too many scans for its pixels",), contents
    )
    # The default transform differs from the accurate one in two of three pixels, by up
    # to 4.
    image = tf.io.decode_jpeg(contents, channels=3, dct_method="INTEGER_ACCURATE")
    orientation = _orientation(contents)
    return tf.cond(
        orientation == 1, lambda: image, lambda: _upright(image, orientation)
    )


def _png(contents: tf.Tensor, bits: int) -> tf.Tensor:
    # As signed numbers: more than 2**31 is rejected as less than 1.
    header = tf.io.decode_raw(contents, tf.int32, little_endian=False, fixed_length=24)
    contents = _within(header[5], header[4], contents)
    many = rf"(\C*?[zi]TXt){{{_MOST_TEXTS + 1}}}\C*"
    searched = tf.where(tf.strings.length(contents) <= _SHORT, b"", contents)
    good = ~tf.strings.regex_full_match(searched, many)
    contents = _require(good, (f"the PNG has more than {_MOST_TEXTS} texts",), contents)

    def shallow() -> tf.Tensor:
        return tf.io.decode_png(contents, channels=3)  # of 16 bits, the higher 8

    def deep() -> tf.Tensor:
        values = tf.cast(
            tf.io.decode_png(contents, channels=3, dtype=tf.uint16), tf.int32
        )
        return tf.cast(
            tf.minimum(tf.bitwise.right_shift(values * 256, bits), 255), tf.uint8
        )

    if bits == 16:
        return shallow()
    depth = tf.io.decode_raw(
        tf.strings.substr(contents, 24, 1), tf.uint8, fixed_length=1
    )
    return tf.cond(depth[0] == 16, deep, shallow)


def _webp(contents: tf.Tensor) -> tf.Tensor:
    """Lossy, lossless or extended, but not animated (RFC 9649, sections 2.5 to 2.7)."""
    lossy, lossless, extended = (
        int.from_bytes(b"VP8" + c, "little") for c in (b" ", b"L", b"X")
    )
    places = (12, 4), (20, 1), (26, 2), (28, 2), (21, 4), (24, 3), (27, 3)
    kind, flags, width, height, packed, columns, rows = _header(contents, *places)
    size = tf.where(kind == lossy, [height % 2**14, width % 2**14], 0)  # 0 is refused
    smaller = [packed // 2**14 % 2**14, packed % 2**14]
    size = tf.where(kind == lossless, tf.stack(smaller) + 1, size)
    size = tf.where(kind == extended, tf.stack([rows, columns]) + 1, size)
    contents = _within(size[0], size[1], contents)
    # TensorFlow 2.21 crashes on an animation without alpha.
    still = (kind != extended) | (flags % 4 < 2)
    contents = _require(still, ("an animated WebP cannot be read",), contents)
    return _decoded(contents, channels=0)[
        ..., :3
    ]  # it refuses 3 channels for a file with alpha


def _bmp(contents: tf.Tensor) -> tf.Tensor:
    """Uncompressed, with 8, 24 or 32 bits; TensorFlow would return palette indices as
    gray.
    """
    places = (14, 4), (18, 4), (22, 4), (28, 2), (30, 4)
    header, width, height, bits, packed = _header(contents, *places)
    plain = (header >= 40) & (packed == 0) & tf.reduce_any(bits == (8, 24, 32))
    contents = _require(
        plain, ("the BMP must be uncompressed with 8, 24 or 32 bits",), contents
    )
    height = tf.minimum(
        height, 2**32 - height
    )  # negative if the first row is the top one
    contents = _within(height, width, contents)
    image = _decoded(contents, channels=3)

    def from_palette() -> tf.Tensor:
        raw = tf.io.decode_raw(contents, tf.uint8)
        first = 14 + header  # four bytes per color: blue, green, red, unused
        colors = (
            first
            + 4 * tf.cast(image[..., :1], tf.int64)
            + tf.constant([2, 1, 0], tf.int64)
        )
        inside = tf.reduce_all(colors < tf.size(raw, tf.int64))
        return tf.gather(
            raw, _require(inside, ("the palette of the BMP is incomplete",), colors)
        )

    return tf.cond(bits == 8, from_palette, lambda: image)


def _gif(contents: tf.Tensor) -> tf.Tensor:
    """The first frame; other frames are cut off, because TensorFlow would expand all
    (GIF89a).
    """
    raw = tf.io.decode_raw(contents + bytes(9), tf.uint8)
    end = tf.size(raw, tf.int64) - 9

    def step(
        at: tf.Tensor, frame: tf.Tensor, in_blocks: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Past an extension's label, a frame's header, or a block, preceded by its
        length.
        """
        first, flags = tf.unstack(
            tf.cast(tf.gather(raw, at + np.array([0, 9])), tf.int64)
        )
        starts = ~in_blocks & (first == ord(","))
        following = tf.where(first == ord("!"), at + 2, end)
        following = tf.where(starts, at + 11 + tf.gather(_TABLES, flags), following)
        following = tf.where(in_blocks, at + 1 + first, following)
        return following, tf.where(starts, at, frame), ~in_blocks | (first > 0)

    # A chain of blocks, the last of which is empty, follows each extension and frame.
    first = 13 + tf.gather(_TABLES, _header(contents, (10, 1))[0])
    last, frame, unfinished = tf.while_loop(
        lambda at, frame, in_blocks: (at < end) & (in_blocks | (frame == 0)),
        step,
        (first, tf.zeros_like(end), tf.constant(False)),
        maximum_iterations=_MOST_BLOCKS,
    )
    framed = (frame > 0) & (frame + 10 < end)
    contents = _require(framed, ("the GIF has no frame",), contents)
    sides = tf.io.decode_raw(
        tf.strings.substr(contents, frame + 5, 4), tf.uint16, fixed_length=4
    )
    contents = _within(sides[1], sides[0], contents)
    contents = _require(~unfinished, ("the GIF ends within its first frame",), contents)
    # The frame is moved to the corner of the canvas, and the canvas is reduced to its
    # size.
    head = tf.strings.substr(contents, 0, tf.cast(frame + 1, tf.int32)) + bytes(4)
    rest = tf.strings.substr(contents, frame + 5, last - frame - 5)
    return _decoded(head + rest + b";", channels=3)


def _decoded(contents: tf.Tensor, channels: int) -> tf.Tensor:
    image = tf.io.decode_image(contents, channels=channels, expand_animations=False)
    image.set_shape((None, None, channels or None))
    return image


def _orientation(contents: tf.Tensor) -> tf.Tensor:
    """EXIF orientation of a JPEG: int32, 1 to 8; 1 if it has none."""
    # The marker APP1, its length, "Exif", two zeros, and a TIFF structure.
    parts = tf.raw_ops.StringSplitV2(
        input=[contents], sep=b"Exif\0\0", maxsplit=1
    ).values
    before = tf.strings.length(parts[0])
    marker = tf.strings.substr(parts[0], tf.maximum(before, 4) - 4, 2)

    def from_exif() -> tf.Tensor:
        end, is_little = (
            tf.strings.length(parts[1]),
            tf.strings.substr(parts[1], 0, 1) == b"I",
        )

        def words(at: tf.Tensor | int, count: tf.Tensor | int) -> tf.Tensor:
            """Unsigned numbers of two bytes; zeros after the end."""
            size = 2 * count
            text = tf.strings.substr(parts[1], tf.minimum(at, end), size)
            little = tf.io.decode_raw(text, tf.uint16, fixed_length=size)
            big = tf.io.decode_raw(
                text, tf.uint16, little_endian=False, fixed_length=size
            )
            return tf.cast(tf.where(is_little, little, big), tf.int32)

        first = words(4, 2)
        at = tf.where(
            is_little, first[0] + 2**16 * first[1], first[1] + 2**16 * first[0]
        )
        at = tf.where(at < 0, end, at)  # 2**31 and more
        fields = tf.reshape(words(at, 1 + 6 * words(at, 1)[0])[1:], (-1, 6))
        value = tf.reduce_max(tf.where(fields[:, 0] == _ORIENTATION, fields[:, 4], 0))
        return tf.where((value >= 1) & (value <= 8), value, 1)

    found = (tf.size(parts) > 1) & (marker == b"\xff\xe1")
    return tf.cond(found, from_exif, lambda: 1)


def _upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """uint8 (height, width, channels), rotated and mirrored by an EXIF orientation."""
    # `tf.transpose` of integers makes TensorFlow 2.21 write "E0000 ... oneDNN supports
    # DT_UINT8 only on platforms with AVX-512" to stderr, even on CPUs that have it, in
    # a server too. For 12 megapixels this takes 33 ms instead of 19.
    height, width, channels = tf.unstack(tf.shape(image))
    turned = orientation >= 5

    def places(
        length: tf.Tensor, stride: tf.Tensor, mirrored: tuple[int, ...]
    ) -> tf.Tensor:
        found = tf.range(length) * stride
        return tf.where(tf.reduce_any(orientation == mirrored), found[::-1], found)

    rows = places(
        tf.where(turned, width, height), tf.where(turned, 1, width), (3, 4, 7, 8)
    )
    columns = places(
        tf.where(turned, height, width), tf.where(turned, width, 1), (2, 3, 6, 7)
    )
    return tf.gather(tf.reshape(image, [-1, channels]), rows[:, None] + columns)


def _header(contents: tf.Tensor, *places: tuple[int, int]) -> list[tf.Tensor]:
    """Unsigned little-endian numbers in the first bytes of a file; a shorter file ends
    in zeros.

    Each is given by its position and its number of bytes, and returned as int64.
    """
    powers = np.zeros((len(places), _HEADER), np.int64)
    for row, (at, count) in zip(powers, places, strict=True):
        row[at : at + count] = 256 ** np.arange(count)
    raw = tf.io.decode_raw(contents, tf.uint8, fixed_length=_HEADER)
    return tf.unstack(tf.reduce_sum(tf.cast(raw, tf.int64) * powers, axis=1))
