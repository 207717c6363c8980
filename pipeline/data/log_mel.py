"""Spectrograms of recordings, with operations of Keras: of a batch in training and
serving, and of the symbolic inputs of a model that works without this package.
"""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

# Above the noise of rounding to 16 bits, about 1e-7 in a band.
_FLOOR = 1e-6
_PARTS = 5  # of a window; the next window begins two parts later
_QUIETEST = 0.1  # deviation of the logarithms in a recording that is nearly constant


class Frames(NamedTuple):
    """How a recording is divided into windows of 25 ms, every 10 ms."""

    rate: int
    """Samples per second."""
    windows: int
    """Their number."""

    @property
    def part(self) -> int:
        return max(1, round(self.rate / 200))

    @property
    def hop(self) -> int:
        """Samples from one window to the next."""
        return 2 * self.part

    @property
    def window(self) -> int:
        return _PARTS * self.part

    @property
    def samples(self) -> int:
        """Samples in all windows."""
        return self.hop * (self.windows - 1) + self.window

    @property
    def fft_length(self) -> int:
        """The power of two from the window on."""
        return 1 << (self.window - 1).bit_length()


def frames_of(rate: int, seconds: float) -> Frames:
    """The windows that cover so many seconds."""
    whole = Frames(rate, 1)
    rest = max(0, round(seconds * rate) - whole.window)
    return Frames(rate, 1 + -(-rest // whole.hop))


def log_mel(
    samples: Any, frames: Frames, bands: int, center_bands: bool = False
) -> tuple[Any, Any]:
    """Logarithms of the power in bands of the mel scale, and which windows are sound.

    Zeros at the end of a recording are padding. The logarithms of a recording have
    mean 0 and deviation 1 over its windows, so that its loudness does not matter; those
    of padding are 0.

    With `center_bands`, each band has mean 0, so that microphones and voices differ
    less, but so do sounds that do not change over time (cepstral mean normalization;
    Atal, "Effectiveness of linear prediction characteristics of the speech wave for
    automatic speaker identification and verification", 1974).

    Args:
        samples: From -1 to 1, float32 (batch, frames.samples).
        frames: The windows.
        bands: Number of bands.
        center_bands: Whether the mean is that of each band.

    Returns:
        float32 (batch, windows, bands), and float32 (batch, windows), 1 or 0.
    """
    starts = np.arange(frames.windows, dtype=np.int32) * frames.hop
    order = np.arange(1, frames.samples + 1, dtype=np.int32)
    is_sound = ops.cast(ops.not_equal(samples, 0.0), "int32")
    length = ops.max(is_sound * order, axis=1, keepdims=True)
    # At least one window, even of silence.
    mask = ops.cast(ops.less(starts, ops.maximum(length, 1)), "float32")
    parts = ops.reshape(samples, (-1, frames.samples // frames.part, frames.part))
    last = 2 * frames.windows - 1
    windows = [parts[:, start : start + last : 2] for start in range(_PARTS)]
    shape = np.hanning(frames.window + 1)[:-1].astype(np.float32)
    windowed = ops.concatenate(windows, axis=2) * shape
    real, imaginary = ops.rfft(windowed, frames.fft_length)
    power = ops.square(real) + ops.square(imaginary)
    weights = _mel_weights(frames.rate, frames.fft_length, bands)
    logarithms = ops.log(ops.matmul(power, weights) + _FLOOR)
    valid = ops.expand_dims(mask, 2)
    count = ops.sum(valid, axis=(1, 2), keepdims=True) * bands
    if center_bands:
        mean = ops.sum(logarithms * valid, axis=1, keepdims=True) * (bands / count)
    else:
        mean = ops.sum(logarithms * valid, axis=(1, 2), keepdims=True) / count
    centered = (logarithms - mean) * valid
    variance = ops.sum(ops.square(centered), axis=(1, 2), keepdims=True) / count
    return centered / ops.maximum(ops.sqrt(variance), _QUIETEST), mask


def _mel_weights(rate: int, fft_length: int, bands: int) -> np.ndarray:
    """Triangles with equal distances on the mel scale, float32 (bins, bands).

    The scale is that of HTK, 2595 log10(1 + f / 700). The triangles reach from 20 Hz to
    half the rate.
    """
    frequencies = np.linspace(0, rate / 2, fft_length // 2 + 1)
    mels = 2595 * np.log10(1 + frequencies / 700)
    lowest = 2595 * np.log10(1 + 20 / 700)
    edges = np.linspace(lowest, mels[-1], bands + 2)
    distance = edges[1] - edges[0]
    centers = edges[1:-1]
    weights = 1 - np.abs(mels[:, None] - centers) / distance
    return np.maximum(weights, 0).astype(np.float32)
