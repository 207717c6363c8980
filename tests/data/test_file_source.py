"""Examples in files: their bytes, further columns, and what is known of images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small import read

from pipeline.data.file_source import FileSource
from pipeline.utils.errors import UsageError


@pytest.fixture
def files(tmp_path):
    """Two images, two masks, and two arrays."""
    names = {}
    for field, suffix in {"image": "png", "mask": "png", "features": "npy"}.items():
        names[field] = [str(tmp_path / f"{field}{n}.{suffix}") for n in (0, 1)]
    for number in (0, 1):
        Image.new("RGB", (6, 4), (number, 0, 0)).save(names["image"][number])
        Image.new("L", (6, 4), number).save(names["mask"][number])
        np.save(names["features"][number], np.full((3, 2), number, np.float32))
    return names


def source_of(paths, root="", **columns):
    columns = {"id": np.array([7, 5]), **columns}
    return FileSource({"train": paths}, {"train": columns}, None, root=str(root))


def test_each_file_is_a_field(files, tmp_path):
    paths = {field: files[field] for field in ("image", "mask")}
    target = np.array([0.5, 1.5], np.float32)
    source = source_of(paths, tmp_path, target=target)
    assert source.info.image_shape == (4, 6, 3)
    for number, example in enumerate(read(source)):
        for field in paths:
            content = (tmp_path / f"{field}{number}.png").read_bytes()
            assert example[field] == content
        assert example["target"] == target[number]
    assert source.location(7) == "image0.png"
    assert set(source.columns("train")) == {"id", "target"}


def test_files_of_other_fields_are_not_taken_for_images(files):
    source = source_of({"features": files["features"]})
    assert source.info.fields.keys() == {"id", "features"}
    assert source.info.image_shape == (None, None, None) and not source.info.notes
    for number, example in enumerate(read(source)):
        assert example["features"] == Path(files["features"][number]).read_bytes()


def test_each_file_is_part_of_the_fingerprint(files):
    paths = {field: files[field] for field in ("image", "mask")}
    before = source_of(paths).fingerprint()
    assert source_of(paths).fingerprint() == before
    assert source_of({"image": files["image"]}).fingerprint() != before
    Image.new("L", (9, 9)).save(files["mask"][1])
    assert source_of(paths).fingerprint() != before


def test_a_missing_file_is_named():
    with pytest.raises(UsageError, match="gone.npy cannot be read: No such file"):
        source_of({"features": ["gone.npy", "gone.npy"]})
