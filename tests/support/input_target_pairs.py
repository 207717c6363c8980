"""Examples for each input and target, under names of fields that say nothing."""

import io
import wave
from pathlib import Path

import keras
import numpy as np

from pipeline.config import registry
from pipeline.contracts import Source
from pipeline.data.array_source import ArraySource
from pipeline.layers.joined import flatten

FILE = Path(__file__)
CLASSES = ("a", "b", "c")


def _images(generator, count):
    return generator.integers(0, 256, (count, 8, 8, 1)).astype(np.uint8)


def _features(generator, count):
    return generator.normal(size=(count, 6)).astype(np.float32)


def _texts(generator, count):
    words = np.array(["a", "good", "bad", "film", ",", "café"])
    texts = [" ".join(generator.choice(words, 6)) for _ in range(count)]
    return np.array([text.encode() for text in texts], object)


def _recordings(generator, count):
    """WAV files of tones, the classes by their pitch."""
    files = []
    for number in range(count):
        time = np.arange(generator.integers(600, 1200)) / 8000
        pitch = 300 * (1 + number % len(CLASSES))
        tone = np.sin(2 * np.pi * pitch * time + generator.random())
        samples = 8000 * tone + generator.normal(size=len(time)) * 50
        file = io.BytesIO()
        with wave.open(file, "wb") as sound:
            sound.setparams((1, 2, 8000, 0, "NONE", ""))
            sound.writeframes(samples.astype("<i2").tobytes())
        files.append(file.getvalue())
    return np.array(files, object)


def _series(generator, count):
    """`.npy` files of 15 to 24 steps of two channels."""
    files = []
    for _ in range(count):
        series = generator.normal(size=(generator.integers(15, 25), 2))
        file = io.BytesIO()
        np.save(file, series.astype(np.float32))
        files.append(file.getvalue())
    return np.array(files, object)


def _transcripts(generator, count):
    texts = [f"{CLASSES[number % len(CLASSES)]} é" for number in range(count)]
    return np.array([text.encode() for text in texts], object)


def _classes(generator, count):
    return np.arange(count) % len(CLASSES)


def _labels(generator, count):
    return generator.integers(0, 2, (count, len(CLASSES))).astype(np.uint8)


def _numbers(generator, count):
    return generator.normal(size=count).astype(np.float32)


def _masks(generator, count):
    return generator.integers(0, len(CLASSES), (count, 8, 8)).astype(np.uint8)


def _boxes(generator, count):
    first = generator.uniform(0, 5, (count, 3, 2))
    return np.concatenate([first, first + 3], axis=2).astype(np.float32)


_INPUTS = {
    "image": _images,
    "features": _features,
    "table": lambda generator, count: generator.normal(size=(count, 3)),
    "text": _texts,
    "audio": _recordings,
    "series": _series,
}
_TARGETS = {
    "classes": _classes,
    "labels": _labels,
    "number": _numbers,
    "mask": _masks,
    "boxes": _boxes,
    "transcript": _transcripts,
    "ordinal": _classes,
}
# Outside the package.
_FUNCTIONS = {"series": "series_input.series", "ordinal": "ordinal_target.ordinal"}


def examples_of(input, target, count):
    """Columns x and y of an input and a target, and the names of the classes."""
    generator = np.random.default_rng(0)
    x = _INPUTS[input](generator, count)
    y = _TARGETS[target](generator, count)
    columns = {"id": np.arange(count), "x": x, "y": y}
    if target == "boxes":
        columns["box_labels"] = generator.integers(-1, len(CLASSES), (count, 3))
    return columns, CLASSES


def task_of(info, input, target):
    """The task for the fields x and y."""
    parts = {
        "input": _FUNCTIONS.get(input, input),
        "input_options": {"field": "x"},
        "target": _FUNCTIONS.get(target, target),
        "target_options": {"field": "y"},
    }
    return registry.load("tasks", "supervised")(info, parts)


def model_of(inputs, task):
    """Features that suit the target: a vector, a map or a sequence."""
    is_map = task.target.output is not None and len(task.target.output.shape) > 1
    if is_map or task.metadata["target"] == "boxes":
        return keras.layers.Conv2D(4, 3, padding="same")(inputs)
    if task.metadata["target"] == "transcript":
        return keras.layers.RepeatVector(6)(flatten(inputs))
    return flatten(inputs)


def source(*, given: str, wanted: str, count: int = 90) -> Source:
    """Examples of a pair, as a source of its own."""
    columns, names = examples_of(given, wanted, count)
    return ArraySource(columns, class_names=names, name="pairs")


def words_of(given, wanted):
    """The options of a command for a pair."""
    models = {
        "mask": "unet",
        "boxes": "detector",
        "transcript": "conv_recurrent",
    }
    model = models.get(wanted, "bag" if given == "text" else "mlp")
    return [
        *("--source.name", f"{FILE}:source"),
        *("--source.given", given),
        *("--source.wanted", wanted),
        *("--task.input", given),
        *("--task.input-options", "field=x"),
        *("--task.target", wanted),
        *("--task.target-options", "field=y"),
        *("--model.name", model),
        *(("--model.widths", "4,8") if wanted in ("mask", "boxes") else ()),
    ]


def write_series(folder, count=30):
    """Class folders `slow` and `fast` of time series in `.npy` files."""
    generator = np.random.default_rng(0)
    for speed, name in enumerate(("slow", "fast"), 1):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            steps = np.arange(generator.integers(15, 25))
            wave = np.sin(0.5 * speed * steps + 6 * generator.random())
            noise = generator.normal(size=len(steps))
            series = np.stack([wave, noise], axis=1).astype(np.float32)
            np.save(folder / name / f"{number}.npy", series)


def words_of_series(folder):
    """The options of a command for time series with ordinal classes, both of which are
    files outside the package."""
    return [
        str(folder),
        *("--task.input", f"{FILE.parent / 'series_input.py'}:series"),
        *("--task.target", f"{FILE.parent / 'ordinal_target.py'}:ordinal"),
        *("--model.name", "mlp"),
    ]
