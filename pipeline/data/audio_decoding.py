"""Decodes WAV files with core operations of TensorFlow, in training as in serving.

The format: Microsoft and IBM, "Multimedia Programming Interface and Data Specifications
1.0", 1991, and Microsoft's WAVEFORMATEXTENSIBLE.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipeline.utils import compressed_sound

LOWEST_RATE = 1000
MAX_RATE = 384_000
_PCM = 1
_FLOAT = 3
_EXTENSIBLE = 0xFFFE
_COMPRESSED = {
    2: "ADPCM",
    6: "A-law",
    7: "mu-law",
    0x11: "ADPCM",
    0x31: "GSM",
    0x50: "MPEG audio",
    0x55: "MP3",
}
_OTHER_FILES = {"an MP3": b"ID3", "a FLAC": b"fLaC", "an Ogg": b"OggS"}
_REMEDY = "convert it to PCM, as `ffmpeg -i OLD -c:a pcm_s16le NEW.wav` does"
# Sizes of a stream that was written without an end, by programs that cannot seek:
# 2**31 - 1 or 2**32 - 1, some less a header, or 0 if that of the whole file is unknown.
_UNKNOWN_SIZE = 0x7FFFF000
_MAX_CHANNELS = 64
# As in scipy.signal.resample_poly: zero crossings on each side of the filter, and the
# shape of its Kaiser window.
_ZERO_CROSSINGS = 10
_BETA = 5.0


class Header(NamedTuple):
    """What the chunks of a file say; tensors of shape ()."""

    code: tf.Tensor
    """1: integers, 3: floats."""
    channels: tf.Tensor
    rate: tf.Tensor
    """Samples per second."""
    bits: tf.Tensor
    """Of a sample of a channel."""
    start: tf.Tensor
    """Position of the first sample, in bytes."""
    frames: tf.Tensor
    """Samples of each channel."""


def header(content: tf.Tensor) -> Header:
    """Reads the chunks of a WAV file, int64.

    Raises InvalidArgumentError if it is not one of uncompressed samples, has none, or
    ends early. A size as programs write that cannot seek stands for the rest of the
    file.
    """
    size = tf.cast(tf.strings.length(content), tf.int64)
    start = tf.strings.substr(content, 0, 4)
    message = "it cannot be read as FLAC, MP3 or Ogg; copy it again"
    checks = [(content != compressed_sound.DAMAGED, message)]
    for kind, beginning in _OTHER_FILES.items():
        is_other = tf.strings.substr(start, 0, len(beginning)) == beginning
        checks.append((~is_other, f"{kind} file, not a WAV file; {_REMEDY}"))
    # A frame of MP3 begins with 11 ones.
    first, second = _numbers(tf.strings.join([start, "\0\0"]), (1, 1))
    is_mp3 = (first == 0xFF) & (second >= 0xE0)
    checks.append((~is_mp3, f"an MP3 file, not a WAV file; {_REMEDY}"))
    is_wav = (size >= 12) & (start == b"RIFF")
    with _require(*checks, (is_wav, "not a WAV file")):
        content = tf.identity(content)
    is_wav = tf.strings.substr(content, 8, 4) == b"WAVE"
    with _require((is_wav, "not a WAV file")):
        content = tf.identity(content)

    def is_before_data(at: tf.Tensor, _: tf.Tensor, data: tf.Tensor) -> tf.Tensor:
        return (data < 0) & (at + 8 <= size)

    def next_chunk(
        at: tf.Tensor, format: tf.Tensor, data: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        name = tf.strings.substr(content, at, 4)
        length = _numbers(tf.strings.substr(content, at + 4, 4), (4,))[0]
        format = tf.where(name == b"fmt ", at + 8, format)
        data = tf.where(name == b"data", at + 8, data)
        return at + 8 + length + length % 2, format, data

    begin = tf.constant(12, tf.int64)
    none = tf.constant(-1, tf.int64)
    _, format, data = tf.while_loop(is_before_data, next_chunk, (begin, none, none))
    has_chunks = (format >= 0) & (data >= 0)
    with _require((has_chunks, "a WAV file without format or samples; replace it")):
        format = tf.identity(format)
    fields = tf.strings.substr(content, format, 26)
    fields = tf.strings.substr(tf.strings.join([fields, "\0" * 26]), 0, 26)
    numbers = _numbers(fields, (2, 2, 4, 4, 2, 2, 2, 2, 4, 2))
    code, channels, rate, bits = numbers[0], numbers[1], numbers[2], numbers[5]
    code = tf.where(code == _EXTENSIBLE, numbers[9], code)
    checks = []
    for number, name in _COMPRESSED.items():
        message = f"a WAV file of {name}, which is compressed; {_REMEDY}"
        checks.append((code != number, message))
    are_integers = (code == _PCM) & tf.reduce_any(bits == [8, 16, 24, 32])
    are_floats = (code == _FLOAT) & tf.reduce_any(bits == [32, 64])
    message = f"a WAV file of samples of unknown type; {_REMEDY}"
    checks.append((are_integers | are_floats, message))
    is_valid = (channels >= 1) & (channels <= _MAX_CHANNELS)
    checks.append((is_valid, f"the WAV file must have 1 to {_MAX_CHANNELS} channels"))
    is_valid = (rate >= LOWEST_RATE) & (rate <= MAX_RATE)
    message = f"the WAV file must have {LOWEST_RATE} to {MAX_RATE} samples a second"
    # Everything that is computed from these waits for the checks: the filter for a rate
    # of 4 billion would take gigabytes.
    with _require(*checks, (is_valid, message)):
        facts = (code, channels, rate, bits, data)
        code, channels, rate, bits, data = map(tf.identity, facts)
        length = _numbers(tf.strings.substr(content, data - 4, 4), (4,))[0]
    rest = size - data
    whole = _numbers(tf.strings.substr(content, 4, 4), (4,))[0]
    is_stream = (whole == 0) | (whole >= _UNKNOWN_SIZE)
    is_unknown = (length >= _UNKNOWN_SIZE) | ((length == 0) & is_stream)
    length = tf.where(is_unknown, rest, length)
    message = "the WAV file ends before its header says; copy it again"
    frames = length // (channels * bits // 8)
    with _require((length <= rest, message), (frames > 0, "the WAV file is empty")):
        frames = tf.identity(frames)
    return Header(code, channels, rate, bits, data, frames)


def decode_wav(content: tf.Tensor, rate: int, count: int) -> tf.Tensor:
    """The first `count` samples of a WAV file at `rate` samples a second, int16.

    Channels are averaged; a shorter file is filled with zeros at its end. Raises
    InvalidArgumentError as `header` does, and for samples that are not finite.
    """
    facts = header(content)
    # The filter of the last sample also needs what follows it.
    needed = count * facts.rate // rate + 2
    needed += _ZERO_CROSSINGS * (facts.rate // rate + 2)
    frames = tf.minimum(facts.frames, needed)
    bytes_per_frame = facts.channels * facts.bits // 8
    data = tf.strings.substr(content, facts.start, frames * bytes_per_frame)
    samples = _decode_numbers(data, facts)
    samples = tf.reshape(samples, tf.stack([-1, tf.cast(facts.channels, tf.int32)]))
    samples = tf.reduce_mean(samples, axis=1)
    with _require(
        (tf.reduce_all(tf.math.is_finite(samples)), "samples are not finite")
    ):
        samples = tf.identity(samples)
    samples = tf.cond(
        facts.rate == rate, lambda: samples, lambda: resample(samples, facts.rate, rate)
    )
    samples = to_int16(samples[:count])
    samples = tf.pad(samples, [[0, count - tf.size(samples)]])
    return tf.ensure_shape(samples, (count,))


def to_int16(samples: tf.Tensor) -> tf.Tensor:
    """Converts floats from -1 to 1; others are clipped."""
    return tf.cast(
        tf.round(tf.clip_by_value(samples * 2**15, -(2**15), 32767)), "int16"
    )


def _decode_numbers(data: tf.Tensor, facts: Header) -> tf.Tensor:
    """The numbers of all channels, float32 (n,), integers scaled to -1 ... 1."""

    def raw(dtype: tf.DType, scale: float) -> Callable[[], tf.Tensor]:
        return lambda: tf.cast(tf.io.decode_raw(data, dtype), tf.float32) / scale

    def unsigned() -> tf.Tensor:
        return (tf.cast(tf.io.decode_raw(data, tf.uint8), tf.float32) - 128) / 128

    def three_bytes() -> tf.Tensor:
        parts = tf.cast(tf.io.decode_raw(data, tf.uint8), tf.int32)
        parts = tf.reshape(parts, (-1, 3))
        # In the upper three bytes, so that the sign is in its place.
        values = tf.reduce_sum(parts * [1 << 8, 1 << 16, 1 << 24], axis=1)
        return tf.cast(values, tf.float32) / 2.0**31

    branches = {
        0: unsigned,
        1: raw(tf.int16, 2.0**15),
        2: three_bytes,
        3: raw(tf.int32, 2.0**31),
        4: raw(tf.float32, 1.0),
        5: raw(tf.float64, 1.0),
    }
    bits_of_integers = tf.cast(facts.bits // 8 - 1, tf.int32)
    bits_of_floats = tf.cast(3 + facts.bits // 32, tf.int32)
    index = tf.where(facts.code == _PCM, bits_of_integers, bits_of_floats)
    return tf.switch_case(index, branches)


def resample(samples: tf.Tensor, old: tf.Tensor, new: int) -> tf.Tensor:
    """Samples (n,) at the rate `new` instead of `old`, float32 (ceil(n * new / old),).

    Nothing above half the lower rate remains. The filter is that of
    `scipy.signal.resample_poly`, a sinc function in a Kaiser window.
    """
    old = tf.cast(old, tf.int64)
    divisor = _greatest_common_divisor(old, tf.constant(new, tf.int64))
    up = new // divisor
    down = old // divisor
    half = _ZERO_CROSSINGS * tf.maximum(up, down)
    kernel = _kernel(half, up, down)
    count = tf.size(samples, out_type=tf.int64)
    # Output n is at n * down / up samples: a whole number and a phase.
    position = tf.range((count * up + down - 1) // down) * down
    whole = position // up
    phase = position % up
    taps = half // up + 1
    padded = tf.pad(samples, [[taps, taps + 1]])

    def add(tap: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        offset = phase - tap * up
        is_inside = tf.abs(offset) <= half
        weight = tf.gather(kernel, tf.clip_by_value(offset + half, 0, 2 * half))
        value = tf.gather(padded, tf.minimum(whole, count) + tap + taps)
        return tap + 1, total + tf.where(is_inside, weight * value, 0.0)

    zeros = tf.zeros_like(position, tf.float32)
    _, total = tf.while_loop(lambda tap, _: tap <= taps, add, (-taps, zeros))
    return total


def _kernel(half: tf.Tensor, up: tf.Tensor, down: tf.Tensor) -> tf.Tensor:
    """The filter at the common rate, float32 (2 * half + 1,)."""
    offsets = tf.cast(tf.range(-half, half + 1), tf.float64)
    cutoff = tf.cast(tf.maximum(up, down), tf.float64)
    angle = offsets * (np.pi / cutoff)
    is_center = tf.equal(offsets, 0)
    ones = tf.ones_like(angle)
    sinc = tf.where(is_center, ones, tf.sin(angle) / tf.where(is_center, ones, angle))
    ratio = offsets / tf.cast(half, tf.float64)
    window = tf.math.bessel_i0(_BETA * tf.sqrt(tf.maximum(1 - ratio**2, 0)))
    kernel = sinc * window
    kernel *= tf.cast(up, tf.float64) / tf.reduce_sum(kernel)
    return tf.cast(kernel, tf.float32)


def _greatest_common_divisor(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    divisor, _ = tf.while_loop(lambda a, b: b > 0, lambda a, b: (b, a % b), (a, b))
    return divisor


def _numbers(content: tf.Tensor, sizes: tuple[int, ...]) -> list[tf.Tensor]:
    """Unsigned little-endian integers of these sizes in bytes, int64."""
    parts = tf.cast(tf.io.decode_raw(content, tf.uint8), tf.int64)
    numbers = []
    start = 0
    for size in sizes:
        powers = tf.constant([256**power for power in range(size)], tf.int64)
        numbers.append(tf.reduce_sum(parts[start : start + size] * powers))
        start += size
    return numbers


def _require(*checks: tuple[tf.Tensor, str]) -> tf.control_dependencies:
    """What is created inside fails unless all conditions hold."""
    asserts = [tf.debugging.Assert(is_good, [text]) for is_good, text in checks]
    return tf.control_dependencies(asserts)
