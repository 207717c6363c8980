"""`Run` in a notebook, opened by a later process, and the command `evaluate`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline import evaluate, predict
from pipeline.config import registry
from pipeline.data.in_memory import from_object
from pipeline.evaluation import labelled_data
from pipeline.report.run import Run
from pipeline.tasks.generation import generation
from pipeline.utils.errors import UsageError


@pytest.fixture(scope="module")
def loaded(digits_run):
    """The shared run, as a process without it opens it."""
    return Run.load(digits_run.directory)


@pytest.fixture
def folder(digits_run, workplace):
    """Files of the digits 7, 3 and 0 of the test split, and what the shared run
    answers.
    """
    split = digits_run.splits["test"]
    examples = split.take(np.isin(split.column("label"), (0, 3, 7)).nonzero()[0])
    for id, label, image in zip(
        *(examples[n] for n in ("id", "label", "image")), strict=True
    ):
        path = workplace / "photos" / str(label) / f"{id}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(path)
    right = digits_run.predict(images=examples["image"])["class"] == examples["label"]
    return workplace / "photos", right.mean()


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
        answers = run.model.predict(images.astype("float32"), verbose=0)
        np.testing.assert_array_equal(
            answers.argmax(axis=1), run.predict(images)["class"]
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
