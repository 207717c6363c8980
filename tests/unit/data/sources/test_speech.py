"""Recordings with transcripts, as LibriSpeech and Kaldi lay them out."""

import wave

import numpy as np
import pytest

from pipeline.data import detect
from pipeline.data.sources.speech import speech
from pipeline.data.sources.table import table
from pipeline.utils.errors import UsageError


def record(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(np.zeros(80, "<i2").tobytes())


def libri_speech(root, folder, speakers):
    for speaker in speakers:
        chapter = root / folder / str(speaker) / "7"
        for number in range(2):
            record(chapter / f"{speaker}-7-{number}.wav")
        lines = [f"{speaker}-7-{number} SAY {number}" for number in range(2)]
        (chapter / f"{speaker}-7.trans.txt").write_text("\n".join(lines) + "\n")


def examples(source):
    """Split -> file, transcript and group of each example."""
    found = {}
    for split in source.info.splits:
        found[split] = [
            (source.location(int(e["id"])), e["transcript"].decode(), e.get("group"))
            for e in source.examples(split).as_numpy_iterator()
        ]
    return found


def test_libri_speech_has_splits_and_speakers(tmp_path):
    libri_speech(tmp_path, "train-clean-100", range(10, 19))
    libri_speech(tmp_path, "dev-clean", [30])
    found = detect.detect(tmp_path)
    assert (found.source["name"], found.recipe) == ("speech", "transcripts")
    source = speech(path=tmp_path)
    assert source.info.splits == {"train": 18, "validation": 2}
    (first, text, group), second = examples(source)["train"][:2]
    assert (first, text) == ("train-clean-100/10/7/10-7-0.wav", "SAY 0")
    assert group == second[2] == source.group_names()["10"]
    assert "10 speakers, each of them in one split" in source.info.notes[0]


def test_few_speakers_are_not_kept_apart(tmp_path):
    libri_speech(tmp_path, "dev-clean", [30, 31])
    source = speech(path=tmp_path)  # without train, all are for training
    assert source.info.splits == {"train": 4}
    assert "group" not in source.info.fields
    assert "2 speakers, too few to keep each in one split" in source.info.notes[0]


def kaldi(root, places):
    for name in places:
        record(root / "wav" / f"{name}.wav")
    (root / "text").write_text("".join(f"{name} Say {name}\n" for name in places))
    lines = [f"{name} {place}\n" for name, place in places.items()]
    (root / "wav.scp").write_text("".join(lines))


def test_kaldi_names_recordings_and_speakers(tmp_path):
    places = {f"s{n}-1": f"/data/other/wav/s{n}-1.wav" for n in range(12)}
    places["s0-1"] = "sox /data/other/wav/s0-1.wav -t wav - |"
    kaldi(tmp_path / "train", places)
    speakers = "".join(f"s{n}-1 s{n}\n" for n in range(12))
    (tmp_path / "train/utt2spk").write_text(speakers)
    assert detect.detect(tmp_path).source["name"] == "speech"
    source = speech(path=tmp_path)
    assert source.info.splits == {"train": 12}
    assert examples(source)["train"][0][:2] == ("train/wav/s0-1.wav", "Say s0-1")
    assert set(source.group_names()) == {f"s{n}" for n in range(12)}


def test_a_missing_recording_is_counted(tmp_path):
    kaldi(tmp_path, {"a": "wav/a.wav", "b": "wav/b.wav"})
    (tmp_path / "wav/b.wav").unlink()
    source = speech(path=tmp_path)
    assert source.info.splits == {"train": 1}
    assert source.info.notes[0] == (
        f"{tmp_path}: no recording of 1 utterance, such as b; left out"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("segments", "a1 a 0.0 1.5\n", "segments: utterances .* cut the recordings"),
        ("wav.scp", "a sph2pipe -p a.sph |\n", "a is a command, 'sph2pipe"),
        ("wav.scp", "c wav/c.wav\n", "no recording of 1 utterance, such as a"),
    ],
)
def test_what_is_no_file_of_an_utterance_is_refused(tmp_path, name, content, message):
    kaldi(tmp_path, {"a": "wav/a.wav"})
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        speech(path=tmp_path)


def manifest(root, **columns):
    for number in range(12):
        record(root / f"{number}.wav")
    head = ["audio_filepath", "text", *columns]
    rows = [
        [f"{number}.wav", f"say {number}", *(str(c[number]) for c in columns.values())]
        for number in range(12)
    ]
    path = root / "manifest.csv"
    path.write_text("\n".join(map(",".join, [head, *rows])))
    return path


def test_speakers_of_a_table_stay_together(tmp_path):
    path = manifest(tmp_path, client_id=[f"c{n % 11}" for n in range(12)])
    source = table(path=path)
    groups = [group for _, _, group in examples(source)["train"]]
    assert groups[0] == groups[11] and len({*groups}) == 11
    path = manifest(tmp_path, client_id=["a", "b"] * 6)
    assert "group" not in table(path=path).info.fields


def test_parts_of_recordings_are_refused(tmp_path):
    assert table(path=manifest(tmp_path, offset=[0] * 12)).info.splits == {"train": 12}
    path = manifest(tmp_path, offset=[0, 1.5] * 6)
    with pytest.raises(UsageError, match=r"row 3: offset '1.5'; parts of .*cut them"):
        table(path=path)


@pytest.mark.parametrize("suffix", ["txt", "lab"])
def test_a_text_beside_each_recording_is_its_transcript(tmp_path, suffix):
    for number in range(20):
        record(tmp_path / f"p{number // 2}/{number}.wav")
        text = tmp_path / f"p{number // 2}/{number}.{suffix}"
        text.write_text(f"say\n{number}\n")
    (tmp_path / "README.txt").write_text("twenty recordings")
    assert detect.detect(tmp_path).source["name"] == "speech"
    source = speech(path=tmp_path)
    (first, text, group), *_ = examples(source)["train"]
    assert (first, text) == ("p0/0.wav", "say 0")
    assert group == source.group_names()["p0"]


def test_files_beside_the_folder_of_their_table_are_found(tmp_path):
    """As in ESC-50 and UrbanSound8K."""
    for number in range(4):
        record(tmp_path / f"audio/fold{number}/{number}.wav")
    rows = [f"{number}.wav,{'ab'[number % 2]}" for number in range(4)]
    path = tmp_path / "metadata/sounds.csv"
    path.parent.mkdir()
    path.write_text("\n".join(["slice_file_name,class", *rows]))
    source = table(path=path)
    assert source.info.splits == {"train": 4}
    assert source.info.class_names == ("a", "b")


def test_a_text_beside_one_recording_is_no_transcript(tmp_path):
    for number in range(6):
        record(tmp_path / f"{'ab'[number % 2]}/{number}.wav")
    (tmp_path / "a/0.txt").write_text("a note")
    assert detect.detect(tmp_path).source["name"] == "folder"
    for number in range(6):
        text = tmp_path / f"{'ab'[number % 2]}/{number}.txt"
        text.write_text("0.036\t0.579\t0\t0\n")  # times and numbers, as in ICBHI 2017
    assert detect.detect(tmp_path).source["name"] == "folder"


def test_speakers_in_two_splits_are_no_groups_and_other_folders_are_for_training(
    tmp_path,
):
    libri_speech(tmp_path, "train", range(10, 21))
    libri_speech(tmp_path, "test", range(10, 21))
    libri_speech(tmp_path, "extra", [40])
    source = speech(path=tmp_path)
    assert source.info.splits == {"train": 24, "test": 22}
    assert "group" not in source.info.fields


def test_recordings_beside_the_folder_of_the_test_are_for_training(tmp_path):
    libri_speech(tmp_path, "book", [1])
    libri_speech(tmp_path, "test", [2])
    assert speech(path=tmp_path).info.splits == {"train": 2, "test": 2}
