"""Splits and samples: stable when examples are added, and what a resumed run requires
of them.
"""

import json

import pytest
from PIL import Image
from random_images import images_and_labels

from pipeline.config import command_line, registry
from pipeline.data import dataset
from pipeline.runtime import run_directory
from pipeline.utils.errors import UsageError


def test_a_run_is_resumed_if_only_the_times_of_files_have_changed(tmp_path):
    root, images = tmp_path / "data", images_and_labels(20, (8, 8, 1))[0]
    for number, image in enumerate(images):
        path = root / "ab"[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(path)
    settings = command_line.recipe("digits").changed(
        source={"name": "folder", "path": root}, run_directory=tmp_path / "run"
    )
    run = run_directory.RunDirectory(tmp_path / "run")
    run.path.mkdir()
    dataset.load(settings).write(run)
    before = registry.load("sources", "folder")(path=root).fingerprint()
    (tmp_path / "copy.png").write_bytes((root / "a/00.png").read_bytes())
    (tmp_path / "copy.png").rename(root / "a/00.png")
    now = registry.load("sources", "folder")(path=root).fingerprint()
    assert now != before
    resumed = dataset.load(settings)
    assert "changed" not in {decision.name for decision in resumed.decisions}
    resumed.write(run)
    assert json.loads(run.source.read_text())["fingerprint"] == now
    Image.fromarray(images[5][..., 0]).save(root / "a/00.png")
    with pytest.raises(
        UsageError, match="has changed since the run in .*/run began: the content"
    ):
        dataset.load(settings)
    uncached = settings.changed(data={"cache": "none"})
    with pytest.raises(
        UsageError, match="other times or sizes, and without a cache, content is"
    ):
        dataset.load(uncached)
    forced = dataset.load(settings.changed(force=True))
    assert "changed" in {decision.name for decision in forced.decisions}
    forced.write(run)
    dataset.load(settings)  # the recorded data from now on
