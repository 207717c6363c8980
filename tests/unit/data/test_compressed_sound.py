"""FLAC, MP3 and Ogg files are read as WAV files."""

import io

import numpy as np
import pytest
import soundfile
import tensorflow as tf
from recordings import wav

from pipeline.config import registry
from pipeline.data import detect
from pipeline.data.audio_decoding import decode_wav
from pipeline.serving import file_predictions
from pipeline.utils import compressed_sound
from pipeline.utils.errors import UsageError

RATE = 8000
SAMPLES = (9000 * np.sin(np.arange(2000) / 5)).round().astype(np.int16)


def encoded(kind):
    file = io.BytesIO()
    soundfile.write(file, SAMPLES, RATE, format=kind)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Two classes with a recording of each kind."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.wav").write_bytes(wav(SAMPLES))
        for kind in ("flac", "mp3", "ogg"):
            (tmp_path / name / f"1.{kind}").write_bytes(encoded(kind))
    return tmp_path


def contents_of(folder):
    """The content of each file, by its name."""
    options = detect.find_source(folder)
    source = registry.call("sources", options.pop("name"), options)
    names = [source.location(id) for id in source.columns("train")["id"].tolist()]
    rows = source.examples("train").as_numpy_iterator()
    return {name: row["audio"] for name, row in zip(names, rows, strict=True)}


def test_a_folder_may_have_all_kinds(folder):
    contents = contents_of(folder)
    assert len(contents) == 8
    options = detect.find_source(folder)
    source = registry.call("sources", options.pop("name"), options)
    for row, (name, content) in enumerate(contents.items()):
        # In a graph, as above, and outside of one, as for the message about a file.
        assert source.reader("train")(tf.constant(row))["audio"].numpy() == content
        decoded = decode_wav(tf.constant(content), RATE, len(SAMPLES)).numpy()
        # MP3 and Ogg lose something, and MP3 begins later.
        if name.endswith((".wav", ".flac")):
            np.testing.assert_array_equal(decoded, SAMPLES)
        assert np.abs(decoded).max() == pytest.approx(9000, rel=0.3)
    files = sorted(map(str, (folder / "a").iterdir()))
    for item in file_predictions.contents(files):
        assert item.value == contents[f"a/{item.name['file'][-6:].split('/')[-1]}"]


@pytest.mark.parametrize("length", [0, 2, 200])
def test_a_file_that_is_cut_short_is_reported_by_the_decoder(folder, length):
    (folder / "a" / "1.flac").write_bytes(encoded("flac")[:length])
    content = contents_of(folder)["a/1.flac"]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="it cannot be read as FLAC"
    ):
        decode_wav(tf.constant(content), RATE, 10)


def test_without_the_package_a_line_names_it(folder, monkeypatch):
    monkeypatch.setattr(compressed_sound.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"1\.flac needs .* pip install soundfile"):
        contents_of(folder)
    with pytest.raises(UsageError, match="pip install soundfile"):
        list(file_predictions.contents([str(folder / "a" / "1.ogg")]))
    for name in ("a", "b"):
        for file in (folder / name).glob("1.*"):
            file.unlink()
    assert len(contents_of(folder)) == 2
