"""Every recipe trains for real; on digits where its own data need a download."""

import json

import pytest
from conftest import run_module

from pipeline.config import registry
from pipeline.fit import fit

DIGITS = {"source": {"name": "scikit_learn", "dataset": "digits"}, "data": {"validation": 0.1}}
# Epochs, and the accuracy that they reach at least; a guess has 0.1. Recipes for CIFAR-10 and
# Fashion-MNIST take few steps here.
CASES = {
    "digits": (3, {}, 0.9),
    "cifar10_convnet": (8, {"learning_rate": 0.01}, 0.9),
    "cifar10_sequential": (8, {}, 0.9),
    "fashion_mnist_lenet": (12, {}, 0.8),
}
# That the engines are equal says `test_step.py`.
ENGINES = {
    "digits": ("gradient_tape",),
    "cifar10_convnet": ("model_fit",),
    "cifar10_sequential": ("model_fit", "gradient_tape"),
    "fashion_mnist_lenet": ("model_fit",),
}


def test_every_recipe_has_a_case():
    assert {*CASES, "digits_tiny", "regression_linear"} == set(registry.names("recipes"))


# The engines give the same bits (`test_step.py`): the second one of each recipe is for a release.
CASE_OF_EACH = [
    pytest.param(recipe, engine, marks=[pytest.mark.long] * bool(place))
    for recipe in CASES
    for place, engine in enumerate(ENGINES[recipe])
]


@pytest.mark.parametrize(("recipe", "engine"), CASE_OF_EACH)
def test_a_recipe_learns(workplace, recipe, engine):
    epochs, train, accuracy = CASES[recipe]
    train = {**train, "epochs": epochs, "engine": engine}
    run = fit(recipe, **DIGITS, train=train, export={"enabled": False})
    assert run.test["accuracy"] >= accuracy
    assert run.history["loss"][-1] < 0.7 * run.history["loss"][0]
    assert run.result["seconds"] > 0 and run.result["examples_per_second"] > 0


def test_the_tiny_network_learns_on_two_replicas_with_scalars(workplace):
    words = "digits_tiny --train.epochs 20 --train.engine gradient_tape --run-directory run"
    process = run_module("pipeline.fit", *words.split(), cwd=workplace)
    assert process.returncode == 0 and "2 logical devices, mirrored" in process.stdout
    assert json.loads((workplace / "run" / "result.json").read_text())["test"]["accuracy"] >= 0.75
    for part in ("train", "validation"):
        assert list((workplace / "run" / "tensorboard" / part).glob("events*"))


def test_lenet_learns_with_nadam_too(workplace):
    train = {"optimizer": "nadam", "learning_rate": 0.001, "epochs": 12}
    run = fit("fashion_mnist_lenet", **DIGITS, train=train, export={"enabled": False})
    assert run.test["accuracy"] >= 0.8
