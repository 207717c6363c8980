"""Inspecting data: the statistics are right, the page shows the data, the bottleneck is
named.
"""

import base64
import io
import re

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from random_images import images_and_labels
from toy_problem import random_split

from pipeline import inspect
from pipeline.config import objects, registry
from pipeline.config.sections import SourceConfig
from pipeline.data import dataset, image_sizes
from pipeline.data.array_source import ArraySource
from pipeline.data.augmentation import Augmenter
from pipeline.evaluation import dataset_report
from pipeline.recipes import tabular
from pipeline.runtime import dtype_policy
from pipeline.tasks.targets.classes import ClassTarget
from pipeline.training import speed
from pipeline.utils import html_pages
from pipeline.utils.errors import UsageError


@pytest.fixture
def quick(monkeypatch):
    """Short measurements."""
    monkeypatch.setattr(speed, "_MAX_SECONDS", 0.2)


def pictures(html):
    """(array, title) of the pictures in some HTML."""
    found = re.findall(r'src="data:image/\w+;base64,([^"]+)" title="([^"]*)"', html)
    return [
        (np.array(Image.open(io.BytesIO(base64.b64decode(d)))), t) for d, t in found
    ]


def test_without_a_common_size_it_shows_what_is_known(workplace, capsys):
    generator = np.random.default_rng(0)
    for number in range(12):
        path = workplace / f"data/{'ab'[number % 3 == 0]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = generator.integers(0, 256, (10 + number, 20, 3), np.uint8)
        Image.fromarray(image).save(path)
    (workplace / "data/a/gone.png").write_bytes(b"")
    with pytest.raises(UsageError, match="different sizes.*--data.image-size"):
        inspect.inspect("digits", source={"name": "folder", "path": "data"})
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert said["files"].startswith(
        "a sample of train: 12 PNG RGB, 1 unreadable; heights 10"
    )
    assert not (workplace / "inspected").exists()


def test_the_report_on_a_classification_is_right(
    workplace, quick, npz, monkeypatch, capsys
):
    monkeypatch.setattr(
        dtype_policy, "fast_policy", lambda: ("mixed_bfloat16", "planted")
    )
    images, labels = images_and_labels(count=600)
    labels[:200] = 0
    images[300:350] = images[:50]
    names = np.array(["<a>", "b", "c"])
    path = npz(images=images, labels=labels, class_names=names)
    shown = inspect.inspect(
        "digits_tiny",
        source={"name": "arrays", "path": path},
        data={
            "augment": {"flip": {}, "crop": {"padding": 2}},
            "validation": 0.1,
            "test": 0.2,
        },
        runtime={"replicas": 1},
        train={"batch_size": 16},
    )
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    sizes = {k: int(v) for k, v in re.findall(r"(\w+) (\d+)", said["examples"])}
    assert sum(sizes.values()) == 600 and set(sizes) == {"train", "validation", "test"}
    rows = {name: [int(n) for n in said[name].split()] for name in names}
    assert np.sum(list(rows.values()), axis=0).tolist() == list(sizes.values())
    assert [sum(row) for row in rows.values()] == np.bincount(labels).tolist()
    found = (
        r"3, with (\d+) to (\d+) examples in train; .* '<a>' is right for \S+ of test"
    )
    train = [row[0] for row in rows.values()]
    assert re.match(found, said["classes"]).groups() == (
        str(min(train)),
        str(max(train)),
    )
    assert re.match(
        r"exact copies of examples in another split: \d+ in validation, ", said["note"]
    )
    assert said["cache"].startswith("memory (") and said["augment"].startswith(
        "device ("
    )
    assert all(re.match(r"[\d,]+ examples/s", said[name]) for name in ("feed", "step"))
    assert re.match(r"the (step|feed): .* speed it up", said["bottleneck"])
    assert "too short for a trial" in said["precision"]
    html = shown.read_text()
    assert (
        shown.parent.name == "digits_tiny-1"
        and "&lt;a&gt;" in html
        and "<a>" not in html
    )
    assert not re.search(r'(src|href)="(?!data:|#)', html), (
        "the page needs another file"
    )
    for image, title in pictures(html)[:6]:  # of class a, at its place in the file
        label, example = re.fullmatch(
            r"(.*): example (\d+) of examples\.npz", title
        ).groups()
        assert label == "&lt;a&gt;" and labels[int(example)] == 0
        np.testing.assert_array_equal(image, images[int(example), :, :, 0])


def test_a_table_is_drawn_without_files_classes_and_augmentation(
    workplace, quick, capsys
):
    page = inspect.inspect("regression_linear", train={"batch_size": 32, "epochs": 1})
    said = capsys.readouterr().out
    assert not re.search(r"^(classes|files|augment)", said, re.MULTILINE)
    assert "task       number from features (requested)" in said
    html = page.read_text()
    assert re.findall("<h2>(.*)</h2>", html) == ["Examples in train"]
    ((figure, _),) = pictures(html)
    assert figure.shape[1] > 1000 and len(np.unique(figure)) > 10
    assert re.search(r"field +target float32, 25 to 346\n", said)
    assert re.search(r"field +features 10 float32, -0\.\d+ to 0\.\d+", said)


def _numbers(shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _images(count):
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (count, 16, 16, 3)).astype(np.uint8)


DATA = {
    "several labels": {
        "image": _images(40),
        "labels": np.eye(3, dtype=np.uint8)[np.arange(40) % 3],
    },
    "several inputs": {
        "left/image": _images(40),
        "right/features": _numbers((40, 4)),
        "target": _numbers(40),
    },
    "series": {"features": _numbers((40, 20, 2)), "label": np.arange(40) % 3},
    "mask": {"image": _images(40), "mask": (_images(40)[..., 0] > 99).astype(np.uint8)},
}


@pytest.mark.parametrize(
    "name",
    [
        name if number < 2 else pytest.param(name, marks=pytest.mark.long)
        for number, name in enumerate(DATA)
    ],
)
def test_examples_of_any_input_and_target_are_drawn(name):
    columns = DATA[name]

    def source():
        return ArraySource(columns, class_names=("a", "b", "c"))

    options = SourceConfig(name=objects.name_of(source, "sources"))
    config = tabular.data(options)
    loaded = dataset.load(config)
    lines = dict(dataset_report.statistics(loaded))
    assert lines["examples"].startswith("train 27") and "files" not in lines
    first, *others = dataset_report.pictures(loaded, config)
    assert first.heading == "Examples in train"
    html = html_pages.page("title", [first])
    assert html.count("<img") == html.count('class="figure"') == 1
    assert bool(others) == ("image" in columns)
    if name == "mask":
        texts = {section.heading: section.text for section in others}
        moved = [heading for heading, text in texts.items() if "mask" in text]
        assert moved and "Augmentation of this run" not in moved


def test_each_augmentation_is_shown_before_and_after():
    train, mine = random_split(40), {"flip": {}, "mixup": {"alpha": 1.0}}
    shown = dataset_report.augmentations(train, mine, 3, str)
    names = [section.heading.split()[1].strip(",") for section in shown]
    others = {"gain", "noise", "spec_augment", "speed", "time_shift", "word_dropout"}
    others.add("mosaic")  # of boxes
    of_images = [name for name in registry.names("augment") if name not in others]
    assert names == ["of", *of_images]
    some = train.take(image_sizes.spread(40, 8))
    for operations, section in (
        (mine, shown[0]),
        ({"flip": {}}, shown[names.index("flip")]),
    ):
        arrays = np.array(
            [image for image, _ in pictures(html_pages.page("title", [section]))]
        )
        before, *after = arrays.reshape(3, 8, 8, 8)
        np.testing.assert_array_equal(before, some["image"][..., 0])
        for epoch, images in enumerate(after):
            batch = {k: tf.constant(v) for k, v in some.items()}
            batch["epoch"] = tf.fill([8], tf.constant(epoch, tf.int64))
            expected = Augmenter(operations, 3)(batch)["image"]
            np.testing.assert_array_equal(images, expected[..., 0])
            assert (images != before).any()


def test_of_many_classes_the_first_are_listed():
    labels = np.arange(400, dtype=np.int64) % 300
    classes = ClassTarget({"class_names": [f"c{i}" for i in range(300)]})
    found = classes.describe({"train": {"label": labels}})
    first, *rows = (text for _, text in found)
    assert first.startswith(
        "300, with 1 to 2 examples in train; always predicting 'c0' is right"
    )
    assert (
        len(rows) == 22
        and rows[1].split() == ["c0", "2"]
        and rows[-1] == "... 280 more"
    )


def test_pages_show_any_levels():
    for array in (
        np.array([[[0], [65535]]], np.uint16),
        np.array([[[0.0], [1.0]]], np.float32),
        np.array([[[-3.0], [5.0]]], np.float32),
    ):
        ((image, _),) = pictures(f'src="{html_pages.image(array)}" title=""')
        assert image.tolist() == [[0, 255]]


def test_the_verdict_names_the_bottleneck():
    fast, slow = speed.bottleneck(1000, 25_000), speed.bottleneck(1000, 500)
    assert fast.startswith("the step: the feed alone is 25.0 times as fast; ")
    assert slow.startswith("the feed: the step alone is 2.0 times as fast; ")
    assert "16-bit" in fast
    assert "16-bit" not in speed.bottleneck(1000, 25_000, "mixed_bfloat16")
