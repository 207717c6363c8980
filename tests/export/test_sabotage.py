"""Each sabotage of an export, and the check that catches it."""

import json
import os
import shutil

import exports
import numpy as np
import pytest
import tensorflow as tf
from conftest import run_module

from pipeline.export import proof
from pipeline.export.verification import verify
from pipeline.serving.version_manifest import MANIFEST


def failed(directory):
    checks = verify(directory, fuzzed=0).checks
    return {check.name: check.detail for check in checks if not check.passed}


def flip(path, at=0.5):
    raw = bytearray(path.read_bytes())
    raw[int(len(raw) * at)] ^= 0x40
    path.write_bytes(raw)


def test_changed_weights_are_caught(version):
    flip(version / "variables/variables.data-00000-of-00001")
    (check,) = verify(version).checks  # nothing of it is loaded
    assert check.name == "digests" and not check.passed
    assert "variables.data-00000-of-00001 has changed" in check.detail


@pytest.mark.parametrize("name", ["fingerprint.pb", "assets.extra/manifest.json"])
def test_one_wrong_bit_anywhere_ends_the_verification(version, name):
    flip(version / name)
    assert [check.name for check in verify(version).checks] == ["digests"]


def test_a_damaged_graph_is_caught(version):
    path = version / "saved_model.pb"
    path.write_bytes(path.read_bytes()[:1000])
    exports.write_manifest(version)
    assert "saved_model.pb cannot be read" in failed(version)["operations"]


def store(directory, golden):
    """Other answers, with a manifest that knows of them."""
    proof.write_golden(directory / proof.GOLDEN, golden)
    exports.write_manifest(directory)


def test_swapped_labels_are_caught(version):
    golden = proof.read_golden(version / proof.GOLDEN)
    labels = golden["serving_default"]["outputs"]["label"]
    golden["serving_default"]["outputs"]["label"] = np.roll(labels, 1)
    store(version, golden)
    assert set(failed(version)) == {"answers serving_default", "still answers serving_default"}


@pytest.mark.parametrize("change", [2e-5, np.nan])
def test_answers_that_differ_are_caught(version, change):
    golden = proof.read_golden(version / proof.GOLDEN)
    golden["serving_default"]["outputs"]["probabilities"][7, 3] += change
    store(version, golden)
    found = failed(version)
    said = "differs by" if np.isfinite(change) else "a stored answer is not finite"
    assert f"probabilities: {said}" in found.pop("answers serving_default")
    assert set(found) <= {"still answers serving_default"}


def export_of(directory, function, specs, inputs, name="serving_default"):
    """A SavedModel made without our export; its golden answers, warm-up and manifest are honest."""
    module = tf.Module()
    module.weight = tf.Variable(tf.ones([3, 3, 1, 4]))
    traced = tf.function(lambda *arguments: function(module.weight, *arguments))
    constants = {key: tf.constant(value) for key, value in inputs.items()}
    signature = traced.get_concrete_function(*specs)
    module.served = signature
    tf.saved_model.save(module, str(directory), signatures={name: signature})
    outputs = {key: np.asarray(value) for key, value in signature(**constants).items()}
    proof.write_golden(directory / proof.GOLDEN, {name: {"inputs": inputs, "outputs": outputs}})
    exports.write_warm_up(directory, {name: inputs})
    exports.write_manifest(directory)


SPEC = [tf.TensorSpec((None, 8, 8, 1), tf.uint8, name="images")]
IMAGES = {"images": np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)}


def convolve(weight, images):
    maps = tf.nn.conv2d(tf.cast(images, tf.float32), weight, 1, "SAME")
    return {"scores": tf.reduce_mean(maps, [1, 2])}


def test_an_export_without_guards_is_caught(tmp_path):
    """The request without a batch axis ends the server's process, or is answered; both fail."""
    export_of(tmp_path / "1", convolve, SPEC, IMAGES)
    found = failed(tmp_path / "1")
    assert found, "an export without shape guards passed"
    # Which of the wrong requests comes through first depends on the CPU's kernels.
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

    export_of(tmp_path / "1", printing, SPEC, IMAGES)
    checks = {check.name: check.detail for check in verify(tmp_path / "1", fuzzed=0).checks}
    assert {"digests", "operations", "answers serving_default", "finished"} <= checks.keys()
    assert "forged" not in checks.values() and "no JSON" not in checks


def test_a_program_that_does_harm_is_not_run(version, tmp_path):
    def writing(weight, images):
        tf.io.write_file(str(tmp_path / "stolen"), "x")
        return convolve(weight, tf.ensure_shape(images, SPEC[0].shape))

    export_of(tmp_path / "1", writing, SPEC, IMAGES)
    (tmp_path / "stolen").unlink()
    assert "is WriteFile: it ends the server" in failed(tmp_path / "1")["operations"]
    assert not (tmp_path / "stolen").exists()


@pytest.mark.parametrize("harm", ["pipe", "link"])
def test_a_pipe_or_a_link_is_no_file_of_a_version(version, harm):
    """The first is waited for without end; the second leads nowhere in a container."""
    path = version / "fingerprint.pb"
    path.rename(version.parent / "away")
    os.mkfifo(path) if harm == "pipe" else path.symlink_to(version.parent / "away")
    assert failed(version) == {"digests": "fingerprint.pb is not a regular file"}


def test_half_precision_outputs_are_caught(tmp_path):
    def half(weight, images):
        images = tf.ensure_shape(images, SPEC[0].shape)
        return {"scores": tf.cast(convolve(weight, images)["scores"], tf.float16)}

    export_of(tmp_path / "1", half, SPEC, IMAGES)
    assert "scores has a type that REST cannot carry" in failed(tmp_path / "1")["contract"]


def test_outputs_without_a_batch_axis_are_caught(tmp_path):
    def total(weight, images):
        images = tf.ensure_shape(images, SPEC[0].shape)
        return {"total": tf.reduce_sum(convolve(weight, images)["scores"])}

    export_of(tmp_path / "1", total, SPEC, IMAGES)
    assert "first axis of total is not the batch" in failed(tmp_path / "1")["contract"]


def test_functions_that_need_xla_are_caught(tmp_path):
    @tf.function(jit_compile=True)
    def compiled(weight, images):
        return convolve(weight, images)

    def served(weight, images):
        return compiled(weight, tf.ensure_shape(images, SPEC[0].shape))

    export_of(tmp_path / "1", served, SPEC, IMAGES)
    assert "must be compiled by XLA" in failed(tmp_path / "1")["operations"]


def test_another_signature_name_is_caught(tmp_path):
    def served(weight, images):
        return convolve(weight, tf.ensure_shape(images, SPEC[0].shape))

    export_of(tmp_path / "1", served, SPEC, IMAGES, name="other")
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
def test_answers_that_prove_nothing_are_caught(version, harm, check, message):
    golden = proof.read_golden(version / proof.GOLDEN)
    harm(golden)
    store(version, golden)
    assert message in failed(version)[check]


@pytest.mark.parametrize("content", [b"", b"PK junk", b"\x80\x04."])
def test_damaged_golden_answers_are_caught(version, content):
    (version / proof.GOLDEN).write_bytes(content)
    exports.write_manifest(version)
    assert set(failed(version)) == {"golden"}


def test_the_command_fails_where_the_export_does(version, tmp_path):
    flip(version / "variables/variables.data-00000-of-00001")
    result = run_module("pipeline.verify", version, cwd=tmp_path)
    assert result.returncode == 1
    assert "FAILED  digests" in result.stdout
    assert result.stdout.endswith("must not be served; the other checks were skipped\n")
    assert "Traceback" not in result.stdout + result.stderr


@pytest.mark.parametrize("gone", ["saved_model.pb", "variables", str(proof.GOLDEN), str(MANIFEST)])
def test_an_export_that_lacks_files_is_damaged(version, gone, tmp_path):
    path = version / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = run_module("pipeline.verify", ".", "--json", cwd=version)
    outcome = json.loads(result.stdout)
    assert result.returncode == 1 and not outcome["passed"]
    wrong = {check["name"]: check["detail"] for check in outcome["checks"] if not check["passed"]}
    assert gone in wrong["digests"] and "is missing" in wrong["digests"] and len(wrong) == 1
