"""Spoken digits: words, unknown speakers, and strings of digits to text.

    python -m benchmarks.scripts.sound {words,few,speakers,strings} RECORDINGS [SEED ...]

RECORDINGS is the directory `recordings` of the Free Spoken Digit Dataset
(github.com/Jakobovski/free-spoken-digit-dataset), whose files are named
DIGIT_SPEAKER_INDEX.wav. Its official test split has the indices 0 to 4.

`words` trains on the official split; `few` on 120 recordings of three words, with the
recipe's epochs and with those that it chooses; `speakers` holds out each speaker in turn;
`strings` makes 1 to 7 digits with pauses and noise of clips of one split, and
transcribes them, with words as units. Prints a line of JSON for each run, with its CPU
time, which includes reading, export and verification.
"""

import contextlib
import io
import json
import os
import resource
import shutil
import sys
import tempfile
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.fit import fit

SEEDS = (0, 1, 2)
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COUNTS = {"train": 4000, "validation": 200, "test": 400}
_METRICS = ("examples", "accuracy", "word_error_rate", "character_error_rate", "exact")
_MAX_DIGITS = 7
_SETTINGS: dict[str, Any] = {"log": {"progress": False, "tensorboard": False}}
# Without the differences of voices and microphones that stay the same in a recording.
_SPEAKERS = {
    "input": "audio",
    "target": "classes",
    "input_options": {"center": "band"},
}
# Ten words need fewer outputs per second than characters.
_STRINGS: dict[str, Any] = {
    "task": {
        "input": "audio",
        "target": "transcript",
        "target_options": {"unit": "words"},
    },
    "model": {"name": "conv_recurrent", "options": {"time_stride": 8}},
    "train": {"epochs": 10},
}


def clips(recordings: Path) -> Iterator[tuple[Path, int, str, int]]:
    """Yields the file, digit, speaker and index of each recording."""
    for path in sorted(recordings.glob("*.wav")):
        digit, speaker, index = path.stem.split("_")
        yield path, int(digit), speaker, int(index)


def class_folders(recordings: Path, folder: Path) -> None:
    """Links recordings as `train/DIGIT/FILE` and `test/DIGIT/FILE`."""
    for path, digit, _, index in clips(recordings):
        split = "test" if index < 5 else "train"
        target = folder / split / str(digit)
        target.mkdir(parents=True, exist_ok=True)
        (target / path.name).symlink_to(path.resolve())


def strings(recordings: Path, folder: Path) -> None:
    """Writes strings of digits and `metadata.csv`.

    Indices 0 to 4 are for the test, 5 to 7 for validation, so that no clip is in two
    splits.
    """
    by_split: dict[str, list[tuple[int, np.ndarray]]] = {name: [] for name in COUNTS}
    for path, digit, _, index in clips(recordings):
        split = "train"
        if index < 8:
            split = "test" if index < 5 else "validation"
        by_split[split].append((digit, _read(path)))
    generator = np.random.default_rng(0)
    lines = ["path,transcript,split"]
    for split, count in COUNTS.items():
        for number in range(count):
            samples, text = _string(by_split[split], generator)
            name = f"{split}{number:04}.wav"
            _write(folder / name, samples)
            lines.append(f"{name},{text},{split}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")


def _string(
    parts: list[tuple[int, np.ndarray]], generator: np.random.Generator
) -> tuple[np.ndarray, str]:
    """1 to 7 clips of any loudness after pauses of 0.05 to 0.4 s, with noise."""
    samples = []
    words = []
    for _ in range(generator.integers(1, _MAX_DIGITS + 1)):
        digit, clip = parts[generator.integers(len(parts))]
        samples.append(np.zeros(generator.integers(400, 3200)))
        samples.append(clip / np.abs(clip).max() * generator.uniform(3000, 15000))
        words.append(WORDS[digit])
    samples.append(np.zeros(generator.integers(400, 1600)))
    sound = np.concatenate(samples)
    noise = generator.normal(size=len(sound)) * generator.uniform(5, 100)
    return sound + noise, " ".join(words)


def _read(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(float)


def _write(path: Path, samples: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(samples.round().clip(-32768, 32767).astype("<i2").tobytes())


def train(folder: Path, seed: int, **sections: Any) -> dict[str, Any]:
    """The metrics of a run, and its CPU time with that of its processes."""
    before = _cpu_seconds()
    with contextlib.redirect_stdout(io.StringIO()):
        run = fit(str(folder), runtime={"seed": seed}, **_SETTINGS, **sections)
    result: dict[str, Any] = {"seed": seed}
    for split in ("validation", "test"):
        for name in _METRICS:
            if name in run.result.get(split, {}):
                result[f"{split}_{name}"] = run.result[split][name]
    return {**result, "cpu_seconds": round(_cpu_seconds() - before, 1)}


def _cpu_seconds() -> float:
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def main(name: str, recordings: Path, seeds: tuple[int, ...]) -> None:
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    data = folder / "data"
    data.mkdir()
    if name == "strings":
        strings(recordings, data)
        for seed in seeds:
            print(json.dumps(train(data, seed, **_STRINGS)), flush=True)
        return
    class_folders(recordings, data)
    if name == "few":
        for path in data.glob("train/*/*.wav"):
            digit, _, index = path.stem.split("_")
            if int(digit) > 2 or int(index) >= 5 + 8:
                path.unlink()
        for folder in (*data.glob("train/[3-9]"), *data.glob("test/[3-9]")):
            shutil.rmtree(folder)
        for seed in seeds:
            for epochs in (20, None):
                options = {"train": {"epochs": epochs}} if epochs else {}
                result = train(data, seed, **options)
                print(json.dumps({"epochs": epochs, **result}), flush=True)
        return
    if name == "words":
        for seed in seeds:
            print(json.dumps(train(data, seed)), flush=True)
        return
    # All recordings, whatever their official split.
    every = folder / "every"
    for path, number, _, _ in clips(recordings):
        (every / str(number)).mkdir(parents=True, exist_ok=True)
        (every / str(number) / path.name).symlink_to(path.resolve())
    speakers = sorted({speaker for _, _, speaker, _ in clips(recordings)})
    for speaker in speakers:
        source = {"options": {"path": every, "group": r"\d_([a-z]+)_"}}
        # With a validation split, only four speakers would be left to train.
        held_out = {"test_groups": (speaker,), "validation": 0.0}
        for seed in seeds:
            result = train(every, seed, source=source, data=held_out, task=_SPEAKERS)
            print(json.dumps({"speaker": speaker, **result}), flush=True)


if __name__ == "__main__":
    chosen, path, *words = sys.argv[1:]
    main(chosen, Path(path).resolve(), tuple(map(int, words)) or SEEDS)
