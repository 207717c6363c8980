"""Decodes images inside the graph: the same in training, in exports and on servers.

Uses only operations of TensorFlow 2.20, the version of the newest TensorFlow Serving.
The size of an image is read from its header first, because a megabyte may expand to
gigabytes. Where time matters, there are few conditions and functions: each takes 10 to
30 us of the 70 that reading and decoding a PNG of 32x32 takes.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.data.image_resizing import add_borders, fit, inner_size, resize
from pipeline.utils.image_formats import MAX_PIXELS, NAMES, SIGNATURES

# Pillow's weights of red, green and blue for gray (ITU-R 601-2), in 65536ths.
_GRAY = (19595, 38470, 7471)
# The first bytes of each format, padded with zeros; a zero matches any byte.
_STARTS = np.array(
    [list(start.ljust(12, b"\0")) for start in SIGNATURES.values()], np.uint8
)
# Without limits, a small file could take minutes or gigabytes: each step of a loop in
# the graph takes 16 to 50 us, each scan of a progressive JPEG takes time proportional
# to its pixels, and each compressed text of a PNG expands to 8 MB.
_MAX_GIF_BLOCKS = 2**17  # of 255 bytes, up to the end of the first frame
_MAX_SCANS_OF_LARGEST = 32  # of a JPEG with `MAX_PIXELS` pixels; about ten are usual
_MAX_SCANS = 512  # of any JPEG
# A marker, and the higher byte of the length of what follows, which is at most 14.
_SCAN = b"\xff\xda\0"
_MAX_PNG_TEXTS = 16
_SMALL_PNG_BYTES = 2**16  # the texts of a smaller file are not counted
_HEADER_BYTES = 34  # enough for the sizes of a GIF, BMP or WebP
# Bytes of a color table in a GIF, by the flags before it.
_COLOR_TABLE_BYTES = np.array(
    [3 * 2 ** (1 + flags % 8) if flags >= 128 else 0 for flags in range(256)]
)
DAMAGE = "Improper call to JPEG library"
"""Part of a line about an image that cannot be decoded, which is reported as such."""
WARNINGS = (
    "Corrupt JPEG data",
    "Premature end of JPEG",
    "Invalid SOS parameters for sequential JPEG",
    "Unknown Adobe color transform",
    "Inconsistent progression sequence",
    "unknown JFIF revision number",
    "Application transferred too",
    "PNG warning:",
    "Only partially decoded the GIF",
    DAMAGE,
)
"""Parts of the lines that decoders write to stderr, without the name of the file."""
_ORIENTATION = 0x0112  # EXIF 2.3, 4.6.4 A
_EXIF_BYTES = 2**18  # EXIF comes before or after color profiles and thumbnails
_RATIOS = (2, 4, 8)  # by which libjpeg can reduce a JPEG while decoding it
_JPEG_START = int.from_bytes(SIGNATURES["JPEG"], signed=True)
# The beginning of a PNG before width and height, as numbers of four bytes.
_PNG_START = np.frombuffer(SIGNATURES["PNG"] + b"\0\0\0\x0dIHDR", ">i4")


def pixels(contents: tf.Tensor, channels: int, bits: int = 16) -> tf.Tensor:
    """Decodes a JPEG, PNG, GIF, BMP or WebP to uint8 (height, width, channels).

    A JPEG is rotated according to its EXIF orientation, and decoded with the accurate
    cosine transform, so that the pixels equal Pillow's bit for bit. Alpha is dropped.
    16-bit PNGs keep the higher 8 of the `bits` that they use. Gray is the luma of ITU-R
    601-2. Of a GIF, only the first frame is decoded, without the canvas around it.

    Args:
        contents: The bytes of a file, a string of shape ().
        channels: 3 for RGB, 1 for grayscale.
        bits: Values of 2**bits and more in a 16-bit PNG become 255.

    Raises:
        tf.errors.InvalidArgumentError: The file has another format, is damaged, or has
            more than `MAX_PIXELS` pixels, which is detected before decoding.
    """
    return _decode_function(channels, bits)(tf.ensure_shape(contents, ()))


def resized(
    contents: tf.Tensor,
    height: int,
    width: int,
    channels: int,
    bits: int = 16,
    whole: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes an image and resizes it to uint8 (height, width, channels).

    The result is that of `pixels` and `resize`, except for large JPEGs: libjpeg reduces
    them to a half, a quarter or an eighth while decoding, as long as no side becomes
    shorter than wanted. Of photographs, the pixels then differ by 0.1 to 0.6 levels on
    average, and by up to 34 at edges, which stay sharper; for noise, by more.

    Args:
        contents: The bytes of a file, a string of shape ().
        height: Height of the result.
        width: Width of the result.
        channels: As for `pixels`.
        bits: As for `pixels`.
        whole: Keep the aspect ratio, and add black at two sides.

    Returns:
        The image, and the height and width of the original after its rotation, float32
        (2,).

    Raises:
        tf.errors.InvalidArgumentError: As for `pixels`.
    """
    decode = _resize_function(height, width, channels, bits, whole)
    image, original = decode(tf.ensure_shape(contents, ()))
    return tf.ensure_shape(image, (height, width, channels)), original


@functools.cache
def _decode_function(channels: int, bits: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """A graph shared by all callers, because tracing it takes a fifth of a second."""
    return _traced(_pixels, channels=channels, bits=bits)


@functools.cache
def _resize_function(
    height: int, width: int, channels: int, bits: int, whole: bool
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """The graph of `resized`."""
    size = {"height": height, "width": width}
    return _traced(_resized, **size, channels=channels, bits=bits, whole=whole)


def _traced(decode: Callable, attributes: Any = None, **options: Any) -> Callable:
    return tf.function(
        functools.partial(decode, **options),
        [tf.TensorSpec((), tf.string)],
        autograph=False,
        experimental_attributes=attributes,
    )


def _separate(decode: Callable, **options: Any) -> Callable:
    """A function that is not inlined: if inlined, branches not taken would cost as much
    as decoding 32x32 pixels.
    """
    return _traced(decode, {"_noinline": True}, **options)


@functools.cache
def _decoders(bits: int) -> list[Callable[[tf.Tensor], tf.Tensor]]:
    """A decoding function for each format, in the order of `SIGNATURES`."""
    jpeg, *others = map(_separate, (_jpeg, _gif, _bmp, _webp))
    return [jpeg, _separate(_png, bits=bits), *others]


def _resized(
    contents: tf.Tensor, height: int, width: int, channels: int, bits: int, whole: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """`resized`, with short ways for JPEGs, and for PNGs that have the size."""
    size = {"height": height, "width": width, "channels": channels, "whole": whole}
    header = tf.io.decode_raw(contents, tf.int32, little_endian=False, fixed_length=24)
    # Another number of bits needs a look at the file.
    is_ready = tf.reduce_all(header == [*_PNG_START, width, height]) & (bits == 16)
    is_ready &= tf.strings.length(contents) <= _SMALL_PNG_BYTES
    is_jpeg = tf.bitwise.right_shift(header[0], 8) == _JPEG_START
    kind = tf.where(is_ready, 2, tf.cast(is_jpeg, tf.int32))

    def decode_png() -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.io.decode_png(contents, channels=3)
        return _convert(image, channels), tf.constant([height, width], tf.float32)

    ways = [
        functools.partial(_separate(_resized_any, bits=bits, **size), contents),
        functools.partial(_separate(_resized_jpeg, **size), contents),
        decode_png,
    ]
    return tf.switch_case(kind, ways)


def _resized_any(
    contents: tf.Tensor, height: int, width: int, channels: int, bits: int, whole: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    image = _pixels(contents, channels, bits)
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    return fit(image, height, width, whole), size


def _pixels(contents: tf.Tensor, channels: int, bits: int) -> tf.Tensor:
    head = tf.io.decode_raw(contents, tf.uint8, fixed_length=12)
    matches = tf.reduce_all((head == _STARTS) | (_STARTS == 0), axis=1)
    contents = _require(
        tf.reduce_any(matches), (f"the file is not a {NAMES} image",), contents
    )
    decoders = [functools.partial(decode, contents) for decode in _decoders(bits)]
    image = tf.switch_case(tf.argmax(matches, output_type=tf.int32), decoders)
    image.set_shape((None, None, 3))
    return _convert(image, channels)


def _convert(image: tf.Tensor, channels: int) -> tf.Tensor:
    """RGB in 3 channels, or its luma in one."""
    if channels == 3:
        return image
    # Gray pixels are unchanged: the weights sum to 65536.
    weighted = tf.cast(image, tf.int32) * _GRAY
    luma = tf.reduce_sum(weighted, axis=-1, keepdims=True)
    return tf.cast(tf.bitwise.right_shift(luma + 2**15, 16), tf.uint8)


def _require(
    condition: tf.Tensor, message: tuple[Any, ...], value: tf.Tensor
) -> tf.Tensor:
    """Returns `value` if the condition holds; `message` has the parts of the error."""
    # `tf.debugging.Assert` would trace two functions if a part is int64.
    check = tf.raw_ops.Assert(condition=condition, data=list(message))
    with tf.control_dependencies([check]):
        return tf.identity(value)


def _require_size(
    height: tf.Tensor, width: tf.Tensor, contents: tf.Tensor
) -> tf.Tensor:
    """Returns `contents` unless its header declares no pixels or too many."""
    height = tf.cast(height, tf.int64)
    width = tf.cast(width, tf.int64)
    # A quotient, because the product of two 32-bit sides could overflow.
    is_valid = height <= MAX_PIXELS // tf.maximum(width, 1)
    is_valid &= (height > 0) & (width > 0)
    error = f"the image has no pixels, or more than the limit of {MAX_PIXELS}: height"
    return _require(is_valid, (error, height, "width", width), contents)


def _jpeg(contents: tf.Tensor) -> tf.Tensor:
    contents, _ = _checked_jpeg(contents)
    return _upright(_decode_jpeg(contents), _orientation(contents))


def _resized_jpeg(
    contents: tf.Tensor, height: int, width: int, channels: int, whole: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    contents, size = _checked_jpeg(contents)
    orientation = _orientation(contents)

    def turned(sides: Any) -> tf.Tensor:
        """Height and width before the rotation for those after it, or vice versa."""
        sides = tf.convert_to_tensor(sides)
        return tf.where(orientation >= 5, tf.reverse(sides, [0]), sides)

    inner: Any = (height, width)
    if whole:
        inner = inner_size(tf.cast(turned(size), tf.float32), height, width)
    wanted = turned(inner)
    least = wanted * np.array(_RATIOS)[:, None]
    fits = tf.reduce_all(size >= least, axis=1)
    count = tf.reduce_sum(tf.cast(fits, tf.int32))
    size = tf.cast(size, tf.float32)

    def decode_all() -> tf.Tensor:
        image = _convert(_upright(_decode_jpeg(contents), orientation), channels)
        return resize(image, inner[0], inner[1])

    def decode_reduced() -> tf.Tensor:
        ways = [functools.partial(_decode_jpeg, contents, ratio) for ratio in _RATIOS]
        image = _convert(tf.switch_case(count - 1, ways), channels)
        # The last row and column may be only partly inside the picture.
        extent = size / tf.cast(tf.bitwise.left_shift(1, count), tf.float32)
        image = resize(image, wanted[0], wanted[1], extent)
        # After resizing: to rotate 1000x750 pixels takes 4 ms.
        return _upright(image, orientation)

    image = tf.cond(count > 0, decode_reduced, decode_all)
    if whole:
        image = add_borders(image, height, width)
    return tf.ensure_shape(image, (height, width, channels)), turned(size)


def _decode_jpeg(contents: tf.Tensor, ratio: int = 1) -> tf.Tensor:
    """uint8 (height / ratio, width / ratio, 3), rounded up."""
    # The default transform differs from the accurate one in two of three pixels, by up
    # to 4 levels.
    return tf.io.decode_jpeg(
        contents, channels=3, ratio=ratio, dct_method="INTEGER_ACCURATE"
    )


def _checked_jpeg(contents: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the contents, and height and width before rotation, int32 (2,).

    Fails for more pixels or scans than allowed.
    """
    size = tf.io.extract_jpeg_shape(contents)[:2]  # reads the header alone
    contents = _require_size(size[0], size[1], contents)
    # libjpeg has no limit. These bytes are not within a scan.
    parts = tf.raw_ops.StringSplitV2(
        input=tf.reshape(contents, [1]), sep=_SCAN, maxsplit=_MAX_SCANS
    )
    scans = tf.size(parts.values, tf.int64) - 1
    pixels = tf.reduce_prod(tf.cast(size, tf.int64))
    is_valid = scans * pixels <= _MAX_SCANS_OF_LARGEST * MAX_PIXELS
    is_valid &= scans < _MAX_SCANS
    error = "the JPEG has too many scans for its pixels"
    return _require(is_valid, (error,), contents), size


def _png(contents: tf.Tensor, bits: int) -> tf.Tensor:
    # As signed numbers: more than 2**31 is rejected as less than 1.
    header = tf.io.decode_raw(contents, tf.int32, little_endian=False, fixed_length=24)
    contents = _require_size(header[5], header[4], contents)
    too_many_texts = rf"(\C*?[zi]TXt){{{_MAX_PNG_TEXTS + 1}}}\C*"
    is_small = tf.strings.length(contents) <= _SMALL_PNG_BYTES
    searched = tf.where(is_small, b"", contents)
    is_valid = ~tf.strings.regex_full_match(searched, too_many_texts)
    error = f"the PNG has more than {_MAX_PNG_TEXTS} texts"
    contents = _require(is_valid, (error,), contents)

    def decode_higher_8() -> tf.Tensor:
        return tf.io.decode_png(contents, channels=3)

    def decode_used_bits() -> tf.Tensor:
        values = tf.io.decode_png(contents, channels=3, dtype=tf.uint16)
        values = tf.bitwise.right_shift(tf.cast(values, tf.int32) * 256, bits)
        return tf.cast(tf.minimum(values, 255), tf.uint8)

    if bits == 16:
        return decode_higher_8()
    depth = tf.strings.substr(contents, 24, 1)
    depth = tf.io.decode_raw(depth, tf.uint8, fixed_length=1)
    return tf.cond(depth[0] == 16, decode_used_bits, decode_higher_8)


def _webp(contents: tf.Tensor) -> tf.Tensor:
    """Lossy, lossless or extended, but not animated (RFC 9649, sections 2.5 to 2.7)."""
    lossy = int.from_bytes(b"VP8 ", "little")
    lossless = int.from_bytes(b"VP8L", "little")
    extended = int.from_bytes(b"VP8X", "little")
    positions = (12, 4), (20, 1), (26, 2), (28, 2), (21, 4), (24, 3), (27, 3)
    kind, flags, width, height, packed, columns, rows = _header(contents, *positions)
    # The size stays 0, which is refused, if the kind is none of the three.
    size = tf.where(kind == lossy, [height % 2**14, width % 2**14], 0)
    lossless_size = tf.stack([packed // 2**14 % 2**14, packed % 2**14]) + 1
    size = tf.where(kind == lossless, lossless_size, size)
    size = tf.where(kind == extended, tf.stack([rows, columns]) + 1, size)
    contents = _require_size(size[0], size[1], contents)
    # TensorFlow 2.21 crashes on an animation without alpha.
    is_still = (kind != extended) | (flags % 4 < 2)
    contents = _require(is_still, ("an animated WebP cannot be read",), contents)
    # TensorFlow refuses `channels=3` for a file with alpha.
    return _decode_image(contents, channels=0)[..., :3]


def _bmp(contents: tf.Tensor) -> tf.Tensor:
    """Uncompressed, with 8, 24 or 32 bits.

    TensorFlow decodes 8 bits as gray, although they are indices of a palette.
    """
    positions = (14, 4), (18, 4), (22, 4), (28, 2), (30, 4)
    header, width, height, bits, compression = _header(contents, *positions)
    is_plain = (header >= 40) & (compression == 0)
    is_plain &= tf.reduce_any(bits == (8, 24, 32))
    contents = _require(
        is_plain, ("the BMP must be uncompressed with 8, 24 or 32 bits",), contents
    )
    # The height is negative if the first row is the top one.
    height = tf.minimum(height, 2**32 - height)
    contents = _require_size(height, width, contents)
    image = _decode_image(contents, channels=3)

    def apply_palette() -> tf.Tensor:
        raw = tf.io.decode_raw(contents, tf.uint8)
        # Four bytes per color: blue, green, red, unused.
        start = 14 + header + tf.constant([2, 1, 0], tf.int64)
        colors = start + 4 * tf.cast(image[..., :1], tf.int64)
        is_complete = tf.reduce_all(colors < tf.size(raw, tf.int64))
        error = "the palette of the BMP is incomplete"
        return tf.gather(raw, _require(is_complete, (error,), colors))

    return tf.cond(bits == 8, apply_palette, lambda: image)


def _gif(contents: tf.Tensor) -> tf.Tensor:
    """The first frame (GIF89a). The rest is cut off: TensorFlow expands all frames."""
    raw = tf.io.decode_raw(contents + bytes(9), tf.uint8)
    end = tf.size(raw, tf.int64) - 9

    def step(
        at: tf.Tensor, frame: tf.Tensor, in_blocks: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Moves past the label of an extension, the header of a frame, or a block."""
        head = tf.gather(raw, at + np.array([0, 9]))
        first, flags = tf.unstack(tf.cast(head, tf.int64))
        is_frame = ~in_blocks & (first == ord(","))
        after_header = at + 11 + tf.gather(_COLOR_TABLE_BYTES, flags)
        following = tf.where(first == ord("!"), at + 2, end)
        following = tf.where(is_frame, after_header, following)
        # A block is preceded by its length.
        following = tf.where(in_blocks, at + 1 + first, following)
        return following, tf.where(is_frame, at, frame), ~in_blocks | (first > 0)

    # A chain of blocks, the last of which is empty, follows each extension and frame.
    first = 13 + tf.gather(_COLOR_TABLE_BYTES, _header(contents, (10, 1))[0])
    last, frame, is_unfinished = tf.while_loop(
        lambda at, frame, in_blocks: (at < end) & (in_blocks | (frame == 0)),
        step,
        (first, tf.zeros_like(end), tf.constant(False)),
        maximum_iterations=_MAX_GIF_BLOCKS,
    )
    has_frame = (frame > 0) & (frame + 10 < end)
    contents = _require(has_frame, ("the GIF has no frame",), contents)
    sides = tf.strings.substr(contents, frame + 5, 4)
    sides = tf.io.decode_raw(sides, tf.uint16, fixed_length=4)
    contents = _require_size(sides[1], sides[0], contents)
    error = "the GIF ends within its first frame"
    contents = _require(~is_unfinished, (error,), contents)
    # Moves the frame to the corner of the canvas, which gets the size of the frame.
    head = tf.strings.substr(contents, 0, tf.cast(frame + 1, tf.int32)) + bytes(4)
    rest = tf.strings.substr(contents, frame + 5, last - frame - 5)
    return _decode_image(head + rest + b";", channels=3)


def _decode_image(contents: tf.Tensor, channels: int) -> tf.Tensor:
    image = tf.io.decode_image(contents, channels=channels, expand_animations=False)
    image.set_shape((None, None, channels or None))
    return image


def _orientation(contents: tf.Tensor) -> tf.Tensor:
    """EXIF orientation of a JPEG: int32, 1 to 8; 1 if it has none."""
    # The marker APP1, its length, "Exif", two zeros, and a TIFF structure.
    begin = tf.strings.substr([contents], 0, _EXIF_BYTES)
    parts = tf.raw_ops.StringSplitV2(input=begin, sep=b"Exif\0\0", maxsplit=1).values
    before = tf.strings.length(parts[0])
    marker = tf.strings.substr(parts[0], tf.maximum(before, 4) - 4, 2)

    def read_exif() -> tf.Tensor:
        end = tf.strings.length(parts[1])
        is_little_endian = tf.strings.substr(parts[1], 0, 1) == b"I"

        def words(at: tf.Tensor | int, count: tf.Tensor | int) -> tf.Tensor:
            """Unsigned numbers of two bytes; zeros after the end."""
            size = 2 * count
            text = tf.strings.substr(parts[1], tf.minimum(at, end), size)
            little = tf.io.decode_raw(text, tf.uint16, fixed_length=size)
            big = tf.io.decode_raw(
                text, tf.uint16, little_endian=False, fixed_length=size
            )
            return tf.cast(tf.where(is_little_endian, little, big), tf.int32)

        first, second = tf.unstack(words(4, 2))
        at = tf.where(is_little_endian, first + 2**16 * second, second + 2**16 * first)
        at = tf.where(at < 0, end, at)  # 2**31 and more
        fields = tf.reshape(words(at, 1 + 6 * words(at, 1)[0])[1:], (-1, 6))
        value = tf.reduce_max(tf.where(fields[:, 0] == _ORIENTATION, fields[:, 4], 0))
        return tf.where((value >= 1) & (value <= 8), value, 1)

    has_exif = (tf.size(parts) > 1) & (marker == b"\xff\xe1")
    return tf.cond(has_exif, read_exif, lambda: 1)


def _upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """uint8 (height, width, channels), rotated and mirrored by an EXIF orientation."""
    turn = functools.partial(_turn, image, orientation)
    return tf.cond(orientation == 1, lambda: image, turn)


def _turn(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    # `tf.transpose` of integers makes TensorFlow 2.21 write "E0000 ... oneDNN supports
    # DT_UINT8 only on platforms with AVX-512" to stderr, even on CPUs that have it, in
    # a server too. For 12 megapixels this takes 33 ms instead of 19.
    height, width, channels = tf.unstack(tf.shape(image))
    is_rotated = orientation >= 5

    def offsets(
        length: tf.Tensor, stride: tf.Tensor, reversing: tuple[int, ...]
    ) -> tf.Tensor:
        """Offsets of pixels along an axis, for orientations that may reverse it."""
        ascending = tf.range(length) * stride
        is_reversed = tf.reduce_any(orientation == reversing)
        return tf.where(is_reversed, ascending[::-1], ascending)

    rows = offsets(
        tf.where(is_rotated, width, height),
        tf.where(is_rotated, 1, width),
        reversing=(3, 4, 7, 8),
    )
    columns = offsets(
        tf.where(is_rotated, height, width),
        tf.where(is_rotated, width, 1),
        reversing=(2, 3, 6, 7),
    )
    return tf.gather(tf.reshape(image, [-1, channels]), rows[:, None] + columns)


def _header(contents: tf.Tensor, *positions: tuple[int, int]) -> list[tf.Tensor]:
    """Unsigned little-endian numbers in the header of a file, as int64.

    `positions` has the position and the number of bytes of each. A file that is too
    short is padded with zeros.
    """
    powers = np.zeros((len(positions), _HEADER_BYTES), np.int64)
    for row, (at, count) in zip(powers, positions, strict=True):
        row[at : at + count] = 256 ** np.arange(count)
    raw = tf.io.decode_raw(contents, tf.uint8, fixed_length=_HEADER_BYTES)
    return tf.unstack(tf.reduce_sum(tf.cast(raw, tf.int64) * powers, axis=1))
