"""Recordings that people have: read, or refused in one line that names the file; and
how they are divided.
"""

import struct

import numpy as np
import pytest
import tensorflow as tf
from recordings import FLOAT, RATE, TONE, compressed, wav, write

from pipeline.config import command_line
from pipeline.data import dataset, example_store
from pipeline.utils.errors import UsageError

RANDOM = np.random.default_rng(0)


def with_length(size):
    """A file whose header has another number of bytes of samples."""
    content = wav(TONE)
    known = b"data" + struct.pack("<I", 4800)
    assert known in content
    return content.replace(known, b"data" + struct.pack("<I", size))


GOOD = {
    "silence": wav(np.zeros(900)),
    "clipped": wav(TONE * 100),
    "stereo of 48 kHz": wav(np.stack([TONE, -TONE / 2], axis=1), 48000),
    "extensible": wav(TONE, bits=24, extensible=True),
    "written by a pipe": with_length(2**32 - 1),
    "shorter than its file": with_length(4000),
    "one sample": wav(np.array([5])),
    "an hour": wav(np.tile(TONE, 1500), 1000, bits=8),
}
BAD = {
    "no samples": (wav(np.zeros(0)), "the WAV file is empty"),
    "nothing": (b"", "not a WAV file"),
    "longer than its file": (with_length(9000), "ends before its header says"),
    "adpcm": (wav(TONE, code=0x11), "a WAV file of ADPCM, which is compressed"),
    "really mp3": (compressed("MP3"), "an MP3 file, not a WAV file; convert it"),
    "really flac": (compressed("FLAC"), "a FLAC file, not a WAV file; convert it"),
    "not a number": (wav(TONE * np.nan, bits=32, code=FLOAT), "samples are not finite"),
}


def load(*words):
    return dataset.load(command_line.configure([*map(str, words)]))


def test_odd_recordings_are_read_and_bad_ones_are_named_in_one_line(tmp_path):
    write(tmp_path / "a", {f"{name}.wav": content for name, content in GOOD.items()})
    bad = {f"{name}.wav": content for name, (content, _) in BAD.items()}
    write(tmp_path / "b", bad)
    config = command_line.configure([str(tmp_path)])
    source = dataset.open_source(config)
    task = dataset.create_task(config, source.info)
    task = task.with_metadata({"rate": RATE, "seconds": 0.5})
    decode = tf.function(task.decode).get_concrete_function(source.info.fields)
    lines = {}
    for example in source.examples("train"):
        try:
            decode(example)
        except tf.errors.OpError as error:
            id = int(example["id"])
            line = str(example_store.decoding_error(source, id, error))
            lines[source.location(id)] = line
    assert lines.keys() == {f"b/{name}" for name in bad}
    for name, (_, message) in BAD.items():
        line = lines[f"b/{name}.wav"]
        assert line.startswith(f"b/{name}.wav cannot be decoded:") and message in line
        assert "\n" not in line and "{{" not in line


@pytest.mark.parametrize(
    ("rate", "bits", "channels"),
    [
        (8000, 16, 1),
        (44100, 24, 2),
        pytest.param(16000, 16, 1, marks=pytest.mark.long),
        pytest.param(44100, 16, 1, marks=pytest.mark.long),
        pytest.param(8000, 16, 2, marks=pytest.mark.long),
    ],
)
def test_requests_are_decoded_as_in_training(tmp_path, rate, bits, channels):
    samples = RANDOM.integers(-9000, 9000, (rate // 4, channels))
    content = wav(samples, rate, bits=bits)
    write(tmp_path / "a", {"0.wav": content})
    write(tmp_path / "b", {"1.wav": content})
    config = command_line.configure([str(tmp_path)])
    source = dataset.open_source(config)
    task = dataset.create_task(config, source.info)
    task = task.with_metadata({"rate": 8000, "seconds": 0.25})
    trained = [task.decode(example)["audio"] for example in source.examples("train")]
    (signature,) = (
        item for item in task.input.signatures() if item.name == "audio_bytes"
    )
    served = tf.function(signature.read)(tf.constant([content, content]))["audio"]
    np.testing.assert_array_equal(served, tf.stack(trained))
    assert np.any(served)


def test_an_error_about_an_option_does_not_begin_with_the_data(tmp_path):
    for word in "ab":
        write(tmp_path / word, {"0.wav": wav(TONE)})
    with pytest.raises(UsageError, match="--data.image-size.*audio"):
        load(tmp_path, "--image-size", "8", "8")
