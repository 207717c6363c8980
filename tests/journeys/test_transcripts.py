"""A table of recordings and what they say: trained, exported and served."""

import json

import export_metrics
import numpy as np
import pytest
from recordings import wav

from pipeline import predict
from pipeline.fit import fit
from pipeline.serving.client import Client

COUNT = 36
RATE = 4000
OPTIONS = {
    "data": {"test": 0.1, "augment": {}},
    "model": {"options": {"widths": (8, 8), "units": 16}},
    "train": {"batch_size": 8, "steps_per_execution": 3},
    "export": {"batch_sizes": (1,)},
    "runtime": {"precision": "float32"},
    "log": {"tensorboard": False, "bar": False},
}


def recording(pitches, generator):
    """A tone of a twentieth of a second for each letter."""
    steps = np.arange(RATE // 20) / RATE
    tones = [np.sin(2 * np.pi * pitch * steps) for pitch in pitches]
    noise = generator.normal(size=len(steps) * len(pitches)) * 100
    return wav(8000 * np.concatenate(tones) + noise, RATE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a table as of LJ Speech, with its export."""
    root = tmp_path_factory.mktemp("transcripts")
    (root / "speech/wavs").mkdir(parents=True)
    generator = np.random.default_rng(0)
    pitches = {"a": 400, "b": 800, "c": 1200}
    rows = ["path,transcript"]
    for number in range(COUNT):
        text = "".join(generator.choice(list(pitches), generator.integers(3, 6)))
        content = recording([pitches[letter] for letter in text], generator)
        (root / f"speech/wavs/{number}.wav").write_bytes(content)
        rows.append(f"wavs/{number}.wav,{text}")
    (root / "speech/metadata.csv").write_text("\n".join(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        run = fit("speech", epochs=12, **OPTIONS)
    return root, run


def test_a_table_of_recordings_is_trained_and_exported(trained):
    root, run = trained
    assert run.config.recipe == "transcripts"
    assert set(run.task.metadata["units"]) == {"a", "b", "c"}
    assert run.task.metadata["rate"] == RATE
    assert run.history["loss"][-1] < run.history["loss"][0]
    assert run.result["verification"]["passed"]
    directory = root / run.directory
    report = (directory / "report.html").read_text(encoding="utf-8")
    assert "verified" in report and "could not be made" not in report
    rows = (directory / "predictions.csv").read_text().splitlines()
    assert len(rows) == 1 + run.test["examples"]


def test_the_export_is_measured_as_the_run(trained, monkeypatch):
    root, run = trained
    monkeypatch.chdir(root)
    evaluation = export_metrics.require_equal(run, "speech", ("loss", "too_long"))
    assert "note       no loss" in evaluation.text
    assert 0 < evaluation.metrics["word_error_rate"] < 1


def test_files_are_answered_as_by_the_run(trained, workplace):
    root, run = trained
    files = [root / f"speech/wavs/{number}.wav" for number in range(3)]
    contents = [file.read_bytes() for file in files]
    export = root / run.export
    with Client(export) as client:
        served = client.predict("audio_bytes", audio_bytes=contents)
    words = [str(export), *map(str, files), "--output", "rows.jsonl"]
    assert predict.main(words) == 0
    rows = (workplace / "rows.jsonl").read_text().splitlines()
    texts = [json.loads(row)["text"] for row in rows]
    assert texts == list(served["text"])
