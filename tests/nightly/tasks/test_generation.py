"""Generation: its target, loss and sampler against NumPy, a run of digits with its
samples and export, and bad input.
"""

import json
import shutil
from types import SimpleNamespace

import interrupted_run
import numpy as np
import pytest
from PIL import Image

from pipeline import evaluate
from pipeline.config import command_line, python_call
from pipeline.data.in_memory import from_object
from pipeline.export import __main__ as export
from pipeline.fit import fit
from pipeline.tasks.generation import generation
from pipeline.training import plan, resolve
from pipeline.utils.errors import UsageError

NAMES = ["zero", "one", "two"]


METADATA = {
    "image_shape": [4, 6, 2],
    "class_names": NAMES,
    "guidance": 2.0,
    "drop_label": 0.25,
    "samples": 12,
}


SMALL = {
    "model": {"options": {"widths": (16, 32)}},
    "runtime": {"precision": "float32"},
    "log": {"progress": False},
}


TINY = {**SMALL, "model": {"options": {"widths": (8,), "heads": 1}}}


@pytest.fixture
def task():
    return generation(METADATA)


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


def test_both_engines_and_a_stopped_run_are_equal(workplace, digits_run, monkeypatch):
    options = {"judge": digits_run.directory, "samples": 20, "steps": 2}
    changes = {
        **TINY,
        "task": {"name": "generation", "options": options},
        "source": {"name": "scikit_learn", "dataset": "digits"},
        "data": {"limit": 200, "validation": 0.1, "augment": {}},
        "train": {
            **{"epochs": 3, "batch_size": 16, "evaluate_every": 2},
            **{"steps_per_call": 1, "learning_rate": 0.01},
        },
        "export": {"enabled": False},
    }
    results = []
    for name, engine in (("a", "model_fit"), ("b", "gradient_tape")):
        folder = workplace / name
        train = {**changes["train"], "engine": engine}
        sections = {**changes, "train": train, "run_directory": folder}
        if engine == "gradient_tape":
            with monkeypatch.context() as patch:
                interrupted_run.stop_after(patch, calls=6)
                with pytest.raises(interrupted_run.Terminated):
                    fit("fashion_mnist_generation", **sections)
        run = fit("fashion_mnist_generation", **sections)
        results.append(interrupted_run.everything(run, folder))
    state, history, *_ = results[0]
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    assert len(state) > 20 and np.isfinite(history["val_recall"][1])
    for expected, actual in zip(state, results[1][0], strict=True):
        np.testing.assert_array_equal(expected, actual)
    assert json.dumps(results[0][1:]) == json.dumps(results[1][1:])


def test_a_run_is_measured_with_other_options(trained, digits_run, workplace):
    """More samples, and a judge that has been moved."""
    moved = shutil.copytree(digits_run.directory, workplace / "moved")
    words = [str(trained.directory), "--task.samples", "100", f"--task.judge={moved}"]
    assert evaluate.main([*words, "--output", "measured"]) == 0
    metrics = json.loads((workplace / "measured/metrics.json").read_text())
    assert metrics["samples"] == 100
    assert metrics["loss"] == pytest.approx(trained.test["loss"], rel=1e-5)
    assert abs(metrics["accuracy"] - trained.test["accuracy"]) < 0.2
    with pytest.raises(UsageError, match="--task.drop-label decides what a run learns"):
        evaluate.main([str(trained.directory), "--task.drop_label", "0.5"])
    with pytest.raises(UsageError, match="judge gone .*--task.judge RUN is another"):
        evaluate.main([str(trained.directory), "--task.judge", "gone"])
    with pytest.raises(UsageError, match="--task.samples is for runs"):
        evaluate.main([str(trained.export), "--task.samples", "9"])
    config = export.configure(
        trained.directory, ["--task.judge", "None", "--task.samples", "8", "--force"]
    )
    assert config.task.options == {"judge": None, "samples": 8}


def test_a_folder_of_one_class_is_enough(workplace):
    """Without classes to tell apart, samples of the only class are drawn."""
    generator = np.random.default_rng(0)
    (workplace / "faces/all").mkdir(parents=True)
    for number in range(24):
        pixels = generator.integers(0, 256, (9, 7, 3), np.uint8)
        Image.fromarray(pixels).save(workplace / f"faces/all/{number}.png")
    with pytest.raises(UsageError, match="of only one class"):
        command_line.configure(["faces"])
    config = command_line.configure(["faces", "--task", "generation"])
    assert config.recipe == "generation" and config.source.name == "folder"
    assert config.name == "faces_generation"  # not the next version of a classifier
    with pytest.raises(
        UsageError, match="move them into one, such as faces/all/images"
    ):
        command_line.configure(["faces/all", "--task", "generation"])
    run = fit(
        "faces",
        task={"name": "generation", "options": {"steps": 1, "samples": 8}},
        epochs=1,
        batch_size=8,
        export={"enabled": False},
        **TINY,
    )
    assert run.test["loss"] > 0 and run.test["samples"] == 8
    answer = run.predict(seed=[1], class_id=[0], guidance=[1.0])
    assert answer["images"].shape == (1, 9, 7, 3)


def test_arrays_in_python_use_the_recipe(workplace):
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), np.uint8)
    request = python_call.request(
        None, {"data": (images, np.arange(30) % 2), "task": "generation"}
    )
    assert request.config.recipe == "generation"
    assert request.config.model.name == "diffusion_unet"


def test_own_images_are_sampled_every_2000_steps(workplace):
    """Sampling takes about as long as 85 steps: with few images, longer than training
    if it followed each tenth epoch.
    """
    images = np.zeros((600, 8, 8, 1), np.uint8)
    arguments = {"data": (images, np.arange(600) % 2), "task": "generation"}
    request = python_call.request(None, arguments)
    source = from_object((images, np.arange(600) % 2))
    chosen = plan.enough_epochs(request, source)
    assert chosen.train.epochs == 154  # 13 steps each
    assert chosen.train.evaluate_every == 154
    request = python_call.request(None, {**arguments, "train": {"evaluate_every": 7}})
    assert plan.enough_epochs(request, source).train.evaluate_every == 7
    dry = resolve.resolve(
        request, SimpleNamespace(is_chief=False, cluster=None), folder=workplace
    )
    assert dry.task.options["samples"] == 8
