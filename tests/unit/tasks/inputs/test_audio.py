"""Recordings: what is learned from files, requests of any length, and bad files."""

import base64
import re

import numpy as np
import pytest
import tensorflow as tf
from recordings import wav

from pipeline.contracts import Info
from pipeline.data.audio_decoding import decode_wav, header
from pipeline.report.input_report import report_of
from pipeline.tasks.inputs.audio import audio
from pipeline.utils.errors import UsageError

RANDOM = np.random.default_rng(0)
INFO = Info({"train": 1}, {"audio": tf.TensorSpec((), tf.string)})


class Examples:
    def __init__(self, *files):
        self.files = files

    def batches(self):
        yield {"audio": np.array([*self.files], object)}


def sound(seconds, rate=8000):
    return wav(RANDOM.normal(size=round(seconds * rate)) * 1000, rate)


def learn(*files, **options):
    """The input that has learned from files, and its notes by name."""
    input = audio(INFO, **options)
    input = input.with_metadata({**input.metadata, **input.learn(Examples(*files))})
    return input, {note.name: str(note) for note in input.review()}


def test_rate_and_length_follow_from_the_training_files():
    files = [sound(0.5)] * 60 + [sound(0.5, 16000)] * 39 + [sound(3)]
    input, notes = learn(*files, b"damaged")
    assert input.metadata["rate"] == 8000
    assert input.metadata["seconds"] == pytest.approx(0.5)
    assert "61.0% of the training recordings" in notes["rate"]
    assert "99.0%" in notes["length"] and "3.00 s, is cut" in notes["length"]


def test_no_recording_is_cut_if_the_longest_is_little_longer():
    input, notes = learn(*[sound(0.5)] * 99, sound(0.7))
    assert input.metadata["seconds"] == pytest.approx(0.7)
    assert notes["length"] == "0.7 s (no training recording is longer)"
    assert notes["rate"] == "8,000 Hz (as all training recordings have)"


def test_high_rates_are_reduced_and_options_decide():
    input, notes = learn(sound(0.2, 44100))
    assert input.metadata["rate"] == 16000 and "44,100 Hz" in notes["rate"]
    input, notes = learn(sound(0.2, 44100), rate=22050)
    assert input.metadata["rate"] == 22050 and "requested" in notes["rate"]
    assert learn(sound(0.2), rate=8000, seconds=1)[1] == {}


@pytest.mark.parametrize("center", ["recording", "band"])
def test_the_mean_of_each_band_is_subtracted_on_request(center):
    input, _ = learn(sound(0.2), center=center)
    fields, _ = input.decode({"audio": tf.constant(sound(0.2))})
    spectrogram = input.prepare({"audio": fields["audio"][None]})["spectrogram"]
    means = spectrogram.numpy()[0].mean(axis=0)
    assert means.mean() == pytest.approx(0, abs=1e-4)
    assert (abs(means).max() < 1e-4) == (center == "band")


def test_files_that_are_no_recordings_are_one_line():
    with pytest.raises(UsageError, match="no training file .* not a WAV"):
        learn(b"garbage")
    with pytest.raises(UsageError, match="contents of WAV files"):
        audio(Info({"train": 1}, {"audio": tf.TensorSpec((9,), tf.float32)}))


@pytest.fixture
def input():
    return learn(rate=8000, seconds=0.5)[0]


def test_waveforms_of_any_length(input):
    default, files = input.signatures()
    content = wav(RANDOM.integers(1, 30000, 3000))
    decoded = input.decode({"audio": tf.constant(content)})[0]["audio"][None]
    waveform = default.request({"audio": decoded.numpy()})["waveform"]
    for values in (waveform, waveform[:, :3000]):
        read = default.read(tf.constant(values))["audio"]
        np.testing.assert_array_equal(read, decoded)
    longer = np.pad(waveform, [[0, 0], [0, 9000]], constant_values=0.5)
    np.testing.assert_array_equal(default.read(tf.constant(longer))["audio"], decoded)
    for number in range(3):
        copies = np.repeat(decoded.numpy(), 3, axis=0)
        content = files.request({"audio": copies})["audio_bytes"][number]
        read = files.read(tf.constant([content]))["audio"]
        np.testing.assert_array_equal(read, decoded)


@pytest.mark.parametrize("value", [np.nan, np.inf, 20000.0])
def test_a_waveform_on_another_scale_is_refused(input, value):
    waveform = tf.constant([[0.1, value]], tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"finite|from -1 to 1"):
        input.signatures()[0].read(waveform)


def test_a_network_of_ones_own_gets_the_waveform():
    input, _ = learn(rate=8000, seconds=0.1, raw=True)
    size = input.inputs().shape[1]
    batch = {"audio": tf.fill([2, size], tf.constant(16384, tf.int16))}
    values = input.network_inputs(input.prepare(batch))
    assert values.shape == (2, size) and np.all(values == 0.5)


def test_the_keras_model_makes_the_same_spectrogram(input):
    import keras

    inputs, prepared = input.standalone()
    model = keras.Model(inputs, prepared)
    samples = RANDOM.integers(-9999, 9999, (2, inputs.shape[1])).astype(np.int16)
    expected = input.prepare({"audio": tf.constant(samples)})
    actual = model(samples.astype(np.float32) / 2**15)
    for name in ("spectrogram", "mask"):
        np.testing.assert_allclose(actual[name], expected[name], atol=1e-4)


def test_html_plays_the_beginning_and_shows_the_spectrogram(input):
    samples = np.zeros(input.inputs()["mask"].shape[1] * 80 + 120, np.int16)
    samples[:3000] = RANDOM.integers(1, 30000, 3000)
    html = report_of(input).html({"audio": samples})
    urls = re.findall(r'src="data:(\S+?);base64,(\S+?)"', html)
    assert [kind for kind, _ in urls] == ["image/png", "audio/wav"]
    picture, sound = (base64.b64decode(text) for _, text in urls)
    assert picture.startswith(b"\x89PNG")
    decoded = decode_wav(tf.constant(sound), 8000, 4000)
    np.testing.assert_array_equal(decoded[:3000], samples[:3000])
    assert header(tf.constant(sound)).frames == 3000
    long, _ = learn(rate=8000, seconds=30)
    assert len(report_of(long).html({"audio": np.ones(240_000, np.int16)})) < 300_000


def test_silence_is_shown(input):
    for samples in (np.zeros(4000, np.int16), np.full(4000, 32767, np.int16)):
        assert "audio/wav" in report_of(input).html({"audio": samples})
