"""A folder of photos in one line, and what is said of folders that have faults."""

import re

import numpy as np
import pytest
from PIL import Image
from processes import run_module

from pipeline import fit as command
from pipeline.config import command_line


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """JPEGs of several sizes and modes of bright and dark pictures; two are filed
    twice.
    """
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for number in range(80):
        name, level = (("daisy", 150), ("Rose", 0))[number % 2]
        side = (32, 40, 48)[number % 3]
        image = Image.fromarray(
            generator.integers(level, level + 100, (side, 40, 3), np.uint8)
        )
        path = root / f"flowers/{name}/{number}.{'png' if number % 5 == 0 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.convert("L" if number % 7 == 0 else "RGB").save(path)
    (root / "flowers/roses").mkdir()
    for copy in ("Rose/1", "Rose/3"):
        (root / f"flowers/{copy.replace('Rose', 'roses')}.jpg").write_bytes(
            (root / f"flowers/{copy}.jpg").read_bytes()
        )
    return root


SMALL = (
    "--epochs 2 --export.no-enabled --image-size 16 --model.name tiny --batch-size 16"
)


def test_a_folder_in_one_line_is_trained_and_resumed(photos, workplace):
    process = run_module("pipeline.fit", photos, *SMALL.split(), cwd=workplace)
    assert process.returncode == 0, process.stderr
    said, after = process.stdout.split(f"run        photos in runs/{photos.name}-1\n")
    assert said.startswith(f"data       {photos}/flowers, the only data in {photos}\n")
    assert re.search(r"note +similar classes: 'Rose' and 'roses' \(", after)
    assert "duplicates: 2 examples, 2 of them in two classes, such as " in after
    words = [str(photos), *SMALL.split(), "--run-directory", f"runs/{photos.name}-1"]
    run = command.run(command_line.request(words))
    assert len(run.history["loss"]) == 2
