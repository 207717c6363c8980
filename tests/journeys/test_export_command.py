"""`pipeline export`: a run's model again, without training; which version is
served.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.export import __main__, proof
from pipeline.fit import fit
from pipeline.serving import repository, version_manifest
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
    path = Path("mine/config.json")  # of a machine with a GPU
    saved = path.read_text().replace('"devices": "auto"', '"devices": "0"')
    path.write_text(saved.replace('"require_gpu": false', '"require_gpu": true'))
    assert (
        __main__.configure(Path("mine"), ["--devices", "cpu"]).runtime.devices == "cpu"
    )
    before = contents("mine")
    assert __main__.main(["mine"]) == 0
    said = capsys.readouterr().out
    assert (
        "export     saved_models/digits/2, verified: the SavedModel gives the same"
        in said
    )
    assert "digits in mine, trained for" in said and "epoch" not in said
    for name, values in answers("saved_models/digits/1").items():
        np.testing.assert_array_equal(answers("saved_models/digits/2")[name], values)
    after = contents("mine")
    (changed,) = (name for name in after if after[name] != before.get(name))
    assert changed == "mine/result.json" and after.keys() == before.keys()
    old, new = (json.loads(each["mine/result.json"]) for each in (before, after))
    assert new.pop("export") == "saved_models/digits/2" and old.pop("export").endswith(
        "/1"
    )
    assert new.pop("verification")["passed"] and old.pop("verification")
    assert new == old, "what the run measured is kept"


def test_the_gate_holds_a_worse_version_back(place, capsys):
    manifest = Path("saved_models/digits/1") / version_manifest.MANIFEST
    about = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**about, "metrics": {"accuracy": 1.5}}))
    before = contents("mine")
    beside = Path("saved_models/digits/batching.config").read_text()
    words = ["--export.tolerance", "0.1", "--export.batch-sizes", "2"]
    assert __main__.main(["mine", *words]) == 1
    said = capsys.readouterr().out
    assert (
        "FAILED     quality: " in said
        and "version 1, which is served, has 1.5000" in said
    )
    assert "saved_models/digits/.refused is intact, but worse than" in said
    assert "pipeline export mine --export.tolerance None publishes it anyway" in said
    assert repository.versions(Path("saved_models/digits")).keys() == {1}
    assert contents("mine") == before
    assert Path("saved_models/digits/batching.config").read_text() == beside, (
        "of what is served"
    )


@pytest.fixture
def versions(trained, workplace):
    """Versions 1, 2 and 3 of a model."""
    for number in (1, 2, 3):
        version = trained / "saved_models/digits/1"
        shutil.copytree(version, workplace / f"saved_models/digits/{number}")
    return workplace / "saved_models/digits"


def test_a_version_is_pinned_and_unpinned(versions, capsys):
    assert __main__.main(["digits", "--pin", "2"]) == 0
    said = capsys.readouterr().out
    assert "pinned     saved_models/digits/2\n" in said
    assert "served     saved_models/digits/2, by servers that read" in said
    assert repository.pinned_versions(versions) == (2,)
    assert __main__.main(["saved_models/digits", "--unpin"]) == 0
    assert "served     saved_models/digits/3" in capsys.readouterr().out
    assert repository.pinned_versions(versions) == ()


def test_a_version_that_fails_its_checks_is_not_pinned(versions, capsys):
    (versions / "2/variables/variables.index").write_bytes(b"")
    assert __main__.main(["digits", "--pin", "2"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED  digests" in shown
    assert "NOT pinned: saved_models/digits/2 must not be served" in shown
    assert not (versions / repository.CONFIG).exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [],
            ("pipeline export needs a run, or NAME --pin VERSION; runs/ has no runs;"),
        ),
        (
            ["run/1"],
            "run/1 is not a run: there is no such directory; runs/ has no runs",
        ),
        (
            ["digits", "--pin", "4"],
            "--pin 4: saved_models/digits has only the versions 1",
        ),
        (
            ["digit", "--pin", "1"],
            "saved_models has no exported model 'digit'; did you mean 'digi",
        ),
        (
            ["digits", "--pin", "1", "--unpin"],
            "pass either --pin VERSION, such as --pin 3, or",
        ),
        (
            ["mine", "--train.epochs", "3", "--force"],
            "--train.epochs does not apply to an export",
        ),
        (
            ["mine", "--source.name", "folder"],
            "--source.name does not apply to an export",
        ),
        (
            ["mine", "--export.no-enabled"],
            "--export.enabled does not apply to an export",
        ),
        (["mine", "--runtime.replicas", "2"], "mine was started with other options"),
        (
            ["mine"],
            ("mine has no checkpoint yet; train it: pipeline fit --resume mine"),
        ),
        (["mine", "--exports.keep", "1"], "did you mean '--export.keep'?"),
    ],
)
def test_wrong_words_are_refused(place, words, message):
    if words == ["mine"]:
        shutil.rmtree("mine/checkpoints")
    with pytest.raises(UsageError) as caught:
        __main__.main(words)
    assert message in str(caught.value)
