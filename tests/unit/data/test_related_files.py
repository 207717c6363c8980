"""A note if a random test may flatter the model, because files are related."""

import numpy as np
import pytest
from PIL import Image

from pipeline.config import command_line
from pipeline.data import dataset, related_files, splits


def notes(folder, names, *words):
    """The notes on a folder with these files."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(file, "png")
    config = command_line.configure([str(folder), *words])
    source = dataset.open_source(config)
    parts, _ = splits.divide(splits.included(source), config.data)
    return [str(note) for note in related_files.notes(source, parts, config)]


def test_recordings_at_random_are_noted_unless_they_have_groups(tmp_path):
    names = [f"{word}/{n}_{n % 7}.wav" for word in ("no", "yes") for n in range(40)]
    (line,) = notes(tmp_path, names)
    assert line == (
        "the test may be too optimistic: recordings of one speaker, device or place may"
        " be in train and in test (--source.group keeps them in one split)"
    )
    assert notes(tmp_path, names, "--source.group", r"_(\d)") == []
    assert notes(tmp_path, names, "--data.test", "0") == []


@pytest.mark.parametrize(
    ("name", "noted"),
    [
        ("{c}/patient{p}/{n:03}.png", True),
        ("{c}/p{p}_{n:03}.png", True),
        ("{c}/rose-{p}{n:03}.png", False),
        ("{c}/{c}.{p}{n}.png", False),
        ("{c}/{p}{n:03}{c}{p}.png", False),
        ("{c}/{h}.png", False),
    ],
)
def test_pictures_are_noted_if_they_are_in_series(tmp_path, name, noted):
    names = []
    for number in range(120):
        c, p = "ab"[number % 2], number % 8
        h = f"{number * 7919 % 65536:04x}f{number:x}e"
        names.append(name.format(c=c, p=p, n=number, h=h))
    lines = notes(tmp_path, names)
    assert bool(lines) == noted
    if noted:
        assert "series are in train and in test, such as a/p" in lines[0]
