"""Files that people have: read, or refused in one line that names the file."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from random_images import images_and_labels
from toy_problem import loaded

from pipeline.config import command_line, registry
from pipeline.data import example_store
from pipeline.data.cleaning import apply, manifest
from pipeline.training import preflight
from pipeline.utils.errors import UsageError, reason

GENERATOR = np.random.default_rng(5)
PIXELS = GENERATOR.integers(0, 256, (40, 30, 3), np.uint8)


def encoded(kind="PNG", mode="RGB", **options):
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, kind, **options)
    return file.getvalue()


def sixteen_bits():
    file = io.BytesIO()
    Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257).save(file, "PNG")
    return file.getvalue()


def bomb():
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60_000).to_bytes(4, "big") * 2
    return header + encoded()[24:]


BAD = {
    "an HTML page.jpg": (
        b"<html><body>404</body></html>",
        "the file is not a JPEG, PNG, GIF, BMP",
    ),
    "empty.png": (b"", "the file is not a JPEG"),
    "cut é.jpg": (encoded("JPEG")[:300], "Invalid JPEG data"),
    "cut.png": (encoded()[:900], "Invalid PNG data"),
    "bomb.png": (bomb(), "the image has no pixels, or more than the limit of 89478485"),
    "cut.gif": (encoded("GIF")[:900], "the GIF ends within its first frame"),
}
EXIF = Image.Exif()
EXIF[0x0112] = 6
GOOD = {
    "cmyk.jpg": encoded("JPEG", "CMYK"),
    "turned.JPEG": encoded("JPEG", exif=EXIF),
    "grey.png": encoded(mode="L"),
    "16 bits.png": sixteen_bits(),
    "alpha.png": encoded(mode="RGBA"),
    "palette.gif": encoded("GIF", "P"),
    "b.bmp": encoded("BMP"),
    "w.webp": encoded("WEBP", lossless=True),
    "a page that is a png.jpg": encoded(),
}


@pytest.fixture
def root(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / "insects" / name).mkdir(parents=True)
    for number, (name, content) in enumerate(GOOD.items()):
        (tmp_path / "insects" / ("ant", "bee")[number % 2] / name).write_bytes(content)
    return tmp_path / "insects"


def records(path, contents):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, content in enumerate(contents):
            features = {
                "image": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[content])
                ),
                "label": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[number % 2])
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return path


def task_of(source, size=(8, 8)):
    metadata = registry.load("tasks", "image_classification")(
        source.info, image_size=size
    ).metadata
    return registry.load("tasks", "image_classification")(metadata)


def refusals(source):
    """The message for each example that cannot be decoded."""
    task = task_of(source)
    for example in source.examples("train"):
        try:
            task.decode(example)
        except tf.errors.OpError as error:
            yield str(example_store.decoding_error(source, int(example["id"]), error))


def test_odd_images_are_read(root):
    source = registry.load("sources", "folder")(path=root)
    assert source.info.splits == {"train": len(GOOD)} and not list(refusals(source))


def test_every_bad_file_or_record_is_named_in_one_line(root, tmp_path):
    contents = [*GOOD.values(), *(content for content, _ in BAD.values())]
    path = records(tmp_path / "a.tfrecord", contents)
    found = list(refusals(registry.load("sources", "tfrecord")(path=path)))
    messages = [message for _, message in BAD.values()]
    places = [
        f"record {number} of a.tfrecord" for number in range(len(GOOD), len(contents))
    ]
    for name, (content, _) in BAD.items():
        (root / "bee" / name).write_bytes(content)
    found += refusals(registry.load("sources", "folder")(path=root))
    messages += [message for _, (_, message) in sorted(BAD.items())]
    places += [f"bee/{name}" for name in sorted(BAD)]
    for place, message, line in zip(places, messages, found, strict=True):
        assert line.startswith(f"{place} cannot be decoded: {message}"), line
        assert "\n" not in line and "{{" not in line and "tf.Tensor" not in line


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("{{function_node __wrapped__X}} it broke [Op:X] name: ", "it broke"),
        (
            (
                "assertion failed: [damaged record in] [/a b/c] [number] [4]\n\t"
                " [[{{node A}}]]"
            ),
            None,
        ),
        (
            (
                "Graph execution error:\n\nDetected at node X defined at (most recent"
                ' call last):\n  File "x.py", line 4, in f\n\nInvalid PNG data, size'
                " 6\n\t [[{{node X}}]] [Op:__f_1]"
            ),
            "Invalid PNG data, size 6",
        ),
        (
            "Key: label.  Can't parse serialized Example.\n\t [[{{node B}}]]",
            "Key: label.  Can't",
        ),
    ],
)
def test_the_reason_of_an_error_is_one_plain_line(message, expected):
    error = tf.errors.InvalidArgumentError(None, None, message)
    assert reason(error).startswith(expected or "damaged record in /a b/c number 4")
    assert "\n" not in reason(error)


def test_a_run_directory_among_the_data_is_refused(root, monkeypatch):
    monkeypatch.chdir(root)
    settings = command_line.recipe("digits").changed(
        source={"name": "folder", "path": "."}
    )
    with pytest.raises(UsageError, match="--run-directory: runs"):
        preflight.check(settings)


def test_a_manifest_of_other_data_is_refused(root, tmp_path):
    source = registry.load("sources", "folder")(path=root)
    path = tmp_path / "manifest.jsonl"
    path.write_text('{"id": 7, "reason": "blank", "action": "drop"}')
    settings = command_line.recipe("digits").changed(clean={"manifest": path})
    with pytest.raises(UsageError, match="none of the 1 examples"):
        apply.clean(source, settings)
    first = int(source.columns("train")["id"][0])
    entries = [
        {"id": 7, "reason": "blank", "action": "drop"},
        {"id": first, "file": "elsewhere/cat.png", "reason": "blank", "action": "drop"},
        {
            "id": first,
            "file": source.location(first),
            "reason": "tiny",
            "action": "drop",
        },
    ]
    manifest.write(path, entries)
    found = apply.clean(source, settings)
    assert (
        found.excluded == {first: "tiny"}
        and found.decisions[0].value == "1 tiny excluded"
    )


def test_a_label_out_of_range_is_named_and_can_be_excluded(tmp_path):
    images, labels = images_and_labels(30, (8, 8, 1))
    labels[[11, 12]] = -1, 7
    path = tmp_path / "mine.npz"
    np.savez(path, images=images, labels=labels, class_names=["a", "b", "c"])
    source = registry.load("sources", "arrays")(path=path)
    task = task_of(source)
    with pytest.raises(
        UsageError,
        match="example 11 of mine.npz .* 0 to 2; got -1",
    ):
        loaded(source, task)
    settings = command_line.recipe("digits").changed(clean={"enabled": True})
    found = apply.clean(source, settings)
    assert found.excluded == dict.fromkeys((11, 12), "label out of range")
    splits, _ = loaded(source, task, found.excluded)
    assert sum(map(len, splits.values())) == 28
