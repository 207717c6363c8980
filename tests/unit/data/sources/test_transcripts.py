"""Tables of recordings and what they say."""

import json

import numpy as np
import pytest
import tensorflow as tf
from recordings import wav

from pipeline.config import command_line, registry
from pipeline.data import detect
from pipeline.utils.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    """Three recordings in `wavs`."""
    (tmp_path / "wavs").mkdir()
    for name in "abc":
        content = wav(np.arange(1, 900))
        (tmp_path / "wavs" / f"{name}.wav").write_bytes(content)
    return tmp_path


def texts_of(folder):
    """The transcripts that a path gives, by the names of the files."""
    options = detect.find_source(folder)
    source = registry.call("sources", options.pop("name"), options)
    read = source.reader("train")
    texts = {}
    for position in range(source.info.splits["train"]):
        example = read(tf.constant(position, tf.int64))
        assert example["audio"].numpy().startswith(b"RIFF")
        name = source.location(int(example["id"]))[-5]
        texts[name] = example["transcript"].numpy().decode()
    return texts


TEXTS = {"a": "one, two", "b": 'he said "no', "c": "three"}


def test_lj_speech(folder):
    lines = [f"{name}|{text.upper()}|{text}" for name, text in TEXTS.items()]
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    assert texts_of(folder) == TEXTS


@pytest.mark.parametrize("column", ["transcript", "sentence", "text"])
def test_columns_by_name(folder, column):
    lines = [f"path\tage\t{column}"]
    lines += [f'{name}.wav\t30\t"{name} b"' for name in TEXTS]
    (folder / "train.tsv").write_text("\n".join(lines))
    assert texts_of(folder) == {name: f"{name} b" for name in TEXTS}


def test_json_lines(folder):
    lines = []
    for name, text in TEXTS.items():
        lines.append(json.dumps({"audio_filepath": f"wavs/{name}.wav", "text": text}))
    (folder / "manifest.jsonl").write_text("\n".join(lines))
    assert texts_of(folder) == TEXTS
    assert command_line.configure([str(folder)]).recipe == "transcripts"


def test_labels_come_first(folder):
    (folder / "x.csv").write_text("path,text,label\na.wav,one,x\nb.wav,two,y\n")
    assert command_line.configure([str(folder)]).recipe == "recordings"


def test_rows_without_a_transcript_are_left_out_with_a_note(folder):
    (folder / "x.csv").write_text("path,transcript\na.wav,one\nb.wav,\nd.wav,four\n")
    source = registry.call("sources", "table", {"path": folder / "x.csv"})
    assert source.info.splits == {"train": 1}
    assert any("2 of 3 rows" in note for note in source.info.notes)
    fingerprint = source.fingerprint()
    (folder / "x.csv").write_text("path,transcript\na.wav,six\nb.wav,\nd.wav,four\n")
    other = registry.call("sources", "table", {"path": folder / "x.csv"})
    assert other.fingerprint() != fingerprint


def test_a_table_without_any_transcript_is_one_line(folder):
    (folder / "x.csv").write_text("path,transcript\na.wav,\nb.wav,\n")
    with pytest.raises(UsageError, match="no row is left for training"):
        registry.call("sources", "table", {"path": folder / "x.csv"})
