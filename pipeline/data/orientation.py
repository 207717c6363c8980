"""Which way up a JPEG is: the orientation that its EXIF data tell, and a picture turned by it."""

from collections.abc import Callable

import tensorflow as tf

from pipeline.data.raw_numbers import number

MOST_SEGMENTS = 256
"""In front of the EXIF data, which stand first: a step of a walk in the graph takes 16 to 50 us."""
_TAG = 0x0112  # EXIF 2.3, 4.6.4 A


def of(raw: tf.Tensor) -> tf.Tensor:
    """EXIF orientation of a JPEG's bytes (uint8): int64, 1 ... 8; 1 where it says none."""

    def exif(at: tf.Tensor) -> tf.Tensor:
        # Marker APP1, its length, `Exif`, two zeros.
        return (number(raw, at, 2, False) == 0xFFE1) & (
            number(raw, at + 4, 6, False) == int.from_bytes(b"Exif\0\0", "big")
        )

    def searching(at: tf.Tensor) -> tf.Tensor:
        marker = number(raw, at, 2, False)
        # Segments end where the scan (SOS) or the picture (EOI) does; what is no marker is damage.
        segment = (marker >= 0xFF01) & (marker != 0xFFDA) & (marker != 0xFFD9)
        return segment & ~exif(at) & (at < tf.size(raw, tf.int64))

    def following(at: tf.Tensor) -> tuple[tf.Tensor]:
        fill = number(raw, at, 2, False) == 0xFFFF
        return (at + tf.where(fill, tf.constant(1, tf.int64), 2 + number(raw, at + 2, 2, False)),)

    start = (tf.constant(2, tf.int64),)
    (at,) = tf.while_loop(searching, following, start, maximum_iterations=MOST_SEGMENTS)
    base = at + 10  # of the TIFF structure, from which its offsets count
    little = number(raw, base, 1) == ord("I")
    directory = base + number(raw, base + 4, 4, little)
    count = tf.where(exif(at), number(raw, directory, 2, little), 0)
    entries = directory + 2 + 12 * tf.range(count)
    tags = number(raw, entries, 2, little)
    values = number(raw, entries + 8, 2, little)
    value = tf.reduce_max(tf.where(tags == _TAG, values, 0))
    return tf.where(exif(at) & (value >= 1) & (value <= 8), value, 1)


def upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """uint8 (height, width, channels), turned and mirrored as an orientation of 1 ... 8 asks."""

    def among(*orientations: int) -> tf.Tensor:
        return tf.reduce_any(orientation == orientations)

    def when(condition: tf.Tensor, change: Callable, image: tf.Tensor) -> tf.Tensor:
        return tf.cond(condition, lambda: change(image), lambda: image)

    image = when(orientation >= 5, _transposed, image)
    image = when(among(2, 3, 6, 7), lambda i: tf.reverse(i, [1]), image)
    return when(among(3, 4, 7, 8), lambda i: tf.reverse(i, [0]), image)


def _transposed(image: tf.Tensor) -> tf.Tensor:
    # `tf.transpose` of whole numbers has TensorFlow 2.21 write "E0000 ... oneDNN supports DT_UINT8
    # only on platforms with AVX-512" to stderr, on CPUs that have it; a server's too. Of 12
    # megapixels this takes 33 ms in place of 19.
    height, width, channels = tf.unstack(tf.shape(image))
    places = tf.range(width)[:, None] + width * tf.range(height)
    return tf.gather(tf.reshape(image, [-1, channels]), places)
