"""`pipeline export` for runs that began with Python objects, without the
objects.
"""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from processes import run_module

from pipeline.export import __main__, proof
from pipeline.fit import fit
from pipeline.fit import main as fit_main
from pipeline.serving import version_manifest
from pipeline.utils import npz
from pipeline.utils.errors import UsageError


class Quiet(keras.callbacks.Callback):
    pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a run of an own network on own arrays, and its export."""
    folder = tmp_path_factory.mktemp("finished")
    generator = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = generator.integers(0, 100, (200, 6, 6, 1), np.uint8) + (
        100 * y[:, None, None, None]
    )
    layers = [
        keras.Input((6, 6, 1)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Flatten(),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        fit(
            model=keras.Sequential(
                [*layers, keras.layers.Dense(2, activation="softmax")]
            ),
            data=(x.astype(np.uint8), y),
            callbacks=[Quiet()],
            epochs=1,
            log={"tensorboard": False},
            run_directory="run",
        )
    return folder


@pytest.fixture
def run(finished, workplace):
    """A copy of it, in the current folder."""
    shutil.copytree(finished, workplace, dirs_exist_ok=True)
    return Path("run")


def test_a_run_with_objects_is_exported_and_verified_without_them(run, workplace):
    assert run.joinpath("examples.npz").stat().st_size < 4_000_000
    before = json.loads((run / "result.json").read_text())
    process = run_module("pipeline.export", "run", cwd=workplace)
    assert process.returncode == 0, process.stderr
    note = "nothing is measured again: the metrics are from run/result.json, in float32"
    assert note in process.stdout
    first, second = Path("saved_models/custom/1"), Path("saved_models/custom/2")
    old, new = (
        proof.read_golden(version / proof.GOLDEN) for version in (first, second)
    )
    for name, values in old["image_bytes"]["outputs"].items():
        np.testing.assert_array_equal(new["image_bytes"]["outputs"][name], values)
    old, new = (version_manifest.properties(version) for version in (first, second))
    for name in (
        "config_digest",
        "metrics",
        "trained",
        "temperature",
        "signatures",
        "difference",
    ):
        assert new[name] == old[name], name
    after = json.loads((run / "result.json").read_text())
    assert after.pop("verification")["passed"] and before.pop("verification")
    assert after.pop("export") == str(second) and before.pop("export") == str(first)
    assert after == before


def test_what_is_missing_is_named(run):
    with pytest.raises(
        UsageError, match="the metrics of a run with Python objects are not meas"
    ):
        __main__.main(["run", "--export.precision", "float16"])
    with pytest.raises(
        UsageError, match="was an object of the Python process that started the"
    ):
        fit_main(["--config", "run/config.json", "--run-directory", "run"])
    with pytest.raises(
        UsageError, match="run began with .*; pass the same Python objects again"
    ):
        fit(run_directory="run")
    with pytest.raises(
        UsageError, match="was an object of the Python process that started the"
    ):
        __main__.main(["run", "--source.path", "x"])
    (run / "model.keras").write_bytes(b"")
    with pytest.raises(
        UsageError,
        match=r"cannot be exported without its Python objects: .*; pass them",
    ):
        __main__.main(["run"])
    assert npz.read(run / "examples.npz", 10**6)["image"].shape[1:] == (6, 6, 1)
    (run / "result.json").unlink()
    with pytest.raises(
        UsageError, match="run cannot be exported without its Python objects: .*No"
    ):
        __main__.main(["run"])
