"""What people really have in their folders: handled, or refused with the file named in one line."""

import io

import numpy as np
import pytest
import tensorflow as tf
from conftest import images_and_labels, run_module
from PIL import Image
from small import loaded

from pipeline import shelf, stores
from pipeline.errors import UsageError, reason

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
    "an HTML page.jpg": (b"<html><body>404</body></html>", "the file is no JPEG, PNG, GIF, BMP"),
    "empty.png": (b"", "the file is no JPEG"),
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
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 2])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return path


def task_of(source, size=(8, 8)):
    facts = shelf.take("tasks", "image_classification", "facts")(source.info, image_size=size)
    return shelf.take("tasks", "image_classification")(facts)


def refusals(source):
    """What is said of each example that cannot be decoded."""
    task = task_of(source)
    for example in source.examples("train"):
        try:
            task.decode(example)
        except tf.errors.OpError as error:
            yield str(stores.undecodable(source, int(example["id"]), error))


def test_odd_images_are_read_and_upright(root):
    source = shelf.take("sources", "folder")(path=root)
    assert source.info.splits == {"train": len(GOOD)} and not list(refusals(source))
    splits = loaded(source, task_of(source, (40, 30)), test=0.0, validation=0.0)[0]
    names = [source.location(int(id)) for id in splits["train"].column("id")]
    upright = splits["train"].column("image")[names.index("ant/a page that is a png.jpg")]
    np.testing.assert_array_equal(upright, PIXELS)


def test_every_bad_file_is_named_in_one_line(root):
    for name, (content, _) in BAD.items():
        (root / "bee" / name).write_bytes(content)
    said = list(refusals(shelf.take("sources", "folder")(path=root)))
    assert len(said) == len(BAD)
    for name, line in zip(sorted(BAD), said, strict=True):
        assert line.startswith(f"bee/{name} cannot be decoded: {BAD[name][1]}"), line
        assert "\n" not in line and "{{" not in line and "tf.Tensor" not in line


def test_every_bad_record_is_named_in_one_line(tmp_path):
    contents = [*GOOD.values(), *(content for content, _ in BAD.values())]
    source = shelf.take("sources", "tfrecord")(path=records(tmp_path / "a.tfrecord", contents))
    said = list(refusals(source))
    assert len(said) == len(BAD)
    for number, line in enumerate(said, start=len(GOOD)):
        message = list(BAD.values())[number - len(GOOD)][1]
        assert line.startswith(f"record {number} of a.tfrecord cannot be decoded: {message}"), line
        assert "\n" not in line and "{{" not in line and "tf.Tensor" not in line


def test_a_page_among_the_pictures_ends_the_load_with_its_name(root):
    (root / "ant/page.jpg").write_bytes(b"<html>")
    source = shelf.take("sources", "folder")(path=root)
    with pytest.raises(UsageError, match=r"^ant/page.jpg cannot be decoded: the file is no JPEG"):
        loaded(source, task_of(source))


def test_the_command_names_the_file_and_nothing_else(root, tmp_path):
    (root / "ant/page.jpg").write_bytes(b"<html>")
    done = run_module(
        "pipeline.fit",
        *("digits", "--source.name", "folder", "--source.path", root),
        *("--data.image-size", 8, 8, "--data.cache", "memory"),
        cwd=tmp_path,
    )
    assert done.returncode == 2 and not (tmp_path / "runs").exists()
    assert done.stderr.splitlines()[-1].startswith(
        "error: ant/page.jpg cannot be decoded: the file"
    )
    assert "Traceback" not in done.stderr


def test_one_class_is_refused(tmp_path):
    (tmp_path / "f/only").mkdir(parents=True)
    (tmp_path / "f/only/a.png").write_bytes(encoded())
    source = shelf.take("sources", "folder")(path=tmp_path / "f")
    with pytest.raises(UsageError, match=r"at least 2 classes, found .*only"):
        task_of(source)
    images, _ = images_and_labels()
    np.savez(tmp_path / "one.npz", images=images, labels=np.zeros(60, int))
    with pytest.raises(UsageError, match="at least 2 classes"):
        task_of(shelf.take("sources", "arrays")(path=tmp_path / "one.npz"))
    with pytest.raises(UsageError, match="at least 2 classes"):
        task_of(
            shelf.take("sources", "tfrecord")(path=records(tmp_path / "a.tfrecord", [encoded()]))
        )


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("{{function_node __wrapped__X}} it broke [Op:X] name: ", "it broke"),
        ("assertion failed: [damaged record in] [/a b/c] [number] [4]\n\t [[{{node A}}]]", None),
        (
            "Expected 'tf.Tensor(False)' to be true. Summarized data: b'damaged record in'\n"
            "b'/a b/c'\nb'number'\n4",
            None,
        ),
        (
            "Graph execution error:\n\nDetected at node X defined at (most recent call last):\n"
            '  File "x.py", line 4, in f\n\nInvalid PNG data, size 6\n\t [[{{node X}}]] [Op:__f_1]',
            "Invalid PNG data, size 6",
        ),
        ("Key: label.  Can't parse serialized Example.\n\t [[{{node B}}]]", "Key: label.  Can't"),
    ],
)
def test_the_reason_of_an_error_is_one_plain_line(message, wanted):
    error = tf.errors.InvalidArgumentError(None, None, message)
    assert reason(error).startswith(wanted or "damaged record in /a b/c number 4")
    assert "\n" not in reason(error)
