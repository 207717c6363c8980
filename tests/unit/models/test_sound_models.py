"""Models of sound build for any length, and padding does not change their features."""

import keras
import numpy as np
import pytest
from registered_functions import SOUND_MODELS

from pipeline.config import registry
from pipeline.utils.errors import UsageError

BANDS = 40


def model_of(name, count):
    inputs = {
        "mask": keras.Input((count,), name="mask"),
        "spectrogram": keras.Input((count, BANDS), name="spectrogram"),
    }
    return keras.Model(inputs, registry.call("models", name, {}, inputs))


@pytest.mark.parametrize("count", [1, 7, 100])
@pytest.mark.parametrize("name", SOUND_MODELS)
def test_any_length(name, count):
    model = model_of(name, count)
    values = {
        "mask": np.ones((2, count), np.float32),
        "spectrogram": np.ones((2, count, BANDS), np.float32),
    }
    for features in keras.tree.flatten(model(values, training=False)):
        assert len(features) == 2 and np.isfinite(features).all()


@pytest.mark.parametrize("name", SOUND_MODELS)
def test_other_inputs_are_refused_by_name(name):
    with pytest.raises(UsageError, match=f"{name} is for recordings"):
        registry.call("models", name, {}, keras.Input((8, 8, 1)))


def test_a_sequence_has_a_mask_of_its_length():
    model = model_of("conv_recurrent", 100)
    mask = np.ones((1, 100), np.float32)
    mask[:, 50:] = 0
    spectrogram = np.random.default_rng(0).normal(size=(1, 100, BANDS))
    values = {"mask": mask, "spectrogram": spectrogram * mask[..., None]}
    result = model(values, training=False)
    assert result["features"].shape[1] == result["mask"].shape[1] == 25
    assert np.sum(result["mask"]) == 13
