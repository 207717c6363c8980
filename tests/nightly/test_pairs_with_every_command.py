"""Every input with every target through the commands, under names of fields that say
nothing; and an input and a target outside the package.
"""

import json
import re

import fake_serving
import keras
import numpy as np
import pytest
from input_target_pairs import words_of, words_of_series, write_series
from processes import run_module

from pipeline.config import registry
from pipeline.report.run import Run
from pipeline.serving.client import Client

TARGETS = registry.names("targets")
PAIRS = [("image", target) for target in TARGETS if target != "transcript"]
for given in ("features", "text", "audio"):
    PAIRS += [
        (given, target)
        for target in TARGETS
        if target not in ("mask", "boxes", "transcript")
    ]
PAIRS += [("audio", "transcript")]
PAIRS += [("series", "ordinal")]
SOME = [
    ("image", "mask"),
    ("image", "number"),
    ("image", "boxes"),
    ("features", "labels"),
    ("audio", "transcript"),
    ("text", "classes"),
    ("series", "ordinal"),
]
IDS = ["-".join(pair) for pair in PAIRS]
ENGINES = registry.names("engines")
SHORT = (
    "--epochs 3 --batch-size 12 --train.learning-rate 0.01 --log.no-tensorboard"
    " --runtime.precision float32 --export.name served"
)


def words(pair, workplace):
    """The words of `pipeline fit` for a pair."""
    if pair[0] != "series":
        return words_of(*pair)
    if not (workplace / "series").exists():
        write_series(workplace / "series")
    return words_of_series(workplace / "series")


def command(module, *arguments, cwd):
    process = run_module(f"pipeline.{module}", *arguments, cwd=cwd)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    return process.stdout


def ask(client, run):
    """The predictions of an exported model and of the run to three test examples."""
    examples = run.splits["test"].take(np.arange(3))
    request = run.task.input.signatures()[0].request(examples)
    return client.predict(**request), run.predict(**request)


def require_equal(served, trained):
    assert served.keys() == trained.keys() and served
    for name, values in served.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(values, trained[name], rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(values, trained[name])


@pytest.mark.parametrize("pair", SOME, ids=["-".join(pair) for pair in SOME])
def test_a_pair_is_trained_exported_and_evaluated(workplace, pair):
    """Each input and each target but classes of images, which most other tests have;
    the long test has all combinations.
    """
    engine = ENGINES[SOME.index(pair) % 2]
    options = [*SHORT.split(), "--engine", engine]
    command("fit", *words(pair, workplace), *options, cwd=workplace)
    (directory,) = (workplace / "runs").iterdir()
    result = json.loads((directory / "result.json").read_text())
    assert result["verification"]["passed"]
    assert np.isfinite(result["test"]["loss"])
    assert len((directory / "predictions.csv").read_text().splitlines()) == (
        result["test"]["examples"] + 1
    )
    report = (directory / "report.html").read_text(encoding="utf-8")
    assert "verified" in report and "could not be made" not in report
    shown = command("evaluate", directory, cwd=workplace)
    assert f"loss {result['test']['loss']:.4f}" in shown


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("pair", PAIRS, ids=IDS)
def test_all_commands_for_both_engines_and_replicas(workplace, pair, replicas, capsys):
    options = [*words(pair, workplace), *SHORT.split(), "--replicas", str(replicas)]
    weights = {}
    for engine in ENGINES:
        directory = workplace / f"runs/{engine}"
        run = [*options, "--engine", engine, "--run-directory", directory]
        # Stopped between two epochs, as the end of a run is a candidate for the best
        # weights, which the whole run would not have.
        command("fit", *run, "--epochs", "2", "--no-export", cwd=workplace)
        resumed = [*options, "--engine", engine, "--run-directory", directory]
        command("fit", *resumed, "--force", cwd=workplace)
        weights[engine] = keras_weights(directory)
        whole = workplace / f"whole/{engine}"
        run = [*options, "--engine", engine, "--run-directory", whole]
        command("fit", *run, "--no-export", cwd=workplace)
        for one, other in zip(weights[engine], keras_weights(whole), strict=True):
            np.testing.assert_array_equal(one, other)
    for one, other in zip(*weights.values(), strict=True):
        np.testing.assert_array_equal(one, other)
    export = workplace / "saved_models/served/2"
    shown = command("evaluate", directory, cwd=workplace)
    assert re.search(r"loss \d", shown)
    command("inspect", *options, cwd=workplace)
    command("export", directory, cwd=workplace)
    assert "passed all" in command("verify", export, cwd=workplace)
    run = Run.load(directory)
    with Client(export) as client:
        require_equal(*ask(client, run))
    document = (export.parent / "SERVING.md").read_text()
    if pair[0] == "series":
        document = document.replace("example.npy", str(workplace / "series/fast/0.npy"))
    with fake_serving.both(fake_serving.Backend(served=export)) as ports:
        for way in fake_serving.WAYS:
            shown = fake_serving.shown(document, "serving_default", way, ports, capsys)
            assert shown
    if pair[0] == "series":
        rows = command("predict", export, workplace / "series/fast", cwd=workplace)
        assert len(rows.splitlines()) == 30 and '"level"' in rows


def keras_weights(directory):
    model = keras.models.load_model(directory / "model.keras", compile=False)
    return model.get_weights()
