"""Parts of models of sound."""

from typing import Any

import keras

from pipeline.utils.errors import UsageError


def spectrogram_of(x: Any, model: str) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """The spectrogram (batch, windows, bands) in the inputs of a model, and its mask
    (batch, windows).

    Raises UsageError naming the model if the inputs are no recordings.
    """
    if not isinstance(x, dict) or "spectrogram" not in x:
        raise UsageError(
            f"--model.name {model} is for recordings, but the task has another input;"
            " choose another model, such as mlp"
        )
    return x["spectrogram"], x["mask"]


def shorten(mask: keras.KerasTensor, stride: int) -> keras.KerasTensor:
    """The mask of every position that a convolution of this stride keeps, with the
    padding `same`.
    """
    return mask[:, ::stride]
