"""Warnings of libjpeg and libpng: none on the console, but one note with the names of
images.
"""

import shutil
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from pipeline.config import command_line, registry
from pipeline.data import dataset
from pipeline.evaluation import labelled_data
from pipeline.utils.errors import UsageError


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Class folders a and b; a/3.jpg has a marker too many, b/5.png a wrong color
    profile.
    """
    root = tmp_path_factory.mktemp("scans")
    for number in range(24):
        name, kind = "ab"[number % 2], ("jpg", "png")[number % 4 == 1]
        (root / name).mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), np.uint8)
        Image.fromarray(pixels).save(root / name / f"{number:02}.{kind}")
    jpeg = root / "a/02.jpg"
    content = jpeg.read_bytes()
    jpeg.write_bytes(content[:-2] + bytes(40) + content[-2:])
    jpeg = root / "b/07.jpg"
    content = jpeg.read_bytes()
    jpeg.write_bytes(content[:-20] + content[-2:])  # too short, but with an end
    png = root / "b/05.png"
    content = png.read_bytes()
    profile = b"iCCP" + b"x" + bytes(2) + zlib.compress(b"no profile")
    chunk = struct.pack(">I", len(profile) - 4) + profile
    png.write_bytes(
        content[:33] + chunk + struct.pack(">I", zlib.crc32(profile)) + content[33:]
    )
    return root


NOISE = ("Corrupt JPEG", "PNG warning", "Premature")


def config(path, **data):
    words = ["--source.path", str(path), "--task.name", "image_classification"]
    return command_line.configure(["digits", *words]).changed(
        data={"augment": {}, **data}
    )


@pytest.mark.parametrize(
    "cache", ["memory", pytest.param("disk", marks=pytest.mark.long)]
)
def test_one_note_names_the_images(scans, cache, tmp_path, capfd):
    loaded = dataset.load(config(scans, cache=cache, cache_directory=tmp_path))
    (note,) = (decision for decision in loaded.decisions if decision.name == "note")
    assert "a/02.jpg, b/" in note.value and "b/07.jpg" in note.value
    assert not any(word in capfd.readouterr().err for word in NOISE)


def test_other_commands_are_silent_too(scans, capfd):
    metadata = {"class_names": ["a", "b"], "image_shape": [12, 12, 3]}
    task = registry.load("tasks", "image_classification")(metadata)
    splits, _ = labelled_data.load_splits(scans, task)
    assert splits["data"].column("image").shape == (24, 12, 12, 3)
    assert not any(word in capfd.readouterr().err for word in NOISE)


def test_a_damaged_image_is_named_without_words_of_the_decoder(scans, tmp_path, capfd):
    shutil.copytree(scans, tmp_path, dirs_exist_ok=True)
    jpeg = tmp_path / "a/00.jpg"
    jpeg.write_bytes(jpeg.read_bytes()[:184])  # within the header
    with pytest.raises(UsageError, match="a/00.jpg"):
        dataset.load(config(tmp_path, cache="memory"))
    assert "Improper call" not in capfd.readouterr().err


def test_images_without_warnings_have_no_note(scans, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for file in (scans / name).glob("*.jpg"):
            if file.name not in ("02.jpg", "07.jpg"):
                (tmp_path / name / file.name).write_bytes(file.read_bytes())
    loaded = dataset.load(config(tmp_path, cache="memory"))
    assert "note" not in [decision.name for decision in loaded.decisions]
