"""A model that draws pictures: how well it learns, both engines, and a folder of one
class.
"""

import json

import interrupted_run
import numpy as np
import pytest
from PIL import Image

from pipeline.fit import fit

SMALL = {
    "model": {"options": {"widths": (16, 32)}},
    "runtime": {"precision": "float32"},
    "log": {"progress": False},
}
TINY = {**SMALL, "model": {"options": {"widths": (8,), "heads": 1}}}


def test_a_judge_recognizes_the_digits_that_are_drawn(digits_run, workplace):
    options = {"judge": digits_run.directory, "samples": 60}
    run = fit(
        "digits_generation",
        task={"name": "generation", "options": options},
        train={
            **{"epochs": 16, "evaluate_every": 8, "ema": 0.9},
            "learning_rate": 0.005,
        },
        **SMALL,
    )
    assert run.result["verification"]["passed"]
    assert run.result["calibration"]["steps"] in (4, 8, 12, 16, 24, 32)
    assert run.test["loss"] < 0.7  # 1.4 without training
    assert run.test["accuracy"] > 0.5  # 0.1 by chance
    assert run.test["judge_accuracy"] > 0.5
    assert 0 < run.test["nearer_than_real"] < 1
    distances = np.array(run.history["val_frechet_distance"], float)
    assert np.isfinite(distances).nonzero()[0].tolist() == [7, 15]
    assert distances[15] < distances[7]


def test_both_engines_and_a_stopped_run_are_equal(workplace, digits_run, monkeypatch):
    options = {"judge": digits_run.directory, "samples": 20, "steps": 2}
    changes = {
        **TINY,
        "task": {"name": "generation", "options": options},
        "source": {"name": "scikit_learn", "dataset": "digits"},
        "data": {"limit": 200, "validation": 0.1, "augment": {}},
        "train": {
            **{"epochs": 3, "batch_size": 16, "evaluate_every": 2},
            **{"steps_per_execution": 1, "learning_rate": 0.01},
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
    assert history["loss"][-1] < history["loss"][0]
    assert len(state) > 20 and np.isfinite(history["val_recall"][1])
    for expected, actual in zip(state, results[1][0], strict=True):
        np.testing.assert_array_equal(expected, actual)
    assert json.dumps(results[0][1:]) == json.dumps(results[1][1:])


def test_a_folder_of_one_class_is_enough(workplace):
    """Samples of the only class are drawn."""
    generator = np.random.default_rng(0)
    (workplace / "faces/all").mkdir(parents=True)
    for number in range(24):
        pixels = generator.integers(0, 256, (9, 7, 3), np.uint8)
        Image.fromarray(pixels).save(workplace / f"faces/all/{number}.png")
    run = fit(
        "faces",
        task={"name": "generation", "options": {"steps": 1, "samples": 8}},
        epochs=1,
        batch_size=8,
        export={"enabled": False},
        **TINY,
    )
    assert run.test["loss"] > 0 and run.test["samples"] == 8
    prediction = run.predict(seed=[1], class_id=[0], guidance=[1.0])
    assert prediction["images"].shape == (1, 9, 7, 3)
