"""Every recipe learns; on digits if its own data need a download."""

import json

import pytest
from processes import run_module

from pipeline.config import registry
from pipeline.fit import fit

DIGITS = {
    "source": {"name": "scikit_learn", "dataset": "digits"},
    "data": {"validation": 0.1},
}
FEW_PIXELS = {"validation": 0.1, "augment": {"crop": {"padding": 1}}}
# Epochs, changes, and the least accuracy; guessing has 0.1. The recipes for CIFAR-10
# and Fashion-MNIST take few steps here, and large networks are smaller.
CASES = {
    "cifar10_airbench": (
        6,
        {
            "data": FEW_PIXELS,
            "model": {"width": 16},
            "train": {"batch_size": 50, "label_smoothing": 0.0},
        },
        0.9,
    ),
    "cifar10_convnet": (8, {"train": {"learning_rate": 0.01}}, 0.9),
    "cifar10_resnet18": (
        5,
        {
            "data": FEW_PIXELS,
            "model": {"name": "convnet"},
            "train": {"batch_size": 50, "learning_rate": 0.02},
        },
        0.9,
    ),
    "cifar10_sequential": (8, {}, 0.9),
    "fashion_mnist_lenet": (
        12,
        {"train": {"optimizer": "nadam", "learning_rate": 0.001}},
        0.8,
    ),
}


def test_every_recipe_has_a_case():
    """`test_fit.py` trains `digits`, `test_regression.py` `regression_linear`,
    `test_photos.py`, `test_text_runs.py`, `test_audio_files.py` and `test_detection.py`
    those of own data, and `tasks/test_generation.py` those that draw.
    """
    others = {"digits", "digits_tiny", "regression_linear", "photos", "data"}
    others |= {"texts", "recordings", "transcripts", "boxes"}
    others |= {"digits_generation", "fashion_mnist_generation", "generation"}
    assert {*CASES, *others} == set(registry.names("recipes"))


@pytest.mark.parametrize("recipe", CASES)
def test_a_recipe_learns(workplace, recipe):
    epochs, changes, accuracy = CASES[recipe]
    run = fit(recipe, **{**DIGITS, **changes}, epochs=epochs, export={"enabled": False})
    assert run.test["accuracy"] >= accuracy
    assert run.history["loss"][-1] < 0.8 * run.history["loss"][0]
    assert run.result["seconds"] > 0 and run.result["examples_per_second"] > 0


def test_the_tiny_network_learns_on_two_replicas_with_scalars(workplace):
    words = (
        "digits_tiny --train.epochs 20 --train.engine gradient_tape --run-directory run"
    )
    process = run_module(
        "pipeline.fit", *words.split(), "--export.no-enabled", cwd=workplace
    )
    assert process.returncode == 0 and "2 logical devices, mirrored" in process.stdout
    assert (
        json.loads((workplace / "run" / "result.json").read_text())["test"]["accuracy"]
        >= 0.75
    )
    for part in ("train", "validation"):
        assert list((workplace / "run" / "tensorboard" / part).glob("events*"))
