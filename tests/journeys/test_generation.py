"""A model that draws pictures: trained with a judge, exported, measured again, and
asked for pictures; and bad input.
"""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from pipeline import evaluate, predict
from pipeline.export import __main__ as export
from pipeline.fit import fit
from pipeline.serving.client import Client
from pipeline.utils.errors import UsageError

SMALL = {
    "data": {"limit": 100, "augment": {}},
    "model": {"options": {"widths": (8,), "heads": 1}},
    "runtime": {"precision": "float32"},
    "log": {"progress": False},
}


@pytest.fixture(scope="module")
def trained(digits_run, tmp_path_factory):
    """A short run of `digits_generation` that `digits_run` judges, with its export."""
    folder = tmp_path_factory.mktemp("generation")
    options = {"judge": digits_run.directory, "samples": 12, "steps": 4}
    return fit(
        "digits_generation",
        run_directory=folder / "run",
        task={"name": "generation", "options": options},
        train={"epochs": 3, "evaluate_every": 2, "ema": 0.9, "batch_size": 32},
        export={"directory": folder / "saved_models", "batch_sizes": (1,)},
        **SMALL,
    )


def test_samples_are_measured_along_training_and_at_the_end(trained):
    metrics = trained.test
    assert trained.result["verification"]["passed"]
    assert metrics["samples"] == 12 and len(metrics["loss_by_time"]) == 10
    for name in ("accuracy", "judge_accuracy", "precision", "recall"):
        assert 0 <= metrics[name] <= 1
    distances = np.array(trained.history["val_frechet_distance"], float)
    assert np.isfinite(distances).nonzero()[0].tolist() == [1, 2]
    folder = trained.directory
    names = {path.name for path in (folder / "pictures").iterdir()}
    assert names == {"samples-0002.png", "samples-0003.png"}
    assert (folder / "samples.png").is_file() and (folder / "nearest.png").is_file()
    events = folder / "tensorboard/pictures"
    assert b"samples" in next(events.iterdir()).read_bytes()
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "could not be made" not in report
    for words in ("samples, epoch 3", "Nearest", "of 12 samples", "Loss by time"):
        assert words in report
    header = (folder / "predictions.csv").read_text().splitlines()[0]
    assert header == "file,class,time,loss"


@pytest.mark.long
def test_a_run_is_measured_with_other_options(trained, digits_run, workplace):
    """More samples, and a judge that has been moved."""
    moved = shutil.copytree(digits_run.directory, workplace / "moved")
    words = [str(trained.directory), "--task.samples", "20", f"--task.judge={moved}"]
    assert evaluate.main([*words, "--output", "measured"]) == 0
    metrics = json.loads((workplace / "measured/metrics.json").read_text())
    assert metrics["samples"] == 20
    assert metrics["loss"] == pytest.approx(trained.test["loss"], rel=1e-5)
    config = export.configure(
        trained.directory, ["--task.judge", "None", "--task.samples", "8", "--force"]
    )
    assert config.task.options == {"judge": None, "samples": 8, "steps": 4}


# Of `evaluate`; RUN and EXPORT stand for paths.
REFUSALS = {
    "RUN --task.drop_label 0.5": "--task.drop-label",
    "RUN --task.judge gone": "judge gone .*--task.judge RUN",
    "EXPORT --task.samples 9": "--task.samples is for runs",
    "EXPORT data.npz": "evaluate its run",
}


@pytest.mark.parametrize("words", REFUSALS)
def test_what_cannot_be_measured_is_one_line(trained, workplace, words):
    columns = {"images": np.zeros((9, 8, 8, 1), np.uint8), "labels": np.arange(9)}
    np.savez("data.npz", **columns)
    paths = {"RUN": str(trained.directory), "EXPORT": str(trained.export)}
    with pytest.raises(UsageError, match=REFUSALS[words]) as caught:
        evaluate.main([paths.get(word, word) for word in words.split()])
    assert "\n" not in str(caught.value)


def test_a_seed_gives_the_same_picture_in_any_batch(trained):
    """As served, and by the network of the run."""
    arguments = {
        "seed": [3, 9, 4],
        "class_id": [5, 0, 7],
        "guidance": [2.0, 1.0, 3.0],
    }
    images = trained.predict(**arguments)["images"]
    assert images.shape == (3, 8, 8, 1) and images.dtype == np.uint8
    alone = trained.predict(**{name: v[2:] for name, v in arguments.items()})["images"]
    assert np.abs(alone[0].astype(int) - images[2]).max() <= 1
    with Client(trained.export) as client:
        served = client.predict(**arguments)["images"]
    assert np.abs(served.astype(int) - images).max() <= 1
    assert np.abs(images[0].astype(int) - images[1]).max() > 20


def test_predict_writes_a_sheet(trained, workplace, capsys):
    words = [str(trained.directory), "--class", "3", "--count", "5", "--seed", "7"]
    assert predict.main(words) == 0
    name = trained.export.parent.name
    path = workplace / f"{name}-class-3-seed-7.png"
    assert f"5 pictures: {path.name}" in capsys.readouterr().err
    page = np.asarray(Image.open(path))
    assert page.shape == (2 * 58 - 2, 3 * 58 - 2, 3)
    first = trained.predict(seed=[7], class_id=[3], guidance=[2.0])["images"][0, ..., 0]
    shown = page[:56:7, :56:7, 0]
    assert np.abs(shown.astype(int) - first).max() <= 1
    words = [str(trained.export), "--output", "all.png", "--guidance=1", "--count=10"]
    assert predict.main(words) == 0 and (workplace / "all.png").is_file()


WRONG_ARGUMENTS = {
    "--class eleven": "--class: unknown 'eleven'",
    "--class 10": "--class must be a name, or from 0 to 9",
    "--count 0": "--count must be .* from 1",
    "--guidance nan": "guidance must be from 0 to 20",
    "--seed 1.5": "--seed must be a whole number",
    f"--seed {'9' * 20}": "--seed must fit int64",
    "--sed 1": "--sed; did you mean 'seed'",
    "--seed": "--seed needs a value",
    "--format csv": "--format is not for models that draw",
    "--output a.jpg": "--output: a.jpg must end in .png",
    "a.png": "takes no files: .*--seed",
}


@pytest.mark.parametrize("words", WRONG_ARGUMENTS)
def test_wrong_arguments_are_one_line(trained, workplace, words):
    (workplace / "a.png").write_bytes(b"")
    with pytest.raises(UsageError, match=WRONG_ARGUMENTS[words]) as caught:
        predict.main([str(trained.export), *words.split()])
    assert "\n" not in str(caught.value)
