"""The proof of an export: what passes, and what each sabotage is caught by."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import run_module

from pipeline import files, proof
from pipeline.errors import UsageError
from pipeline.verify import newest, verify

FIXTURE = Path(__file__).parent / "fixtures/digits/1"


def failed(directory):
    return {check.name: check.detail for check in verify(directory).checks if not check.passed}


def test_an_export_of_the_first_release_still_passes():
    outcome = verify(FIXTURE)
    assert outcome.passed, str(outcome)
    assert len(outcome.checks) == 19


@pytest.fixture
def copy(tmp_path):
    target = tmp_path / "digits" / "3"
    shutil.copytree(FIXTURE, target)
    return target


def flip(path, at=0.5):
    raw = bytearray(path.read_bytes())
    raw[int(len(raw) * at)] ^= 0x40
    path.write_bytes(raw)


def test_changed_weights_are_caught(copy):
    flip(copy / "variables/variables.data-00000-of-00001")
    assert "loads" in failed(copy)


def test_a_damaged_graph_is_caught(copy):
    path = copy / "saved_model.pb"
    path.write_bytes(path.read_bytes()[:1000])
    assert "loads" in failed(copy)


def test_swapped_labels_are_caught(copy):
    golden = proof.read_golden(copy / proof.GOLDEN)
    labels = golden["image_bytes"]["outputs"]["label"]
    golden["image_bytes"]["outputs"]["label"] = np.roll(labels, 1)
    proof.write_golden(copy / proof.GOLDEN, golden)
    assert set(failed(copy)) == {"answers image_bytes", "still answers image_bytes"}


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_answers_may_differ_by_their_size(size):
    wanted = np.float32(size) * np.linspace(-1, 0.3, 8, dtype=np.float32)
    golden = {"inputs": {"x": np.zeros(8)}, "outputs": {"y": wanted}}

    class Server:
        def run(self, signature, inputs):
            return {"y": wanted[: len(inputs["x"])] + np.float32(self.error * size)}

    server = Server()
    server.error = 5e-6
    proof._answers(server, "serving_default", golden)
    server.error = 2e-5
    with pytest.raises(proof.Failure, match="y: differs by .* in a batch of 1"):
        proof._answers(server, "serving_default", golden)


@pytest.mark.parametrize("change", [2e-5, np.nan])
def test_answers_that_differ_are_caught(copy, change):
    golden = proof.read_golden(copy / proof.GOLDEN)
    golden["serving_default"]["outputs"]["probabilities"][40, 3] += change
    proof.write_golden(copy / proof.GOLDEN, golden)
    assert set(failed(copy)) == {"answers serving_default", "still answers serving_default"}


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
    (name, detail), *_ = found.items()
    assert name.startswith("refuses serving_default: ")
    assert "ended the process" in detail or "answered" in detail or "status" in detail


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
    assert "must be compiled by XLA" in failed(tmp_path / "1")["contract"]


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
        (lambda golden: without(golden, "serving_default"), "contract", "serving_default has no"),
        (lambda golden: without(golden, "image_bytes", "outputs"), "golden", "inputs and outputs"),
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
    proof.write_golden(copy / proof.GOLDEN, golden)
    assert message in failed(copy)[check]


@pytest.mark.parametrize("content", [b"", b"PK junk", b"\x80\x04."])
def test_damaged_golden_answers_are_caught(copy, content):
    (copy / proof.GOLDEN).write_bytes(content)
    assert set(failed(copy)) == {"golden"}


@pytest.mark.parametrize("name", ["9223372036854775807", "٣", "1" * 40])
def test_versions_that_no_server_reads_are_no_versions(copy, name):
    other = copy.with_name(name)
    shutil.copytree(copy, other)
    assert newest(copy.parent) == copy
    assert set(files.versions(copy.parent)) == {3}


def test_the_proof_runs_without_python_tensorflow():
    (last,) = (check for check in verify(FIXTURE).checks if check.name == "finished")
    assert last.passed and "no Python TensorFlow" in last.detail


def test_the_command_prints_a_table_and_a_verdict(tmp_path):
    result = run_module("pipeline.verify", FIXTURE, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("passed all 19 checks\n")
    assert "refuses image_bytes: half a file" in result.stdout
    as_json = run_module("pipeline.verify", FIXTURE.parent, "--json", cwd=tmp_path)
    values = json.loads(as_json.stdout)
    assert values["passed"] and values["directory"] == str(FIXTURE)


def test_the_command_fails_where_the_export_does(copy, tmp_path):
    flip(copy / "variables/variables.data-00000-of-00001")
    result = run_module("pipeline.verify", copy, cwd=tmp_path)
    assert result.returncode == 1
    assert "FAILED  loads" in result.stdout and "must not be served" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


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
    (copy / "variables/variables.index").unlink()
    with pytest.raises(UsageError, match=r"it has no variables/variables\.index"):
        verify(copy)
