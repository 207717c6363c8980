"""The proof of an export: what passes, and what each sabotage is caught by."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import exports
import numpy as np
import pytest
import tensorflow as tf
from conftest import run_module

from pipeline import digests, files, proof, publish, server_operations
from pipeline.errors import UsageError
from pipeline.verify import instructions, main, newest, verify

FIXTURE = Path(__file__).parent / "fixtures/digits/1"


def failed(directory):
    checks = verify(directory, fuzzed=0).checks
    return {check.name: check.detail for check in checks if not check.passed}


def test_an_export_of_the_first_release_answers_and_unfolds_bombs():
    """It has no warm-up, no manifest, and no limit of pixels: those two are wrong with it."""
    outcome = verify(FIXTURE, fuzzed=20)
    checks = {check.name: check for check in outcome.checks}
    wrong = [check.name for check in checks.values() if not check.passed]
    assert wrong == ["digests", "refuses image_bytes: hostile files"]
    assert "20,000 x 20,000 pixels" in checks["refuses image_bytes: hostile files"].detail
    assert "manifest.json is missing" in checks["digests"].detail
    assert checks["warm-up"].detail.startswith("none: a version without")
    assert "TensorFlow 2.21" in checks["loads"].detail


@pytest.fixture(scope="module")
def swift(tmp_path_factory):
    """A whole version with pixels alone."""
    directory = tmp_path_factory.mktemp("swift") / "1"
    exports.swift_version(directory)
    return directory


@pytest.fixture
def copy(swift, tmp_path):
    target = tmp_path / "digits" / "3"
    shutil.copytree(swift, target)
    return target


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A version as the contract has it."""
    directory = tmp_path_factory.mktemp("whole") / "small" / "1"
    exports.honest_version(directory)
    return directory


def test_a_whole_version_passes(whole):
    outcome = verify(whole, fuzzed=300)
    assert outcome.passed, str(outcome)
    checks = {check.name: check.detail for check in outcome.checks}
    assert checks["digests"] == "6 files are what was written"
    assert checks["warm-up"].startswith(
        "batches of serving_default 1 8; image_bytes 1 8; classify 1 8"
    )
    for signature in ("serving_default", "image_bytes", "classify"):
        assert checks[f"answers {signature}"].startswith("batches of 1, 3, 64; ")
        assert checks[f"empty batch {signature}"] == "INVALID_ARGUMENT"
    for signature in ("image_bytes", "classify"):
        assert checks[f"refuses {signature}: hostile files"] == "INVALID_ARGUMENT, 22 kinds"
        answered = int(checks[f"survives {signature}: fuzzed bytes"].split()[0])
        assert 0 < answered < 300, "what is fuzzed is all broken, or not at all"
    assert checks["refuses classify: wrong examples"] == "INVALID_ARGUMENT, 6 kinds"


@pytest.mark.long
def test_ten_thousand_fuzzed_strings_do_no_harm(whole):
    outcome = verify(whole, fuzzed=10_000)
    assert outcome.passed, str(outcome)
    checks = {check.name: check.detail for check in outcome.checks}
    for signature in ("image_bytes", "classify"):
        words = checks[f"survives {signature}: fuzzed bytes"].split()
        assert int(words[0]) + int(words[2]) == 10_000


def flip(path, at=0.5):
    raw = bytearray(path.read_bytes())
    raw[int(len(raw) * at)] ^= 0x40
    path.write_bytes(raw)


def test_changed_weights_are_caught(copy):
    flip(copy / "variables/variables.data-00000-of-00001")
    found = failed(copy)
    assert "variables.data-00000-of-00001 is not what was written" in found["digests"]
    assert "loads" in found or "answers serving_default" in found


def test_a_damaged_graph_is_caught(copy):
    path = copy / "saved_model.pb"
    path.write_bytes(path.read_bytes()[:1000])
    assert "saved_model.pb cannot be read" in failed(copy)["operations"]


def store(directory, golden):
    """Other answers, with a manifest that knows of them."""
    proof.write_golden(directory / proof.GOLDEN, golden)
    exports.write_manifest(directory)


def test_swapped_labels_are_caught(copy):
    golden = proof.read_golden(copy / proof.GOLDEN)
    labels = golden["serving_default"]["outputs"]["label"]
    golden["serving_default"]["outputs"]["label"] = np.roll(labels, 1)
    store(copy, golden)
    assert set(failed(copy)) == {"answers serving_default", "still answers serving_default"}


@pytest.mark.parametrize("change", [2e-5, np.nan])
def test_answers_that_differ_are_caught(copy, change):
    golden = proof.read_golden(copy / proof.GOLDEN)
    golden["serving_default"]["outputs"]["probabilities"][7, 3] += change
    store(copy, golden)
    found = failed(copy)
    said = "differs by" if np.isfinite(change) else "a stored answer is not finite"
    assert f"probabilities: {said}" in found.pop("answers serving_default")
    assert set(found) <= {"still answers serving_default"}


def export_of(directory, function, specs, inputs, name="serving_default"):
    """A SavedModel made without our export, with honest golden answers."""
    module = tf.Module()
    module.weight = tf.Variable(tf.ones([3, 3, 1, 4]))
    traced = tf.function(lambda *arguments: function(module.weight, *arguments))
    inputs = {key: tf.constant(value) for key, value in inputs.items()}
    signature = traced.get_concrete_function(*specs)
    module.served = signature
    tf.saved_model.save(module, directory, signatures={name: signature})
    outputs = {key: np.asarray(value) for key, value in signature(**inputs).items()}
    proof.write_golden(
        Path(directory) / proof.GOLDEN,
        {name: {"inputs": {k: v.numpy() for k, v in inputs.items()}, "outputs": outputs}},
    )


SPEC = [tf.TensorSpec((None, 8, 8, 1), tf.uint8, name="images")]
IMAGES = {"images": np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)}


def convolve(weight, images):
    maps = tf.nn.conv2d(tf.cast(images, tf.float32), weight, 1, "SAME")
    return {"scores": tf.reduce_mean(maps, [1, 2])}


def test_an_export_without_guards_is_caught(tmp_path):
    """The request without a batch axis ends the server's process, or is answered; both fail."""
    directory = str(tmp_path / "1")
    export_of(directory, convolve, SPEC, IMAGES)
    found = failed(Path(directory))
    assert found, "an export without shape guards passed"
    # Which of the wrong requests comes through first depends on the CPU's kernels.
    assert "manifest.json is missing" in found.pop("digests")
    (name, detail), *_ = found.items()
    assert name.startswith("refuses serving_default: ")
    assert "ended the process" in detail or "answered" in detail or "status" in detail


def test_what_a_model_prints_is_no_result_of_the_proof(tmp_path):
    """Nor does it disturb the others."""
    forged = [
        json.dumps({"check": name, "passed": True, "detail": "forged"})
        for name in ("answers serving_default", "finished", "no JSON")
    ]

    def printing(weight, images):
        for line in (*forged, "nonsense"):
            tf.raw_ops.PrintV2(input=line, output_stream="stdout")
        return convolve(weight, tf.ensure_shape(images, SPEC[0].shape))

    export_of(str(tmp_path / "1"), printing, SPEC, IMAGES)
    checks = {check.name: check.detail for check in verify(tmp_path / "1", fuzzed=0).checks}
    assert {"digests", "operations", "answers serving_default", "finished"} <= checks.keys()
    assert "forged" not in checks.values() and "no JSON" not in checks


def test_a_program_that_does_harm_is_not_run(copy, tmp_path):
    def writing(weight, images):
        tf.io.write_file(str(tmp_path / "stolen"), "x")
        return convolve(weight, tf.ensure_shape(images, SPEC[0].shape))

    export_of(str(tmp_path / "1"), writing, SPEC, IMAGES)
    (tmp_path / "stolen").unlink()
    assert "is WriteFile: it ends the server" in failed(tmp_path / "1")["operations"]
    assert not (tmp_path / "stolen").exists()


@pytest.mark.parametrize("harm", ["pipe", "link"])
def test_a_pipe_or_a_link_is_no_file_of_a_version(copy, harm):
    """The first is waited for without end; the second leads nowhere in a container."""
    path = copy / "fingerprint.pb"
    path.rename(copy.parent / "away")
    os.mkfifo(path) if harm == "pipe" else path.symlink_to(copy.parent / "away")
    found = failed(copy)
    assert found.keys() == {"digests", "operations"}
    assert set(found.values()) == {"fingerprint.pb is no regular file"}


def test_a_program_that_is_no_python_is_told(copy, tmp_path):
    words = (copy, "--python", shutil.which("echo"))
    result = run_module("pipeline.verify", *words, cwd=tmp_path)
    assert result.returncode == 1 and "the proof did not run: it said '-m" in result.stdout


def test_half_precision_outputs_are_caught(tmp_path):
    def half(weight, images):
        images = tf.ensure_shape(images, SPEC[0].shape)
        return {"scores": tf.cast(convolve(weight, images)["scores"], tf.float16)}

    export_of(str(tmp_path / "1"), half, SPEC, IMAGES)
    assert "scores has a type that REST cannot carry" in failed(tmp_path / "1")["contract"]


def test_outputs_without_a_batch_axis_are_caught(tmp_path):
    def total(weight, images):
        images = tf.ensure_shape(images, SPEC[0].shape)
        return {"total": tf.reduce_sum(convolve(weight, images)["scores"])}

    export_of(str(tmp_path / "1"), total, SPEC, IMAGES)
    assert "first axis of total is not the batch" in failed(tmp_path / "1")["contract"]


def test_functions_that_need_xla_are_caught(tmp_path):
    @tf.function(jit_compile=True)
    def compiled(weight, images):
        return convolve(weight, images)

    def served(weight, images):
        return compiled(weight, tf.ensure_shape(images, SPEC[0].shape))

    export_of(str(tmp_path / "1"), served, SPEC, IMAGES)
    assert "must be compiled by XLA" in failed(tmp_path / "1")["operations"]


def test_another_signature_name_is_caught(tmp_path):
    def served(weight, images):
        return convolve(weight, tf.ensure_shape(images, SPEC[0].shape))

    export_of(str(tmp_path / "1"), served, SPEC, IMAGES, name="other")
    assert "no signature serving_default" in failed(tmp_path / "1")["contract"]


def without(golden, signature, side=None):
    if side is None:
        del golden[signature]
    else:
        del golden[signature][side]


@pytest.mark.parametrize(
    ("harm", "check", "message"),
    [
        (lambda golden: golden.clear(), "golden", "no stored answers"),
        (
            lambda golden: golden.update(other=golden.pop("serving_default")),
            "contract",
            "the signature other has no stored answers",
        ),
        (
            lambda golden: without(golden, "serving_default", "outputs"),
            "golden",
            "inputs and outputs",
        ),
        (
            lambda golden: golden["serving_default"]["inputs"].update(
                images=golden["serving_default"]["inputs"]["images"][:1]
            ),
            "golden",
            "differ in number",
        ),
    ],
)
def test_answers_that_prove_nothing_are_caught(copy, harm, check, message):
    golden = proof.read_golden(copy / proof.GOLDEN)
    harm(golden)
    store(copy, golden)
    assert message in failed(copy)[check]


@pytest.mark.parametrize("content", [b"", b"PK junk", b"\x80\x04."])
def test_damaged_golden_answers_are_caught(copy, content):
    (copy / proof.GOLDEN).write_bytes(content)
    assert set(failed(copy)) == {"digests", "golden"}


@pytest.mark.parametrize("name", ["9223372036854775807", "٣", "1" * 40])
def test_versions_that_no_server_reads_are_no_versions(copy, name):
    other = copy.with_name(name)
    shutil.copytree(copy, other)
    assert newest(copy.parent) == copy
    assert set(files.versions(copy.parent)) == {3}


def test_the_proof_runs_without_python_tensorflow(swift):
    (last,) = (check for check in verify(swift, fuzzed=0).checks if check.name == "finished")
    assert last.passed and "no Python TensorFlow" in last.detail


def test_the_command_prints_a_table_and_a_verdict(swift, tmp_path):
    result = run_module("pipeline.verify", swift, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("passed all 19 checks\n")
    assert "refuses serving_default: axis 2 empty" in result.stdout
    as_json = run_module("pipeline.verify", swift.parent, "--json", "--fuzz", "0", cwd=tmp_path)
    values = json.loads(as_json.stdout)
    assert values["passed"] and values["directory"] == str(swift)
    assert {"name", "passed", "detail"} == set(values["checks"][0])


def test_the_command_fails_where_the_export_does(copy, tmp_path):
    flip(copy / "variables/variables.data-00000-of-00001")
    result = run_module("pipeline.verify", copy, cwd=tmp_path)
    assert result.returncode == 1
    assert "FAILED  digests" in result.stdout and "must not be served" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_the_commands_for_another_runtime_are_printed_and_not_run(copy, tmp_path):
    result = run_module("pipeline.verify", copy, "--runtime-version", "2.20", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "python3 -m venv serving-2.20",
        "serving-2.20/bin/pip install numpy protobuf",
        "serving-2.20/bin/pip install --no-deps tensorflow-cpu==2.20.0",
        f"python -m pipeline.verify {copy} --python serving-2.20/bin/python",
    ]
    assert not list(tmp_path.glob("serving*"))


def test_another_interpreter_runs_the_proof(swift, tmp_path, monkeypatch):
    """It is looked for where the command is given, and does not see this one's packages."""

    def program(name, text):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    program("python", f'echo "[$PYTHONPATH]" > {tmp_path}/seen; exec {sys.executable} "$@"')
    command = ("pipeline.verify", swift, "--python", "./python", "--fuzz", "0")
    result = run_module(*command, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "seen").read_text() == "[]\n"
    program("broken", "echo no such library >&2; exit 3")
    (check,) = verify(swift, python=tmp_path / "broken").checks
    assert not check.passed
    assert check.detail == "ended the process (exit code 3): no such library"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runtime-version", "newest"], "--runtime-version must be a version, such as 2.20"),
        (["--fuzz", "-1"], "--fuzz must be at least 0"),
        (["--python", "nowhere/python"], "nowhere/python is no program"),
        (["--fuz", "1"], "did you mean '--fuzz'?"),
        (["second"], "takes one folder"),
    ],
)
def test_what_the_command_cannot_do_it_says(swift, words, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        main([str(swift), *words])


@pytest.mark.long
def test_the_same_proof_passes_on_the_runtime_of_the_released_server(whole, tmp_path):
    """Needs PyPI and 1.2 GB of disk; the commands are those that the user is told."""
    lines = instructions(whole, "2.20").splitlines()
    for line in lines[:-1]:
        made = subprocess.run(shlex.split(line), cwd=tmp_path, capture_output=True, text=True)
        if "pip install" in line and made.returncode and "No matching" in made.stderr:
            pytest.skip(f"PyPI is not to be reached: {made.stderr.strip().splitlines()[-1]}")
        assert made.returncode == 0, made.stderr
    python = tmp_path / "serving-2.20/bin/python"
    outcome = verify(whole, python=python)
    assert outcome.passed, str(outcome)
    assert "TensorFlow 2.20.0" in next(c.detail for c in outcome.checks if c.name == "loads")
    listed = subprocess.run(
        [python, "-m", "pipeline.server_operations"],
        **{"cwd": Path(__file__).parents[1], "capture_output": True, "text": True, "check": True},
    )
    assert listed.stdout == Path(server_operations.__file__).with_suffix(".txt").read_text()


def test_a_version_that_is_no_number_is_never_served(copy, tmp_path):
    copy = copy.rename(copy.with_name("three"))
    result = run_module("pipeline.verify", copy, cwd=tmp_path)
    assert result.returncode == 1 and "'three' is no version number" in result.stdout


def test_leading_zeros_are_the_same_number(copy):
    copy = copy.rename(copy.with_name("007"))
    assert newest(copy.parent) == copy


def test_the_newest_version_is_taken_from_a_model_folder(copy, tmp_path):
    shutil.copytree(copy, copy.with_name("12"))
    assert newest(copy.parent).name == "12"
    for wrong in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="saved_models/digits/1"):
            newest(wrong)
    (copy / proof.GOLDEN).unlink()
    (copy / digests.MANIFEST).unlink()
    with pytest.raises(UsageError, match=r"no export of this package: it has no assets.extra/gol"):
        verify(copy)


@pytest.mark.parametrize("gone", ["saved_model.pb", "variables", str(proof.GOLDEN)])
def test_an_export_that_lacks_files_is_damaged(copy, gone, tmp_path):
    path = copy / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = run_module("pipeline.verify", ".", "--json", cwd=copy)
    outcome = json.loads(result.stdout)
    assert result.returncode == 1 and not outcome["passed"]
    wrong = {check["name"]: check["detail"] for check in outcome["checks"] if not check["passed"]}
    assert gone in wrong.pop("digests") and "is missing" in str(outcome)
    asked = {"saved_model.pb": "operations", "variables": "warm-up", str(proof.GOLDEN): "golden"}
    assert next(iter(wrong)) == asked[gone]


def test_the_folder_one_is_in_has_its_number(copy):
    result = run_module("pipeline.verify", ".", cwd=copy)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_version_that_was_held_back_is_said_to_be(copy):
    copy = copy.rename(copy.with_name(publish.REFUSED))
    result = run_module("pipeline.verify", copy, cwd=copy.parent)
    assert result.returncode == 1 and "held back by --export.tolerance" in result.stdout
