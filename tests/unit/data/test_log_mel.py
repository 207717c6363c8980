"""Spectrograms, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.data.log_mel import frames_of, log_mel

RANDOM = np.random.default_rng(0)
FRAMES = frames_of(8000, 0.3)
BANDS = 20


def recordings(*lengths):
    values = np.zeros((len(lengths), FRAMES.samples), np.float32)
    for row, length in zip(values, lengths, strict=True):
        row[:length] = RANDOM.normal(size=length) * 0.1
    return values


def test_windows_of_25_ms_every_10_ms():
    assert (FRAMES.window, FRAMES.hop, FRAMES.fft_length) == (200, 80, 256)
    assert FRAMES.samples >= 2400
    assert frames_of(16000, 1.0).window == 400
    assert frames_of(8000, 0.001).windows == 1


def test_the_logarithms_of_numpy():
    samples = recordings(FRAMES.samples)
    spectrogram, mask = log_mel(tf.constant(samples), FRAMES, BANDS)
    assert np.all(mask == 1)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
    starts = np.arange(FRAMES.windows) * 80
    windows = np.stack([samples[0, start : start + 200] for start in starts])
    power = np.abs(np.fft.rfft(windows * window, 256)) ** 2
    weights = tf.signal.linear_to_mel_weight_matrix(BANDS, 129, 8000, 20, 4000)
    expected = np.log(power @ weights.numpy() + 1e-6)
    expected = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(spectrogram[0], expected, atol=1e-3)
    centered, _ = log_mel(tf.constant(samples), FRAMES, BANDS, center_bands=True)
    expected -= expected.mean(axis=0)
    np.testing.assert_allclose(centered[0], expected / expected.std(), atol=1e-3)


def test_neither_padding_nor_loudness_matters():
    samples = recordings(FRAMES.samples, 1000)
    spectrogram, mask = log_mel(tf.constant(samples), FRAMES, BANDS)
    assert tf.reduce_sum(mask, axis=1).numpy().tolist() == [FRAMES.windows, 13]
    assert not spectrogram[1, 13:].numpy().any()
    louder, _ = log_mel(tf.constant(samples * 3), FRAMES, BANDS)
    np.testing.assert_allclose(louder, spectrogram, atol=0.05)
    short = frames_of(8000, 0.15)
    alone, _ = log_mel(tf.constant(samples[1:, : short.samples]), short, BANDS)
    np.testing.assert_allclose(alone[0, :13], spectrogram[1, :13], atol=1e-4)


def test_silence_is_finite():
    spectrogram, mask = log_mel(tf.zeros((1, FRAMES.samples)), FRAMES, BANDS)
    assert not spectrogram.numpy().any() and tf.reduce_sum(mask) == 1


@pytest.mark.long
def test_the_same_under_xla():
    samples = tf.constant(recordings(FRAMES.samples, 1000))
    compiled = tf.function(lambda x: log_mel(x, FRAMES, BANDS), jit_compile=True)
    for actual, expected in zip(
        compiled(samples), log_mel(samples, FRAMES, BANDS), strict=True
    ):
        np.testing.assert_allclose(actual, expected, atol=1e-4)
