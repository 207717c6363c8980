"""Augmentations of recordings draw from the seeds alone, and keep dtype and shape."""

import numpy as np
import pytest
import tensorflow as tf
from random_images import OF_RECORDINGS

from pipeline.config import registry
from pipeline.data import seeds
from pipeline.data.augment.recordings import gain, noise, speed, time_shift
from pipeline.data.augment.spec_augment import spec_augment
from pipeline.data.log_mel import frames_of
from pipeline.tasks.inputs.audio import AudioInput
from pipeline.utils.errors import UsageError

COUNT = 32
SIZE = 1000
LENGTH = 700  # the rest is padding
SEEDS = seeds.example_seeds(
    1, tf.zeros([COUNT], tf.int64), tf.range(COUNT, dtype=tf.int64)
)


def batch():
    time = np.arange(LENGTH)
    samples = np.zeros((COUNT, SIZE), np.int16)
    samples[:, :LENGTH] = 8000 * np.sin(0.3 * time + np.arange(COUNT)[:, None]) + 1
    return {"audio": tf.constant(samples), "label": tf.range(COUNT)}


@pytest.mark.parametrize("name", OF_RECORDINGS)
def test_a_pure_function_of_batch_and_seeds(name):
    operation = registry.load("augment", name)
    before = batch()
    after = operation(before, SEEDS)
    assert after["audio"].dtype == tf.int16
    assert after["audio"].shape == before["audio"].shape
    part = {key: value[5:9] for key, value in before.items()}
    compiled = tf.function(operation, jit_compile=True)(before, SEEDS)
    others = operation(before, seeds.fold(SEEDS, 1))
    is_changed = False
    for key, value in operation(part, SEEDS[5:9]).items():
        np.testing.assert_array_equal(value, after[key][5:9])
        # A compiler may round the last bit of a sample otherwise.
        np.testing.assert_allclose(compiled[key], after[key], atol=1)
        is_changed |= bool((others[key].numpy() != after[key].numpy()).any())
    assert is_changed, "it ignores its seeds"


@pytest.mark.parametrize("name", OF_RECORDINGS)
def test_examples_without_recordings_are_refused(name):
    with pytest.raises(UsageError, match=rf"\b{name}\b.*recordings"):
        registry.load("augment", name)({"features": tf.zeros([COUNT, 3])}, SEEDS)


def test_a_shift_moves_every_sample_equally():
    before = batch()["audio"].numpy()
    after = time_shift(batch(), SEEDS, share=0.1)["audio"].numpy()
    for old, new in zip(before, after, strict=True):
        shifts = [
            shift
            for shift in range(-100, 101)
            if (np.roll(np.pad(old, 100), shift)[100:-100] == new).all()
        ]
        assert len(shifts) == 1


def test_noise_has_the_chosen_power_and_spares_padding():
    before = batch()["audio"].numpy().astype(np.float64)
    after = noise(batch(), SEEDS, decibels=(20, 20), probability=1)["audio"].numpy()
    added = (after - before)[:, :LENGTH]
    ratio = (before[:, :LENGTH] ** 2).mean() / (added**2).mean()
    assert 10 * np.log10(ratio) == pytest.approx(20, abs=0.3)
    assert not after[:, LENGTH:].any()


def test_a_gain_of_6_decibels_doubles_samples_and_clips():
    samples = tf.constant([[1000, -20000, 0]], tf.int16)
    louder = gain({"audio": samples}, SEEDS[:1], decibels=(6.0206, 6.0206))
    assert louder["audio"].numpy().tolist() == [[2000, -32768, 0]]


def test_double_speed_halves_the_length():
    after = speed(batch(), SEEDS, factor=(2, 2))["audio"].numpy()
    np.testing.assert_array_equal(after[:, :350], batch()["audio"][:, :700:2])
    assert not after[:, 350:].any()


def test_covered_bands_and_windows_become_zero():
    input = AudioInput({"rate": 8000, "seconds": 0.1, "bands": 20})
    frames = frames_of(8000, 0.1)
    noisy = np.random.default_rng(0).integers(1, 999, (COUNT, frames.samples))
    examples = {"audio": tf.constant(noisy, tf.int16)}
    plain = input.prepare(examples)["spectrogram"].numpy()
    covered = input.prepare(spec_augment(examples, SEEDS, times=0.5))
    after = covered["spectrogram"].numpy()
    assert after.shape == (COUNT, frames.windows, 20)
    is_covered = after == 0
    np.testing.assert_array_equal(after[~is_covered], plain[~is_covered])
    whole_bands = is_covered.all(axis=1)
    whole_windows = is_covered.all(axis=2)
    expected = whole_bands[:, None, :] | whole_windows[:, :, None]
    np.testing.assert_array_equal(is_covered, expected)
    assert 0.05 < whole_bands.mean() < 0.4 and 0.1 < whole_windows.mean() < 0.8
