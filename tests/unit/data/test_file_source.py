"""Examples in files: their bytes, further columns, and what is known of images."""

import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from toy_problem import read

from pipeline.data import file_source, splits
from pipeline.data.file_list import FileList
from pipeline.data.file_source import FileSource
from pipeline.data.sources.folder import folder
from pipeline.utils import progress_bar, tiff
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
    lists = {field: FileList.of(names, str(root)) for field, names in paths.items()}
    return FileSource({"train": lists}, {"train": columns}, None)


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
    Image.new("L", (6, 4)).save(files["mask"][1])
    assert source_of(paths).fingerprint() != before


def test_a_missing_file_is_named():
    with pytest.raises(UsageError, match="gone.npy cannot be read: No such file"):
        source_of({"features": ["gone.npy", "gone.npy"]})


def test_a_list_of_files_needs_few_bytes_beyond_their_names(tmp_path):
    status = tmp_path.stat()
    names = [f"class_{n % 10}/é{n:06}.jpg" for n in range(20_000)]
    tracemalloc.start()
    files = FileList(str(tmp_path))
    for name in names:
        files.add(name, status)
    needed, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert needed < 20_000 * (len(names[0].encode()) + 16)
    assert list(files.names()) == names and files[7] == str(tmp_path / names[7])


def test_files_outside_the_root_keep_their_paths(files, tmp_path):
    inside, outside = files["image"]
    source = source_of({"image": [inside, outside]}, tmp_path / "elsewhere")
    assert source.location(5) == outside
    assert [e["image"] for e in read(source)] == [
        Path(name).read_bytes() for name in (inside, outside)
    ]


def test_a_file_that_vanishes_after_it_was_listed_is_named(files):
    split = splits.included(source_of(files))["train"]
    Path(files["image"][1]).unlink()
    with pytest.raises(UsageError, match="image1.png cannot be read.*No such file"):
        split.take(np.arange(2))


def test_one_file_is_read_without_the_tensors_of_all(files, monkeypatch):
    read = source_of(files).reader("train")
    monkeypatch.setattr(tf, "gather", None)
    example = read(tf.constant(1))
    assert example["image"].numpy() == Path(files["image"][1]).read_bytes()
    assert example["id"].numpy() == 5


@pytest.fixture
def headers(monkeypatch):
    """The files whose headers are read; the sample of a split has two of them."""
    opened = []
    read_shape = file_source._shape
    monkeypatch.setattr(file_source, "_SAMPLE", 2)
    monkeypatch.setattr(
        file_source, "_shape", lambda path: opened.append(path) or read_shape(path)
    )
    return opened


SHAPES = {
    # Modes and widths of six images -> their channels if a size is given, their common
    # shape, and the headers that are read for the one and then for the other.
    "color": (["RGB"] * 6, [6] * 6, 3, (4, 6, 3), 2, 8),
    "gray": (["L"] * 6, [6] * 6, 1, (4, 6, 1), 8, 8),
    "one in color": (["L", "L", "RGB", "L", "L", "L"], [6] * 6, 3, (4, 6, 3), 8, 8),
    "sizes": (["L"] * 6, [6, 6, 6, 6, 6, 7], None, (None, None, None), 2, 2),
    "one other size": (["RGB"] * 6, [6, 7, 6, 6, 6, 6], 3, (None, None, None), 2, 4),
}


@pytest.mark.parametrize("case", SHAPES)
def test_headers_are_read_only_if_a_sample_does_not_decide(tmp_path, headers, case):
    modes, widths, channels, shape, with_size, without = SHAPES[case]
    paths = [str(tmp_path / f"{number}.png") for number in range(6)]
    for path, mode, width in zip(paths, modes, widths, strict=True):
        Image.new(mode, (width, 4)).save(path)
    info = source_of({"image": paths}, id=np.arange(6)).info
    assert info.exact_image_shape(channels_only=True)[2] == channels
    assert len(headers) == with_size
    assert info.exact_image_shape() == info.exact_image_shape() == shape
    assert len(headers) == without


def test_all_headers_are_read_with_a_progress_bar(files, headers, capsys, monkeypatch):
    monkeypatch.setattr(file_source, "_SAMPLE", 1)
    info = source_of({"image": files["image"]}).info
    with progress_bar.show(True):
        assert info.exact_image_shape() == (4, 6, 3)
    assert "measuring  the sizes of 2 images" in capsys.readouterr().out


def test_the_header_may_come_after_a_long_thumbnail(tmp_path, monkeypatch):
    monkeypatch.setattr(file_source, "_HEADER", 200)
    path = str(tmp_path / "1.jpg")
    Image.new("L", (6, 4)).save(path, icc_profile=bytes(1000))
    source = source_of({"image": [path, path]})
    assert source.info.image_shape == (4, 6, 1)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiff_images_are_read_as_png(tmp_path, dtype):
    generator = np.random.default_rng(0)
    most = 200 if dtype == np.uint8 else 3000
    images = generator.integers(0, most, (4, 5, 6)).astype(dtype)
    for number, image in enumerate(images):
        suffix = "tif" if number else "png"
        path = tmp_path / f"class{number % 2}" / f"{number}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path)
    source = folder(path=tmp_path)
    assert source.info.image_shape == (5, 6, 1)
    assert source.info.image_bits == (16 if dtype == np.uint8 else 12)
    for example in source.examples("train").as_numpy_iterator():
        number = int(source.location(int(example["id"])).partition("/")[2][0])
        found = np.asarray(Image.open(io.BytesIO(example["image"])))
        assert example["image"].startswith(b"\x89PNG") and found.dtype == dtype
        np.testing.assert_array_equal(found, images[number])


def test_the_order_of_bytes_of_a_tiff_does_not_matter():
    values = np.array([[500, 4000]], ">u2")
    file = io.BytesIO()
    Image.frombytes("I;16B", (2, 1), values.tobytes()).save(file, "TIFF")
    found = np.asarray(Image.open(io.BytesIO(tiff.to_png(file.getvalue()))))
    np.testing.assert_array_equal(found, values)
    file = io.BytesIO()
    Image.fromarray(np.ones((2, 2), np.float32)).save(file, "TIFF")
    assert tiff.to_png(file.getvalue()) == tiff.DAMAGED  # of an unknown range


def test_a_damaged_tiff_is_refused_by_whoever_decodes_it():
    assert tiff.to_png(b"II*\0damaged") == tiff.DAMAGED
    assert not tiff.is_deep(b"II*\0damaged")
