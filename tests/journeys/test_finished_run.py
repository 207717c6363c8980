"""`Run` in a notebook, opened by a later process, and the command `evaluate`."""

import base64
import dataclasses
import io
import json
import pickle
import re
import shlex
import shutil
from pathlib import Path

import digit_files
import numpy as np
import pytest
import report_text
import tensorflow as tf
from PIL import Image
from random_images import images_and_labels
from report_text import FAILED
from toy_problem import random_split

from pipeline import evaluate, inspect, predict
from pipeline.compare import compare
from pipeline.config import command_line, objects, registry
from pipeline.config.sections import SourceConfig
from pipeline.data import dataset, image_sizes
from pipeline.data.array_source import ArraySource
from pipeline.data.augmentation import Augmenter
from pipeline.data.in_memory import from_object
from pipeline.evaluation import labelled_data
from pipeline.recipes import tabular
from pipeline.report import dataset_report, page, run_sections
from pipeline.report.evaluation import Evaluation
from pipeline.report.run import Run
from pipeline.report.target_report import report_of
from pipeline.runtime import dtype_policy
from pipeline.tasks.generation import generation
from pipeline.tasks.targets.classes import ClassTarget
from pipeline.training import speed
from pipeline.utils import html_pages
from pipeline.utils.errors import UsageError


@pytest.fixture(scope="module")
def loaded(digits_run):
    """The shared run, as a process without it opens it."""
    return Run.load(digits_run.directory)


@pytest.fixture
def folder(digits_run, workplace):
    """Files of digits, and the accuracy of the shared run on them."""
    photos = workplace / "photos"
    return photos, digit_files.write(digits_run, photos)


def test_a_pickled_run_is_opened_from_its_directory(digits_run):
    again = pickle.loads(pickle.dumps(digits_run))
    assert again.directory == digits_run.directory.resolve()
    assert again.test == digits_run.test


def test_a_run_is_shown_with_its_numbers_and_pictures(digits_run, loaded):
    for run in (digits_run, loaded):
        assert f"accuracy {run.test['accuracy']:.4f}" in repr(
            run
        ) and "3 of 3 epochs" in repr(run)
        assert run._repr_html_().count("data:image/png;base64,") == 2
        assert [axes.get_title() for axes in run.plot().axes] == [
            *("loss", "accuracy", "learning_rate"),
        ]
    assert loaded.history == digits_run.history and loaded.result == digits_run.result
    assert (
        loaded.export == digits_run.export
        and loaded.result_file == digits_run.result_file
    )
    lines = repr(run.history).splitlines()
    assert len(lines) == 4 and lines[0].split() == list(run.history)


def test_a_later_process_measures_what_the_run_has_measured(digits_run, loaded):
    assert loaded.evaluation.metrics == digits_run.test
    assert (
        loaded.evaluate(split="validation").metrics == digits_run.result["validation"]
    )
    texts = [axes.get_title() for axes in loaded.mistakes().axes]
    assert texts and texts == [axes.get_title() for axes in digits_run.mistakes().axes]
    images = digits_run.splits["test"].column("image")[:9]
    again = Run.load(digits_run.directory)  # from `model.keras`, without the data
    for run in (digits_run, again):
        predictions = run.model.predict(images.astype("float32"), verbose=0)
        np.testing.assert_array_equal(
            predictions.argmax(axis=1), run.predict(images)["class"]
        )
    assert again._trainer is None
    with pytest.raises(UsageError, match="did you mean 'test'"):
        loaded.evaluate(split="tset")


def with_config(run, folder, **changes):
    """A copy of a run whose config has other values on its top level or in runtime."""
    shutil.copytree(run.directory, folder)
    values = json.loads((folder / "config.json").read_text())
    runtime = changes.pop("runtime", {})
    values |= {**changes, "runtime": {**values["runtime"], **runtime}}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_a_run_of_another_machine_is_measured_on_this_one(digits_run, tmp_path):
    """And without a checkpoint it is refused, as is one of an earlier version."""
    gpus = {"devices": "0,1", "require_gpu": True, "gpu_memory": "50%", "replicas": 2}
    other = with_config(digits_run, tmp_path / "other", runtime=gpus)
    assert Run.load(other).evaluate().metrics == digits_run.test
    shutil.rmtree(other / "checkpoints")
    with pytest.raises(UsageError, match="other has no checkpoint"):
        Run.load(other).evaluate()
    earlier = with_config(digits_run, tmp_path / "earlier", format=None)
    with pytest.raises(UsageError, match="earlier version"):
        Run.load(earlier).evaluate()


@pytest.mark.parametrize("takes_names", [False, True])
@pytest.mark.usefixtures("workplace")
def test_a_source_function_is_evaluated(loaded, digits_run, takes_names):
    split = digits_run.splits["test"]
    np.savez("test.npz", images=split.column("image"), labels=split.column("label"))

    def mine():
        return registry.call("sources", "arrays", {"path": Path("test.npz")})

    def named(*, class_names=()):
        options = {"path": Path("test.npz"), "class_names": class_names}
        return registry.call("sources", "arrays", options)

    found = loaded.evaluate(named if takes_names else mine)
    assert found.metrics["accuracy"] == digits_run.test["accuracy"]


def test_files_are_predicted_in_a_table(loaded, folder, digits_run):
    (folder[0] / "damaged.png").write_bytes(b"none")
    found = loaded.predict(folder[0])
    assert list(found) == ["file", "label", "class", "probability", "error"]
    right = [
        Path(f).parent.name == label
        for f, label in zip(found["file"], found["label"], strict=True)
    ]
    assert sum(right) / (len(right) - 1) == pytest.approx(folder[1])
    (bad,) = (error for error in found["error"] if error)
    assert (
        "not a JPEG, PNG" in bad and found["class"][found["error"].index(bad)] is None
    )
    one = str(next((folder[0] / "7").iterdir()))
    assert loaded.predict([one])["label"] == loaded.predict(one)["label"]
    image = np.asarray(Image.open(one))[None, ..., None]
    assert loaded.predict(image)["label"].tolist() == loaded.predict(one)["label"]
    with pytest.raises(
        UsageError, match=r"images must be uint8 \[\?, 8, 8, 1\]; got \[2, 9, 8, 1\]"
    ):
        loaded.predict(np.zeros((2, 9, 8, 1), "uint8"))
    with pytest.raises(UsageError, match="nowhere: No such file"):
        loaded.predict("nowhere")
    with pytest.raises(UsageError, match="the list contains no files"):
        loaded.predict([])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs a run or an exported model"),
        (["nowhere"], "nowhere is neither a run"),
        (["{run}", "nowhere"], "nowhere: no such file or directory"),
        (["{run}", "--outptu", "x"], "did you mean '--output'"),
        (["{export}"], "needs labelled data"),
        (["{run}", "--split", "tset"], "did you mean 'test'"),
    ],
)
def test_what_cannot_be_measured_is_one_line(digits_run, workplace, words, message):
    places = {"run": digits_run.directory, "export": digits_run.export}
    with pytest.raises(UsageError, match=message) as caught:
        evaluate.main([word.format(**places) for word in words])
    assert "\n" not in str(caught.value) and not list(workplace.iterdir())


@pytest.mark.parametrize("data", ["alone", "alone.csv", "alone.npz"])
@pytest.mark.usefixtures("workplace")
def test_data_without_labels_are_named_with_the_command_that_needs_none(
    digits_run, data
):
    pixels = np.zeros((8, 8), np.uint8)
    Path("alone").mkdir()
    Image.fromarray(pixels).save("alone/0.png")
    Path("alone.csv").write_text("image\nalone/0.png\n")
    np.savez("alone.npz", images=pixels[None])
    message = f"^{data} has no labels to compare predictions with .*pipeline predict"
    for model in (digits_run.directory, digits_run.export):
        with pytest.raises(UsageError, match=message) as caught:
            evaluate.main([str(model), data])
        assert "\n" not in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.usefixtures("workplace")
def test_every_command_tells_the_same_loss(digits_run, loaded):
    """That before calibration; the calibrated one is named so."""
    split = digits_run.splits["test"]
    np.savez("test.npz", images=split.column("image"), labels=split.column("label"))
    calibrated = digits_run.test["calibrated"]["loss"]
    exported = Evaluation.of(
        labelled_data.evaluate_export(digits_run.export, Path("test.npz"), None)
    )
    for evaluation in (loaded.evaluation, exported):
        found = evaluation.metrics
        assert found["loss"] == pytest.approx(digits_run.test["loss"], abs=1e-5)
        assert found["calibrated"]["loss"] == pytest.approx(calibrated, abs=1e-5)
        name, *_ = evaluation.numbers
        assert "before calibration" in evaluation.numbers[name]
    other = with_config(digits_run, Path("other"), runtime={"seed": 9})
    metrics = compare(digits_run, other).metrics
    losses = dict(zip(metrics["metric"], metrics["value of first"], strict=True))
    assert losses["loss"] == pytest.approx(digits_run.test["loss"], abs=1e-5)
    assert losses["calibrated loss"] == pytest.approx(calibrated, abs=1e-5)


def test_what_is_no_run_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="is not a run"):
        Run.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a config"):
        Run.load(tmp_path)


@pytest.mark.parametrize("content", [b"<html>404</html>", b"\xff\xd8\xff\xe0 cut"])
def test_a_damaged_file_is_named_with_a_remedy_that_evaluate_has(tmp_path, content):
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "1.png")
    (tmp_path / "b/2.jpg").write_bytes(content)
    metadata = {"class_names": ["a", "b"], "image_shape": [4, 4, 3]}
    task = registry.load("tasks", "image_classification")(metadata)
    splits, _ = labelled_data.load_splits(tmp_path, task)
    with pytest.raises(UsageError, match="^b/2.jpg cannot be decoded: .*; remove it$"):
        splits["data"].column("image")


def test_a_model_that_takes_files_needs_them(digits_run):
    with pytest.raises(UsageError, match="MODEL FILES takes"):
        predict.main([str(digits_run.directory)])
    with pytest.raises(UsageError, match="--count.*draw"):
        predict.main([str(digits_run.directory), "a.png", "--count", "3"])


def info_of(dtype=np.uint8, size=(8, 8)):
    images = np.zeros((30, *size, 3), dtype)
    return from_object((images, np.arange(30) % 2)).info


def test_a_judge_must_classify_the_same_images(digits_run, tmp_path):
    with pytest.raises(UsageError, match="judge nowhere is not a finished run"):
        generation(info_of(), judge=Path("nowhere"))
    with pytest.raises(UsageError, match="must be a run that classifies 0, 1"):
        generation(info_of(), judge=digits_run.directory)
    info = registry.call("sources", "scikit_learn", {"dataset": "digits"}).info
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("metadata.json", "model.keras"):
        shutil.copy(digits_run.directory / name, copy)
    metadata = json.loads((copy / "metadata.json").read_text())
    metadata["image_shape"] = [9, 9, 1]
    (copy / "metadata.json").write_text(json.dumps(metadata))
    message = r"shape \[9, 9, 1\], not \[8, 8, 1\]; .* --data.image-size 8 8"
    with pytest.raises(UsageError, match=message):
        generation(info, judge=copy)
    # The network is loaded before training.
    metadata["image_shape"] = [8, 8, 1]
    (copy / "metadata.json").write_text(json.dumps(metadata))
    (copy / "model.keras").write_bytes(b"damaged")
    with pytest.raises(UsageError, match=r"judge .*run cannot be loaded"):
        generation(info, judge=copy)
    (copy / "metadata.json").write_text(json.dumps({**metadata, "raw": True}))
    with pytest.raises(UsageError, match="a Keras model of your own"):
        generation(info, judge=copy)


# `report.html`: what it says, that it fails in parts only, and how a browser shows
# it.


@pytest.fixture(scope="module")
def written(digits_run):
    """The report of the shared run, and its words."""
    return report_text.written(digits_run)


def test_the_report_answers_the_questions_of_a_reader(digits_run, written):
    content, text = written
    test = digits_run.test
    right = round(test["accuracy"] * test["examples"])
    assert f"Test accuracy {test['accuracy']:.1%} ({right} of 361; 95% CI" in text
    assert "verified: the SavedModel gives the same predictions" in text
    assert "trained model (64 examples, largest difference" in text
    assert "train 1,258 validation 178 test 361" in text
    parameters = digits_run.model.count_params()
    assert f"{parameters:,} parameters" in text
    assert f"weights {digits_run.result['weights']}" in text
    worst = min(test["per_class"].items(), key=lambda item: item[1]["recall"])
    row = f"precision f1 {worst[0]} {worst[1]['recall']:.3f} 0."
    assert row in text  # the first after the header
    assert f"{test['calibrated']['calibration_error']:.3f} after calibration" in text
    assert f"{test['calibration_error']:.3f} before calibration" in text
    assert "pipeline fit digits --train.epochs 3" in text
    headings = [*page._SECTIONS, *page._RUN_SECTIONS]
    headings.remove("How to reproduce")  # of an evaluation
    headings.remove("Columns")  # of tables
    for heading in headings:
        assert f"<h2>{heading}</h2>" in content
    assert FAILED not in content and len(content) < 1_000_000
    assert not re.search(r'(src|href)="(?!data:|#)', content)


def test_the_time_of_each_stage_is_told(digits_run, written):
    stages = digits_run.result["stages"]
    assert {"starting", "building", "training", "testing", "exporting"} <= set(stages)
    assert sum(stages.values()) == pytest.approx(digits_run.result["seconds"], rel=0.2)
    assert "training" in written[1] and f"{stages['training']:.1f} s" in written[1]


def test_the_command_of_a_run_gives_its_config(digits_run):
    command = run_sections.exact_command(digits_run.config)
    words = shlex.split(command)[2:]
    assert command_line.configure(words).digest() == digits_run.config.digest()
    changed = digits_run.config.changed(
        data={"augment": {"flip": {}, "crop": {"padding": 2}}},
        model={"name": "mlp"},
        train={"shuffle": False, "class_weight": {"3": 2.0}, "global_clipnorm": 1.0},
    )
    words = shlex.split(run_sections.exact_command(changed))[2:]
    assert command_line.configure(words).digest() == changed.digest()
    other = dataclasses.replace(digits_run.config, recipe="custom")
    assert run_sections.exact_command(other) is None


# Inspecting data: the statistics are right, the page shows the data, the bottleneck
# is named.


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
    assert set(sizes) == {"train", "validation", "test"}
    # The test is without copies of training examples.
    copies = 600 - sum(sizes.values())
    rows = {name: [int(n) for n in said[name].split()] for name in names}
    assert np.sum(list(rows.values()), axis=0).tolist() == list(sizes.values())
    left = np.bincount(labels) - [sum(row) for row in rows.values()]
    assert left.min() >= 0 and left.sum() == copies
    found = (
        r"3, with (\d+) to (\d+) examples in train; .* '<a>' is right for \S+ of test"
    )
    train = [row[0] for row in rows.values()]
    assert re.match(found, said["classes"]).groups() == (
        str(min(train)),
        str(max(train)),
    )
    leaking = r"exact copies of examples in another split: \d+ in validation, (\d+)"
    in_test = int(re.match(leaking, said["note"])[1])
    assert 0 < copies <= in_test  # some are copies of validation examples
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
    assert html.count("<th>bmi</th>") >= 8
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
    found = report_of(classes).describe({"train": {"label": labels}})
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
