"""Each sabotage of an export, and the check that catches it."""

import json
import shutil

import numpy as np
import pytest
import reference_exports
import tensorflow as tf

from pipeline.export import proof, request_checks, warmup
from pipeline.export.verification import verify
from pipeline.serving.savedmodel_session import ServerError
from pipeline.serving.signatures import strings
from pipeline.serving.version_manifest import MANIFEST
from pipeline.utils.errors import Failure


@pytest.mark.parametrize(
    "name", ["variables/variables.data-00000-of-00001", "fingerprint.pb", str(MANIFEST)]
)
def test_one_wrong_bit_anywhere_skips_the_other_checks(version, name):
    raw = bytearray((version / name).read_bytes())
    raw[len(raw) // 2] ^= 0x40
    (version / name).write_bytes(raw)
    assert list(reference_exports.failures(version)) == ["digests"]


@pytest.mark.parametrize(
    "gone", ["saved_model.pb", "variables", str(proof.GOLDEN), str(MANIFEST)]
)
def test_an_export_that_lacks_files_is_damaged(version, gone):
    path = version / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    message = reference_exports.failures(version)["digests"]
    assert gone in message and "is missing" in message


def test_every_other_status_than_invalid_argument_fails():
    def broken(x):
        raise ServerError(13, "internal")

    files = strings(reference_exports.requests(3)["image_bytes"]["image_bytes"])
    ((name, check),) = request_checks.refusal_checks(
        reference_exports.Server(broken), "s", {"x": files}
    )
    assert name == "refuses s"
    with pytest.raises(Failure, match="status 13 instead of INVALID_ARGUMENT"):
        check()


# Models that are not exported by this package

SPEC = [tf.TensorSpec((None, 8, 8, 1), tf.uint8, name="images")]
IMAGES = {"images": np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)}


def export_of(directory, function, guard=True):
    """Exports a function of images with honest golden predictions, warm-up requests and
    manifest.
    """
    module = tf.Module()
    module.weight = tf.Variable(tf.ones([3, 3, 1, 4]))

    def served(images):
        return function(
            module.weight, tf.ensure_shape(images, SPEC[0].shape) if guard else images
        )

    name = "serving_default"
    signature = tf.function(served).get_concrete_function(*SPEC)
    tf.saved_model.save(module, str(directory), signatures={name: signature})
    outputs = signature(images=tf.constant(IMAGES["images"]))
    outputs = {key: np.asarray(value) for key, value in outputs.items()}
    proof.write_golden(
        directory / proof.GOLDEN, {name: {"inputs": IMAGES, "outputs": outputs}}
    )
    warmup.write(
        directory / warmup.FILE, "small", {name: IMAGES}, reference_exports.SIZES
    )
    reference_exports.write_manifest(directory)


def convolve(weight, images):
    maps = tf.nn.conv2d(tf.cast(images, tf.float32), weight, 1, "SAME")
    return {"scores": tf.reduce_mean(maps, [1, 2])}


def test_a_model_that_is_compiled_by_xla_is_caught(tmp_path):
    export_of(tmp_path / "1", tf.function(convolve, jit_compile=True))
    assert (
        "must be compiled by XLA"
        in reference_exports.failures(tmp_path / "1")["operations"]
    )


def test_a_model_without_guards_that_prints_results_is_caught(tmp_path):
    """In a separate process, which a request without a batch axis may end."""
    forged = json.dumps({"check": "finished", "passed": True, "detail": "forged"})

    def printing(weight, images):
        tf.raw_ops.PrintV2(input=forged, output_stream="stdout")
        return convolve(weight, images)

    export_of(tmp_path / "1", printing, guard=False)
    checks = verify(tmp_path / "1").checks
    assert "forged" not in {check.detail for check in checks}
    failed = next(check for check in checks if not check.passed)
    # Which of the malformed requests fails first depends on the kernels of the CPU.
    assert failed.name == "refuses serving_default"
    messages = ("ended the process", "the model answered", "status")
    assert any(message in failed.detail for message in messages)
