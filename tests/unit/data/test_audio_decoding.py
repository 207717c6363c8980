"""WAV files in a graph, against SciPy and the samples that were written."""

import contextlib
import struct

import numpy as np
import pytest
import scipy.signal
import tensorflow as tf
from peak_memory import peak_growth
from recordings import FLOAT, PCM, chunk, wav

from pipeline.data.audio_decoding import decode_wav, header

RANDOM = np.random.default_rng(0)
RATE = 8000
COUNT = 2000


@pytest.fixture(scope="module")
def decode():
    spec = tf.TensorSpec((), tf.string)
    graph = tf.function(lambda content: decode_wav(content, RATE, COUNT), [spec])
    return lambda content: graph(tf.constant(content)).numpy()


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(
    ("bits", "code"),
    [(8, PCM), (16, PCM), (24, PCM), (32, PCM), (32, FLOAT), (64, FLOAT)],
)
def test_every_kind_of_samples(decode, bits, code, channels, extensible):
    # Whole numbers of 8 bits, which all kinds can hold, and so can their means.
    samples = RANDOM.integers(-60, 60, (500, channels)) * 512
    content = wav(samples, bits=bits, code=code, extensible=extensible)
    expected = np.zeros(COUNT, np.int16)
    expected[:500] = samples.mean(axis=1)
    np.testing.assert_array_equal(decode(content), expected)


@pytest.mark.parametrize("rate", [6000, 11025, 16000, 22051, 44100, 48000])
def test_resampling_is_that_of_scipy(decode, rate):
    samples = (RANDOM.normal(size=rate // 10) * 3000).round()
    divisor = np.gcd(rate, RATE)
    expected = scipy.signal.resample_poly(samples, RATE // divisor, rate // divisor)
    actual = decode(wav(samples, rate))
    np.testing.assert_allclose(actual[: len(expected)], expected, atol=0.51)
    assert not actual[len(expected) :].any()


def test_the_beginning_of_a_long_recording_does_not_depend_on_its_end(decode):
    samples = (RANDOM.normal(size=3 * 44100) * 3000).round()
    whole = decode(wav(samples, 44100))
    expected = scipy.signal.resample_poly(samples, 80, 441)[:COUNT]
    np.testing.assert_allclose(whole, expected, atol=0.51)


def test_floats_beyond_one_are_clipped(decode):
    content = wav(np.array([1e6, -1e6]), bits=32, code=FLOAT)
    assert decode(content)[:2].tolist() == [32767, -32768]


def test_other_chunks_are_skipped_and_a_stream_has_no_size(decode):
    samples = np.arange(100)
    content = wav(samples, extra=chunk(b"LIST", b"odd"))
    np.testing.assert_array_equal(decode(content)[:100], samples)
    size = struct.pack("<I", 200)
    for whole, unknown in (
        (content[4:8], b"\xff\xff\xff\xff"),
        (content[4:8], b"\xff\xff\xff\x7f"),  # of programs with signed sizes
        (b"\xff\xff\xff\xff", b"\0\0\0\0"),
        (b"\0\0\0\0", b"\0\0\0\0"),
    ):
        stream = content.replace(b"data" + size, b"data" + unknown)
        stream = stream[:4] + whole + stream[8:]
        np.testing.assert_array_equal(decode(stream)[:100], samples)


GOOD = wav(np.arange(100))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a WAV file"),
        (b"garbage", "not a WAV file"),
        (b"RIFF\0\0\0\0AVI ", "not a WAV file"),
        (b"ID3\4" + bytes(100), "an MP3 file"),
        (b"\xff\xfb\x90" + bytes(100), "an MP3 file"),
        (b"fLaC" + bytes(100), "a FLAC file"),
        (b"OggS" + bytes(100), "an Ogg file"),
        (GOOD[:30], "without format or samples"),
        (GOOD[:36], "without format or samples"),
        (GOOD[:100], "ends before its header says"),
        (wav(np.zeros(0)), "empty"),
        (wav(np.arange(9), code=2), "of ADPCM, which is compressed"),
        (wav(np.arange(9), code=0x11), "of ADPCM, which is compressed"),
        (wav(np.arange(9), code=7), "of mu-law"),
        (wav(np.arange(9), code=99), "samples of unknown type"),
        (wav(np.arange(9), rate=10), "1000 to 384000 samples a second"),
        (wav(np.array([np.nan]), bits=32, code=FLOAT), "not finite"),
    ],
)
def test_other_files_are_refused_by_name(decode, content, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        decode(content)


def test_damaged_files_never_end_in_another_error(decode):
    for _ in range(300):
        content = bytearray(GOOD)
        for position in RANDOM.integers(0, 50, 3):
            content[position] = RANDOM.integers(256)
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            assert decode(bytes(content)).shape == (COUNT,)


def test_a_rate_that_is_refused_takes_no_memory(decode):
    """The filter for a rate of 4 billion would take gigabytes."""
    content = bytearray(GOOD)
    content[24:28] = (2**32 - 1).to_bytes(4, "little")

    def refuse():
        with pytest.raises(tf.errors.InvalidArgumentError, match="samples a second"):
            decode(bytes(content))

    assert peak_growth(refuse) < 200


def test_the_header_of_a_stereo_file():
    facts = header(tf.constant(wav(np.zeros((30, 2)), 16000, bits=24)))
    assert (int(facts.rate), int(facts.channels), int(facts.bits)) == (16000, 2, 24)
    assert int(facts.frames) == 30
