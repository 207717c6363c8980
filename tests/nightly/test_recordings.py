"""Recordings in class folders: trained by their path, exported and served."""

import numpy as np
from recordings import wav

from pipeline.fit import fit
from pipeline.serving.client import Client

RATE = 8000
PITCHES = {"high": 1500, "low": 300}


def test_tones_in_folders_are_told_apart(workplace):
    generator = np.random.default_rng(0)
    steps = np.arange(RATE // 4) / RATE
    for name, pitch in PITCHES.items():
        (workplace / "tones" / name).mkdir(parents=True)
        for number in range(40):
            tone = np.sin(2 * np.pi * pitch * steps + 6 * generator.random())
            content = wav(8000 * tone + 100 * generator.normal(size=len(steps)), RATE)
            (workplace / f"tones/{name}/{number}.wav").write_bytes(content)
    run = fit("tones", epochs=8, batch_size=8, log={"tensorboard": False})
    assert run.config.recipe == "recordings"
    assert run.result["verification"]["passed"]
    assert run.history["loss"][-1] < run.history["loss"][0]
    files = [workplace / f"tones/{name}/0.wav" for name in PITCHES]
    contents = [file.read_bytes() for file in files]
    with Client(run.export) as client:
        served = client.predict("audio_bytes", audio_bytes=contents)
    expected = run.predict("audio_bytes", audio_bytes=contents)
    np.testing.assert_allclose(
        served["probabilities"], expected["probabilities"], atol=1e-5
    )
    assert list(served["label"]) == list(PITCHES)
