"""Every recipe learns; on digits if its own data need a download."""

import json

import pytest
from processes import run_module
from recipe_cases import DIGITS, ON_DIGITS

from pipeline.fit import fit


@pytest.mark.parametrize("recipe", ON_DIGITS)
def test_a_recipe_learns(workplace, recipe):
    epochs, changes, accuracy = ON_DIGITS[recipe]
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
        >= 0.5
    )
    for part in ("train", "validation"):
        assert list((workplace / "run" / "tensorboard" / part).glob("events*"))
