"""`python -m pipeline.export`: a run's model again, without training; which version is served."""

import errno
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import REPOSITORY, run_module

from pipeline.config import command_line
from pipeline.export import __main__, manifest_writer, proof
from pipeline.fit import fit
from pipeline.fit import main as fit_main
from pipeline.serving import models_config, repository
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils import files, temp_files
from pipeline.utils.errors import UsageError

SHORT = {"epochs": 2, "steps_per_call": 10}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a finished run, its data in a file, and version 1 of its model."""
    folder = tmp_path_factory.mktemp("trained")
    generator = np.random.default_rng(7)
    labels = np.arange(300) % 3
    images = generator.integers(0, 100, (300, 8, 8, 1), np.uint8)
    images[:, :4, :4, 0] += (60 * labels[:, None, None]).astype(np.uint8)
    np.savez(folder / "examples.npz", images=images, labels=labels)
    before = os.getcwd()
    os.chdir(folder)
    try:
        source = {"name": "arrays", "path": "examples.npz"}
        train = {**SHORT, "ema": 0.9, "checkpoint_steps": 5}
        model = {"name": "tiny"}
        fit("digits", source=source, train=train, model=model, run_directory="mine")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def place(trained, workplace):
    """A copy of it, as the current folder."""
    shutil.copytree(trained, workplace, dirs_exist_ok=True)
    return workplace


def contents(folder):
    return {
        str(path): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and path.name != ".lock" and path.suffix != ".png"
    }


def answers(version):
    return proof.read_golden(Path(version) / proof.GOLDEN)["serving_default"]["outputs"]


def test_a_finished_run_is_exported_again_without_training(place, capsys):
    before = contents("mine")
    assert __main__.main(["mine"]) == 0
    said = capsys.readouterr().out
    assert "export     saved_models/digits/2, verified: the SavedModel answers as" in said
    assert "digits in mine, trained for" in said and "epoch" not in said
    for name, values in answers("saved_models/digits/1").items():
        np.testing.assert_array_equal(answers("saved_models/digits/2")[name], values)
    after = contents("mine")
    (changed,) = (name for name in after if after[name] != before.get(name))
    assert changed == "mine/result.json" and after.keys() == before.keys()
    old, new = (json.loads(each["mine/result.json"]) for each in (before, after))
    assert new.pop("export") == "saved_models/digits/2" and old.pop("export").endswith("/1")
    assert new.pop("verification")["passed"] and old.pop("verification")
    assert new == old, "what the run measured is kept"
    assert __main__.main(["mine", "--export.name", "an other", "--export.keep=1"]) == 0
    assert contents("mine") == after, "an export elsewhere is not the run's own"
    assert files.versions(Path("saved_models/an other")).keys() == {1}
    assert "-m pipeline.verify 'saved_models/an other/1'\n" in capsys.readouterr().out


def test_an_interrupted_run_is_exported_from_its_newest_checkpoint(place, capsys):
    """As after a kill: no result, and steps that are left."""
    config = json.loads(Path("mine/config.json").read_text())
    config["train"]["epochs"] = 50
    Path("mine/config.json").write_text(json.dumps(config))
    Path("mine/result.json").unlink()
    newest = max(Path("mine/checkpoints").glob("step-*"))
    raw = bytearray((newest / "state.index").read_bytes())
    raw[10] ^= 1
    (newest / "state.index").write_bytes(raw)
    before = contents("mine")
    assert __main__.main(["mine"]) == 0
    said = capsys.readouterr().out
    assert "state.index is damaged; the one before it is taken" in said
    assert "not to its end" in said and "export     saved_models/digits/2" in said
    assert contents("mine") == before, "nothing of it is written: it is not over"
    card = Path("saved_models/digits/2/assets.extra/MODEL_CARD.md").read_text()
    assert "before the run was complete" in card
    assert "train " in card.partition("Examples: ")[2].partition("\n")[0]
    probabilities = [answers(f"saved_models/digits/{n}")["probabilities"] for n in (1, 2)]
    assert np.abs(probabilities[0] - probabilities[1]).max() > 1e-4, "other weights"


@pytest.fixture
def disk(monkeypatch, tmp_path, tmp_path_factory):
    """The disk with the folders in `full`, which can take no file from the second epoch's end on;
    another one holds the temporary files."""
    disk = SimpleNamespace(full=[], other=tmp_path_factory.mktemp("other"))
    monkeypatch.setenv("TMPDIR", str(disk.other))
    real_end = CheckpointCallback.on_epoch_end

    def on_epoch_end(saver, epoch, logs):
        if epoch == 1:
            for name in ("folder", "file"):
                monkeypatch.setattr(
                    temp_files, name, functools.partial(made, getattr(temp_files, name))
                )
        real_end(saver, epoch, logs)

    def made(real, parent):
        if any(Path(parent).absolute().is_relative_to(tmp_path / name) for name in disk.full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(parent))
        return real(parent)

    monkeypatch.setattr(CheckpointCallback, "on_epoch_end", on_epoch_end)
    return disk


FILLED = [
    *("digits", "--run-directory", "run", "--model.name", "tiny", "--data.limit", "300"),
    *("--train.epochs", "2", "--train.checkpoint-steps", "1", "--log.no-tensorboard"),
]


def test_a_disk_that_stays_full_costs_neither_the_test_nor_the_weights(workplace, disk, capsys):
    disk.full = ["run", "saved_models"]
    assert fit_main(FILLED) == 1
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith("test       loss ") for line in said)
    (kept,) = disk.other.iterdir()
    lines = [line for line in said if "cannot be written" in line]
    why = "cannot be written: No space left on device"
    assert lines == [
        f"warning    run {why}; checkpoints/step-00000012 and result.json are in {kept}; "
        f"once there is space: cp -r {kept}/. run",
        f"export     NOT published: saved_models/digits {why}",
    ]
    assert said[-1] == "next       once this is fixed: python -m pipeline.export run"
    assert not Path("run/result.json").exists()
    result = json.loads((kept / "result.json").read_text())
    assert result["test"]["accuracy"] >= 0 and result["export"] is None
    assert result["verification"]["checks"][0]["detail"] == f"saved_models/digits {why}"

    disk.full = []
    shutil.copytree(kept, "run", dirs_exist_ok=True)
    assert __main__.main(["run"]) == 0
    assert "trained for 12 of 12 steps" in capsys.readouterr().out
    after = json.loads(Path("run/result.json").read_text())
    assert after["export"] == "saved_models/digits/1" and after["test"] == result["test"]
    assert fit_main(FILLED) == 0 and "was complete" in capsys.readouterr().out


def test_a_run_that_could_not_be_exported_is_only_exported_when_it_is_started_again(
    workplace, disk, capsys
):
    disk.full = ["saved_models"]
    assert fit_main(FILLED) == 1
    said = capsys.readouterr().out
    assert "written    run/: result.json" in said and "next       once this is fixed: " in said
    before = json.loads(Path("run/result.json").read_text())
    assert before["test"]["accuracy"] >= 0 and not before["verification"]["passed"]
    assert list(disk.other.iterdir()) == []
    disk.full = []
    assert fit_main(FILLED) == 0
    said = capsys.readouterr().out
    assert "export     saved_models/digits/1, verified: " in said and "epoch 1" not in said
    after = json.loads(Path("run/result.json").read_text())
    assert after["test"] == before["test"] and after["verification"]["passed"]


def test_data_that_are_gone_are_said_to_be_and_where_they_lie_now(place, capsys):
    Path("examples.npz").rename("moved.npz")
    gone = r"--source.path of arrays must be an existing path; got 'examples.npz'"
    with pytest.raises(UsageError, match=f"{gone}; .* --source.path PATH") as e:
        __main__.main(["mine"])
    assert "an export is verified with real examples" in str(e.value)
    words = ["mine", "--source.path", "moved.npz"]
    with pytest.raises(UsageError, match="--source.path (.|\n)*--force accepts it"):
        __main__.main(words)
    assert files.versions(Path("saved_models/digits")).keys() == {1}
    repository.pin(Path("saved_models/digits"), 1)
    assert __main__.main([*words, "--force"]) == 0
    unpinned = "pinned     to 1: python -m pipeline.export digits --unpin serves 2"
    assert unpinned in capsys.readouterr().out
    assert files.versions(Path("saved_models/digits")).keys() == {1, 2}


def test_damaged_data_are_said_to_be(place):
    Path("examples.npz").write_bytes(b"PK")
    with pytest.raises(UsageError, match=r"the data of this run cannot be used: .*examples\.npz"):
        __main__.main(["mine"])
    assert files.versions(Path("saved_models/digits")).keys() == {1}


def test_the_gate_holds_a_worse_version_back(place, capsys):
    manifest = Path("saved_models/digits/1") / manifest_writer.MANIFEST
    about = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**about, "metrics": {"accuracy": 1.5}}))
    before = contents("mine")
    beside = Path("saved_models/digits/batching.config").read_text()
    words = ["--export.tolerance", "0.1", "--export.batch-sizes", "2"]
    assert __main__.main(["mine", *words]) == 1
    said = capsys.readouterr().out
    assert "FAILED     quality: " in said and "version 1, which is served, has 1.5000" in said
    assert "saved_models/digits/.refused is intact, but worse than" in said
    assert "-m pipeline.export mine --export.tolerance None publishes it anyway" in said
    assert files.versions(Path("saved_models/digits")).keys() == {1}
    assert contents("mine") == before
    assert Path("saved_models/digits/batching.config").read_text() == beside, "of what is served"


def test_a_finished_run_whose_version_was_pruned_stays_finished(place, capsys):
    assert __main__.main(["mine", "--export.keep", "1"]) == 0
    assert "deleted    version 1 (--export.keep 1)" in capsys.readouterr().out
    assert files.versions(Path("saved_models/digits")).keys() == {2}
    result = json.loads(Path("mine/result.json").read_text())
    Path("mine/result.json").write_text(json.dumps({**result, "export": "saved_models/digits/1"}))
    config = command_line.read(Path("mine/config.json"))
    assert fit(config, run_directory="mine").export == Path("saved_models/digits/1")
    said = capsys.readouterr().out
    assert "saved_models/digits/1 was deleted because there are newer ones; " in said
    assert files.versions(Path("saved_models/digits")).keys() == {2}


@pytest.fixture
def versions(trained, workplace):
    """Versions 1, 2 and 3 of a model."""
    for number in (1, 2, 3):
        version = trained / "saved_models/digits/1"
        shutil.copytree(version, workplace / f"saved_models/digits/{number}")
    return workplace / "saved_models/digits"


def test_a_version_is_pinned_and_unpinned(versions, capsys):
    manifest = versions / "2" / manifest_writer.MANIFEST
    about = json.loads(manifest.read_text())
    options = {**about["options"], "batch_sizes": [1, 5]}
    manifest.write_text(json.dumps({**about, "options": options}))
    assert __main__.main(["digits", "--pin", "2"]) == 0
    said = capsys.readouterr().out
    assert "pinned     saved_models/digits/2 (before: nothing)" in said
    assert "served     saved_models/digits/2, by servers that read" in said
    assert models_config.pinned(versions) == (2,)
    batches = versions / "batching.config"
    assert "max_batch_size { value: 5 }" in batches.read_text(), "of the version that is served"
    assert __main__.main(["--pin=1"]) == 0, "the only model needs no name"
    assert "(before: 2)" in capsys.readouterr().out
    assert __main__.main(["saved_models/digits", "--unpin"]) == 0
    assert "served     saved_models/digits/3" in capsys.readouterr().out
    assert models_config.pinned(versions) == ()
    assert "max_batch_size { value: 5 }" not in batches.read_text()
    assert __main__.main(["digits", "--unpin"]) == 0
    assert "pinned     nothing (unchanged)" in capsys.readouterr().out


def test_a_version_that_fails_its_proof_is_not_pinned(versions, capsys):
    (versions / "2/variables/variables.index").write_bytes(b"")
    assert __main__.main(["digits", "--pin", "2"]) == 1
    said = capsys.readouterr().out
    assert "FAILED  digests" in said
    assert "NOT pinned: saved_models/digits/2 must not be served" in said
    assert not (versions / models_config.NAME).exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "python -m pipeline.export needs a run, or --pin VERSION; runs/ has no runs;"),
        (["run/1"], "run/1 is not a run: it has no config.json"),
        (
            ["digits", "--pin", "4"],
            "--pin 4: saved_models/digits has no such version; choose from 1",
        ),
        (["digits", "--pin", "x"], "--pin must be a whole number or None; got 'x'"),
        (["digits", "--pin"], "--pin needs a value: a whole number"),
        (["digits", "--pin", "-1"], "--pin -1: saved_models/digits has no such version"),
        (
            ["digits", "--pin", "1", "--unpin"],
            "give either --pin VERSION, such as --pin 3, or --unpin",
        ),
        (
            ["digit", "--unpin"],
            "saved_models has no exported model 'digit'; did you mean 'digits'?",
        ),
        (["digits", "--pin", "1", "--keep", "3"], "unknown option '--keep'"),
        (["--pin", "1", "--export.directory", "nowhere"], "--pin needs the name of a model in now"),
        (["a\nb"], "RUN or NAME must be a path in UTF-8 without control characters"),
    ],
)
def test_wrong_words_are_refused(versions, words, message):
    with pytest.raises(UsageError) as caught:
        __main__.main(words)
    assert message in str(caught.value)
    assert not (versions / models_config.NAME).exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["min"], "min is not a run: it has no config.json; did you mean"),
        (
            ["mine", "--train.epochs", "3", "--force"],
            "--train.epochs does not apply to an export, which",
        ),
        (["mine", "--source.name", "folder"], "--source.name does not apply to an export"),
        (
            ["mine", "--runtime.precision", "auto"],
            "--runtime.precision does not apply to an export",
        ),
        (["mine", "--runtime.replicas", "2"], "mine is a run with other options"),
        (["mine", "--task", "regression"], "--task.name does not apply to an export"),
        (["mine", "--export.no-enabled"], "--export.enabled does not apply to an export"),
        (["mine", "--export.tolerance", "-1"], "--export.tolerance must be a number of at least 0"),
        (["mine", "--export.keep", "0"], "--export.keep must be a whole number from 1 to "),
        (["mine", "--exports.keep", "1"], "did you mean '--export.keep'?"),
        (["mine", "--dry-run"], "--dry-run does not apply to an export, which"),
        (["mine", "--run-directory", "x"], "--run-directory does not apply to an export"),
    ],
)
def test_wrong_words_for_a_run_are_refused(place, words, message):
    Path("runs").mkdir()
    shutil.copytree("mine", "runs/mine")
    with pytest.raises(UsageError) as caught:
        __main__.main(words)
    assert message in str(caught.value)


def test_a_run_that_was_never_saved_is_refused(place):
    for checkpoint in Path("mine/checkpoints").glob("step-*"):
        checkpoint.rename(f"{checkpoint}.bak")  # a copy is none
    with pytest.raises(UsageError, match="mine has no checkpoint yet; train it: python -m pipe"):
        __main__.main(["mine"])


def test_neither_help_nor_an_error_imports_tensorflow(place):
    program = """
import sys
from pipeline.utils.errors import UsageError
from pipeline.export.__main__ import main
for words in (["--help"], ["mine", "--help"], [], ["nothing"], ["mine", "--export.keep", "0"],
              ["--pin", "7"]):
    try:
        main(words)
    except (SystemExit, UsageError):
        pass
sys.exit(", ".join({"tensorflow", "keras", "numpy", "sklearn"} & set(sys.modules)) or 0)
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-500:]
    assert "NAME     a model in saved_models/" in result.stdout and "--export.keep" in result.stdout


def test_as_a_program_it_is_python_m_pipeline_export(place):
    result = run_module("pipeline.export", "--pin", "1", cwd=place)
    assert (result.returncode, result.stderr) == (0, "")
    assert models_config.pinned(Path("saved_models/digits")) == (1,)
    result = run_module("pipeline.export", "min", cwd=place)
    assert result.returncode == 2 and result.stderr.startswith("error: min is not a run")
