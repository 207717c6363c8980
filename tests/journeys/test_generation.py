"""Generation: its target, loss and sampler against NumPy, a run of digits with its
samples and export, and bad input.
"""

import numpy as np
import pytest
from PIL import Image

from pipeline import evaluate, predict
from pipeline.fit import fit
from pipeline.serving.client import Client
from pipeline.utils.errors import UsageError

SMALL = {
    "model": {"options": {"widths": (16, 32)}},
    "runtime": {"precision": "float32"},
    "log": {"progress": False},
}


@pytest.fixture(scope="module")
def trained(digits_run, tmp_path_factory):
    """A short run of `digits_generation` that `digits_run` judges, with its export."""
    folder = tmp_path_factory.mktemp("generation")
    run = fit(
        "digits_generation",
        run_directory=folder / "run",
        task={
            "name": "generation",
            "options": {"judge": digits_run.directory, "samples": 60},
        },
        train={
            **{"epochs": 16, "evaluate_every": 8, "ema": 0.9},
            "learning_rate": 0.005,
        },
        export={"directory": folder / "saved_models", "batch_sizes": (1, 8)},
        **SMALL,
    )
    return run


def test_samples_are_measured_along_training_and_at_the_end(trained):
    metrics = trained.test
    assert trained.result["verification"]["passed"]
    assert metrics["samples"] == 60 and len(metrics["loss_by_time"]) == 10
    assert metrics["loss"] < 0.7  # 1.4 without training
    assert metrics["accuracy"] > 0.5 and metrics["judge_accuracy"] > 0.5
    assert 0 <= metrics["precision"] <= 1 and 0 <= metrics["recall"] <= 1
    assert 0 < metrics["nearer_than_real"] < 1
    distances = np.array(trained.history["val_frechet_distance"], float)
    assert np.isfinite(distances).nonzero()[0].tolist() == [7, 15]
    assert distances[15] < distances[7]
    assert trained.result["calibration"]["steps"] in (4, 8, 12, 16, 24, 32)
    folder = trained.directory
    names = {path.name for path in (folder / "pictures").iterdir()}
    assert names == {"samples-0008.png", "samples-0016.png"}
    assert (folder / "samples.png").is_file() and (folder / "nearest.png").is_file()
    events = folder / "tensorboard/pictures"
    assert b"samples" in next(events.iterdir()).read_bytes()
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "could not be made" not in report
    for words in (
        "samples, epoch 16",
        "Nearest",
        "this share of 60 samples",
        "Loss by time",
    ):
        assert words in report
    header = (folder / "predictions.csv").read_text().splitlines()[0]
    assert header == "file,class,time,loss"


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
    assert np.abs(images[0].astype(int) - images[1]).max() > 50


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--class", "eleven"], "--class: unknown 'eleven'; "),
        (["--class", "10"], "--class must be a name, or from 0 to 9; got 10"),
        (["--count", "0"], "--count must be a whole number from 1 to"),
        (["--guidance", "nan"], "guidance must be from 0 to 20"),
        (["--guidance", "1e9"], "guidance must be from 0 to 20"),
        (["--seed", "1.5"], "--seed must be a whole number; got '1.5'"),
        (["--seed", "9" * 20], "--seed must fit int64"),
        (["--sed", "1"], "unknown option --sed; did you mean 'seed'?"),
        (["--seed"], "--seed needs a value"),
        (["--format", "csv"], "--format is not for models that draw pictures"),
        (["--output", "a.jpg"], "--output: a.jpg must end in .png"),
    ],
)
def test_wrong_arguments_are_one_line(trained, words, message):
    with pytest.raises(UsageError) as caught:
        predict.main([str(trained.export), *words])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_files_are_refused_by_a_model_that_draws(trained, workplace):
    (workplace / "a.png").write_bytes(b"")
    with pytest.raises(UsageError, match="draws pictures and takes no files: .*--seed"):
        predict.main([str(trained.export), "a.png"])


def test_an_export_is_not_evaluated_on_data(trained, workplace):
    np.savez("data.npz", images=np.zeros((9, 8, 8, 1), np.uint8), labels=np.arange(9))
    with pytest.raises(UsageError) as caught:
        evaluate.main([str(trained.export), "data.npz"])
    assert "evaluate its run: pipeline evaluate RUN" in str(caught.value)
    assert "\n" not in str(caught.value)
