"""A small convolutional network for short recordings."""

from typing import Annotated, Any

import keras
from keras import ops

from pipeline.config.registry import register
from pipeline.layers.convolution import normalized_convolution
from pipeline.layers.sound import shorten, spectrogram_of


@register
def audio_cnn(
    x: Any,
    *,
    widths: tuple[Annotated[int, (1, None)], ...] = (16, 32, 64),
    dropout: Annotated[float, (0, 1)] = 0.2,
    momentum: Annotated[float, (0, 1)] = 0.9,
) -> keras.KerasTensor:
    """A small residual network over time and frequency, for spoken words and sounds.

    Takes spectrograms; returns a vector per recording: mean and maximum of the features
    over time, without padding.

    Args:
        x: Recordings.
        widths: Channels of each stage; every stage halves time and frequency.
        dropout: Fraction of the features to drop in training.
        momentum: Weight of the old value in the moving mean and variance.
    """
    spectrogram, mask = spectrogram_of(x, "audio_cnn")
    features = ops.expand_dims(spectrogram, -1)
    features = _normalized(features, widths[0], 5, "stem_", 2, momentum)
    for number, width in enumerate(widths, 1):
        prefix = f"stage{number}_"
        stride = 1 if number == 1 else 2
        features = _normalized(features, width, 3, f"{prefix}first_", stride, momentum)
        branch = _normalized(features, width, 3, f"{prefix}second_", 1, momentum)
        features = keras.layers.Add(name=f"{prefix}add")([features, branch])
    features = ops.mean(features, axis=2)
    mask = ops.expand_dims(shorten(mask, 2 ** len(widths)), -1)
    mask = ops.cast(mask, features.dtype)
    mean = ops.sum(features * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1)
    features = ops.concatenate([mean, ops.max(features * mask, axis=1)], axis=1)
    return keras.layers.Dropout(dropout, name="dropout")(features)


def _normalized(
    x: keras.KerasTensor,
    filters: int,
    kernel: int,
    prefix: str,
    stride: int,
    momentum: float,
) -> keras.KerasTensor:
    """A convolution with batch normalization and ReLU."""
    x = normalized_convolution(x, filters, kernel, prefix, stride, momentum=momentum)
    return keras.layers.ReLU(name=f"{prefix}relu")(x)
