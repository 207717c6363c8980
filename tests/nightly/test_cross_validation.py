"""Cross-validation: a run for each fold, and then one of all training examples."""

import json
import math
from pathlib import Path

import keras
import numpy as np
import pytest
from toy_problem import settings_of

from pipeline import Run
from pipeline.fit import fit
from pipeline.runtime.run_directory import RunDirectory
from pipeline.serving import version_manifest
from pipeline.training import cross_validation, recovery
from pipeline.utils.console import spread
from pipeline.utils.errors import Terminated, UsageError

OFF = {"export": False, "log": {"progress": False, "tensorboard": False}}
GENERATOR = np.random.default_rng(0)
Y = np.repeat([0, 1, 2], [50, 40, 9])
X = (GENERATOR.normal(size=(99, 4)) + Y[:, None]).astype(np.float32)
TEST = (X[::9], Y[::9])


def network(seed=1):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((4,)), keras.layers.Dense(3, activation="softmax")]
    return keras.Sequential(layers)


def ids(run):
    with np.load(run / "splits.npz") as splits:
        return {name: set(splits[name].tolist()) for name in splits.files}


class Failing(keras.callbacks.Callback):
    """Fails once, in the fourth epoch of the second run."""

    runs = 0
    has_failed = False

    def on_train_begin(self, logs=None):
        self.runs += 1

    def on_epoch_begin(self, epoch, logs=None):
        if self.runs == 2 and epoch == 3 and not self.has_failed:
            self.has_failed = True
            raise RuntimeError("unplugged")


def cross_validated(directory, model, callback, **changes):
    arguments = {
        "data": (X, Y),
        "test_data": TEST,
        "folds": 3,
        "epochs": 5,
        "batch_size": 16,
        "learning_rate": 0.05,
        "class_weight": "balanced",
        "callbacks": [callback],
        "run_directory": directory,
        "train": {"checkpoint_steps": 2},
        **OFF,
        **changes,
    }
    if "source" in changes:
        del arguments["folds"]
    return fit(model, **arguments)


def test_folds_are_tested_once_continue_after_a_failure_and_leave_the_test_alone(
    workplace, capsys
):
    model, callback = network(), Failing()
    initial = model.get_weights()
    with pytest.raises(RuntimeError, match="unplugged"):
        cross_validated("run", model, callback)
    for weights, before in zip(model.get_weights(), initial, strict=True):
        np.testing.assert_array_equal(weights, before)
    first = (workplace / "run/folds/1/result.json").stat().st_mtime_ns
    assert not (workplace / "run/folds/2/result.json").exists()
    capsys.readouterr()
    # As in a script that is started again and builds its model without a seed.
    model = network(seed=2)
    run = cross_validated("run", model, callback)
    lines = capsys.readouterr().out
    assert (workplace / "run/folds/1/result.json").stat().st_mtime_ns == first
    assert "finished   test loss" in lines and "resumed    after step" in lines
    assert "weights    the initial ones of this run, not those of the model" in lines
    assert callback.runs == 5, "folds 1, 2, 2 again and 3, and the whole run"
    assert any(
        (a != b).any() for a, b in zip(model.get_weights(), initial, strict=True)
    )

    # The run of a fold is an ordinary one, and begins with the first initial weights.
    callback.runs = 0
    alone = cross_validated(
        "alone",
        network(),
        callback,
        source=(X, Y),
        data={"folds": 3, "fold": 3, "validation": 0.0},
    )
    folds = {
        name: metric["folds"]
        for name, metric in run.result["cross_validation"]["metrics"].items()
    }
    for name, values in folds.items():
        assert alone.test[name] == values[2]
    summary = json.loads((workplace / "run/cross_validation.json").read_text())
    accuracy = summary["metrics"]["accuracy"]
    assert accuracy["mean"] == pytest.approx(np.mean(accuracy["folds"]))
    assert accuracy["std"] == pytest.approx(np.std(accuracy["folds"], ddof=1))
    assert f"accuracy {accuracy['mean']:.4f} +- {accuracy['std']:.4f}" in repr(run)
    assert summary["examples"] == [33, 33, 33]

    tested = []
    for fold in ("1", "2", "3"):
        parts = ids(workplace / "run/folds" / fold)
        assert parts["train"] | parts["test"] == set(range(99))
        assert np.bincount(Y[[*parts["test"]]])[2] == 3
        tested += parts["test"]
    assert sorted(tested) == list(range(99))
    parts = ids(run.directory)
    assert parts["train"] == set(range(99)) and len(parts["test"]) == 11
    assert run.test["examples"] == 11 and "validation" not in run.result
    weights = json.loads((run.directory / "class_weights.json").read_text())
    assert weights == pytest.approx({"0": 99 / 150, "1": 99 / 120, "2": 99 / 27})


def test_with_patience_the_exported_run_has_the_epochs_of_the_folds(workplace, capsys):
    def numbers(folds):
        return fit(
            model="mlp",
            data=(X, X @ [1.0, -2.0, 0.5, 0.0]),
            folds=folds,
            epochs=60,
            batch_size=8,
            learning_rate=0.02,
            train={"patience": 2},
            run_directory="run",
            log=OFF["log"],
        )

    run = numbers(2)
    lines = capsys.readouterr().out
    assert lines.count("0.1 for validation (random examples of train") == 2
    summary = run.result["cross_validation"]
    epochs = round(sum(summary["epochs"]) / 2)
    assert f"epochs     {epochs} (the mean of the best epochs" in lines
    assert run.result["epochs"] == epochs < 60
    assert run.result["trained"]["complete"] and "r2" in summary["metrics"]
    assert ids(run.directory) == {"train": set(range(99))}
    card = (run.export / "assets.extra/MODEL_CARD.md").read_text()
    assert f"| r2 | {summary['metrics']['r2']['mean']:.4f} |" in card
    assert f"Trained for {run.result['steps']:,} of {run.result['steps']:,}" in card
    trained = version_manifest.properties(run.export)["trained"]
    assert trained["cross_validation"] == summary["metrics"]
    loaded = Run.load(run.directory / "folds/2")
    assert (
        loaded.test
        == json.loads((loaded.directory / "result.json").read_text())["test"]
    )
    with pytest.raises(UsageError, match="started with other options"):
        numbers(3)


def test_a_metric_that_is_not_finite_in_a_fold_has_no_mean(workplace, capsys):
    numbers = [
        {"examples": 3, "loss": 0.5, "r2": math.nan},
        {"examples": 3, "loss": 1.5, "r2": None},  # as read from JSON
        {"examples": 3, "loss": 1.0, "r2": 0.25, "rare": math.inf},
    ]
    results = [{"test": test, "best_epoch": None, "epochs": 4} for test in numbers]
    run = RunDirectory(workplace)
    config = settings_of(data={"folds": 3}).changed(run_directory=workplace)
    cross_validation.finish(config, results)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[2] == ["loss", "1.0000", "0.5000", "0.5000", "1.5000", "1.0000"]
    assert rows[3] == ["r2", "nan", "nan", "nan", "nan", "0.2500"]
    assert rows[4] == ["rare", *["nan"] * 5]
    saved = cross_validation.read(run)["metrics"]
    assert saved["r2"] == {"mean": None, "std": None, "folds": [None, None, 0.25]}
    assert "loss 1.0000 +- 0.5000  r2 nan +- nan" in spread(saved, 3)


def test_a_signal_between_folds_says_how_to_continue_if_there_is_anything(
    workplace, capsys
):
    run = RunDirectory(Path("mine"))
    config = settings_of(data={"folds": 12}).changed(run_directory=run.path)
    for fold, checkpoint in ((9, "step-00000030"), (10, "step-00000012"), (11, "")):
        (run.folds / str(fold) / "checkpoints" / checkpoint).mkdir(parents=True)
    for name in ("mine", "other"):
        with (
            pytest.raises(Terminated),
            recovery.report_interruption(config, RunDirectory(Path(name))),
        ):
            raise Terminated
    assert capsys.readouterr().out == (
        "stopped    after step 12 of fold 10; to continue: pipeline fit --resume mine"
        ' (in Python, run_directory="mine")\n'
    )


def test_what_folds_cannot_do_is_one_line(workplace):
    class Subclassed(keras.Model):
        def call(self, inputs):
            return inputs

    for arguments, message in (
        ({"folds": 1}, "folds=... must be a whole number from 2"),
        ({"folds": 100}, "folds=100: train has only 99 examples; use fewer folds"),
        (
            {"folds": 3, "runtime": {"time_limit": "5m"}},
            "use only one of folds=... and",
        ),
        ({"folds": 3, "model": Subclassed()}, "pass a function"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            fit(**{"model": network(), "data": (X, Y), **arguments, **OFF})
        assert "\n" not in str(caught.value)
    assert not [*workplace.iterdir()]
