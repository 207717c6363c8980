"""The export of a run: what is published, what it answers, what it leaves when it fails."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import files, proof
from pipeline.evaluate import answers
from pipeline.export import export
from pipeline.stream import evaluation


def test_the_export_of_a_run_passes_and_is_version_1(digits_run):
    assert digits_run.export.name == "1"
    verification = digits_run.result["verification"]
    assert verification["passed"] and len(verification["checks"]) == 19
    assert sorted(p.name for p in digits_run.export.parent.iterdir()) == [".published", "1"]


def test_the_served_answers_are_those_of_the_trained_model(digits_run):
    """Through another loader than the proof's, on every test example."""
    split = digits_run.splits["test"]
    wanted = answers(digits_run.model, digits_run.task, evaluation(split, digits_run.config.train))
    loaded = tf.saved_model.load(digits_run.export)
    images = split.take(np.arange(len(split)))["image"]
    served = loaded.signatures["serving_default"](images=tf.constant(images))
    np.testing.assert_allclose(served["probabilities"], wanted["probabilities"], atol=1e-6)
    np.testing.assert_array_equal(served["label"], wanted["label"])
    png = [tf.io.encode_png(image).numpy() for image in images[:5]]
    encoded = loaded.signatures["image_bytes"](image_bytes=tf.constant(png))
    np.testing.assert_allclose(encoded["probabilities"], served["probabilities"][:5], atol=1e-6)


def test_all_splits_are_answered_by_one_trace(digits_run):
    assert set(digits_run.splits) == {"train", "validation", "test"}
    assert sum(key[0] == "answers" for key in digits_run.model.step.compiled) == 1


def test_a_mixed_precision_run_exports_a_float32_twin(digits_run, tmp_path):
    from pipeline.build import network

    config = digits_run.config.changed(export={"directory": tmp_path})
    mixed = network(digits_run.task, config.model, "mixed_bfloat16")
    mixed.set_weights(digits_run.model.get_weights())
    outcome = export(mixed, digits_run.task, config, digits_run.splits["test"])
    assert outcome.passed and outcome.directory == tmp_path / "digits/1"
    graph = (outcome.directory / "saved_model.pb").read_bytes()
    types = {
        attribute.type
        for function in _graph(graph).library.function
        for node in function.node_def
        for attribute in node.attr.values()
    }
    assert tf.bfloat16.as_datatype_enum not in types and tf.float32.as_datatype_enum in types


def _graph(raw):
    from tensorflow.core.protobuf import saved_model_pb2

    return saved_model_pb2.SavedModel.FromString(raw).meta_graphs[0].graph_def


def test_a_failed_proof_is_not_published(digits_run, tmp_path, monkeypatch):
    config = digits_run.config.changed(export={"directory": tmp_path})
    real = proof.write_golden

    def wrong(path, golden):
        golden["serving_default"]["outputs"]["probabilities"] += 2e-5
        real(path, golden)

    monkeypatch.setattr(proof, "write_golden", wrong)
    outcome = export(digits_run.model, digits_run.task, config, digits_run.splits["test"])
    assert not outcome.passed
    assert not files.versions(tmp_path / "digits")
    assert outcome.directory.name.startswith(".")


def test_an_interrupted_export_leaves_nothing(digits_run, tmp_path, monkeypatch):
    config = digits_run.config.changed(export={"directory": tmp_path})

    def interrupted(path, golden):
        raise KeyboardInterrupt

    monkeypatch.setattr(proof, "write_golden", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(digits_run.model, digits_run.task, config, digits_run.splits["test"])
    assert list((tmp_path / "digits").iterdir()) == []


def test_golden_answers_are_stored_exactly(tmp_path):
    golden = {
        "a": {
            "inputs": {"bytes": [b"", b"x\x00\x00", b"\xff" * 5]},
            "outputs": {"score": np.float32([[0.1, 1e-38]]), "n": np.int32([3])},
        }
    }
    proof.write_golden(tmp_path / "g/golden.npz", golden)
    again = proof.read_golden(tmp_path / "g/golden.npz")
    assert list(again["a"]["inputs"]["bytes"]) == golden["a"]["inputs"]["bytes"]
    np.testing.assert_array_equal(again["a"]["outputs"]["score"], np.float32([[0.1, 1e-38]]))
    assert again["a"]["outputs"]["score"].dtype == np.float32


def test_export_names_are_the_api(digits_run):
    signatures = tf.saved_model.load(digits_run.export).signatures
    assert set(signatures) == {"serving_default", "image_bytes"}
    for name, argument, dtype in (
        ("serving_default", "images", tf.uint8),
        ("image_bytes", "image_bytes", tf.string),
    ):
        (spec,) = signatures[name].structured_input_signature[1].values()
        assert (spec.name, spec.dtype, spec.shape[0]) == (argument, dtype, None)
        outputs = signatures[name].structured_outputs
        assert {key: value.dtype for key, value in outputs.items()} == {
            "probabilities": tf.float32,
            "class": tf.int32,
            "label": tf.string,
        }


def test_weights_are_stored_once(digits_run):
    size = (digits_run.export / "variables/variables.data-00000-of-00001").stat().st_size
    assert size < 1.05 * 4 * digits_run.model.count_params()
