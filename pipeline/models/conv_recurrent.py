"""A convolutional and recurrent network for speech to text."""

from typing import Annotated, Any

import keras
from keras import ops

from pipeline.config.registry import register
from pipeline.layers.convolution import normalized_convolution
from pipeline.layers.sound import shorten, spectrogram_of


@register
def conv_recurrent(
    x: Any,
    *,
    widths: tuple[Annotated[int, (1, None)], ...] = (32, 32, 32),
    units: Annotated[int, (1, 4096)] = 96,
    layers: Annotated[int, (1, 8)] = 1,
    time_stride: Annotated[int, (1, 8)] = 4,
    dropout: Annotated[float, (0, 1)] = 0.2,
    momentum: Annotated[float, (0, 1)] = 0.9,
) -> dict[str, keras.KerasTensor]:
    """Convolutions over time and frequency, then bidirectional GRUs over time.

    Takes spectrograms; returns a sequence of features with its mask, for transcripts.
    As in Amodei et al., "Deep Speech 2", ICML 2016.

    Args:
        x: Recordings.
        widths: Channels of the convolutions; each halves the frequency.
        units: Units of a GRU in each direction.
        layers: Number of bidirectional GRUs.
        time_stride: Windows of 10 ms per output. A second of speech has up to about 15
            characters, and needs as many outputs.
        dropout: Fraction of the features to drop in training.
        momentum: Weight of the old value in the moving mean and variance.
    """
    spectrogram, mask = spectrogram_of(x, "conv_recurrent")
    features = ops.expand_dims(spectrogram, -1)
    kernel, stride = 5, (time_stride, 2)
    for number, width in enumerate(widths, 1):
        features = normalized_convolution(
            features, width, kernel, f"part{number}_", stride, momentum=momentum
        )
        features = keras.layers.ReLU(name=f"part{number}_relu")(features)
        kernel, stride = 3, (1, 2)
    time, bands, channels = features.shape[1:]
    features = keras.layers.Reshape((time, bands * channels), name="join")(features)
    mask = shorten(mask, time_stride)
    valid = ops.expand_dims(mask, -1)
    for number in range(1, layers + 1):
        # The kernel of cuDNN would be exported as an operation that only GPUs have.
        layer = keras.layers.GRU(units, return_sequences=True, use_cudnn=False)
        features = features * ops.cast(valid, features.dtype)
        features = keras.layers.Bidirectional(layer, name=f"gru{number}")(features)
        features = keras.layers.Dropout(dropout, name=f"dropout{number}")(features)
    return {"features": features, "mask": mask}
