"""The export of a run: what is published, what it answers, what it leaves when it fails."""

import hashlib
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import run_module

from pipeline.data.batching import evaluation
from pipeline.evaluation.evaluate import answers
from pipeline.export import model_card, proof, warmup
from pipeline.export.savedmodel import difference, export, write
from pipeline.fit import fit
from pipeline.serving import repository, version_manifest
from pipeline.training.model_builder import network
from pipeline.utils import files
from pipeline.utils.errors import UsageError


def test_the_export_of_a_run_passes_and_is_version_1(digits_run):
    assert digits_run.export.name == "1"
    verification = digits_run.result["verification"]
    assert verification["passed"] and len(verification["checks"]) == 33
    assert {p.name for p in digits_run.export.parent.iterdir()} == {
        *("1", "models.config", "batching.config", "monitoring.config", "compose.yaml"),
        *("SERVING.md", ".published"),
    }


def test_a_version_tells_what_the_gate_compares(digits_run):
    name, sign = digits_run.task.selection_metric
    assert (name, sign) == ("accuracy", 1)
    assert repository.judged(digits_run.export, name) == (digits_run.test[name], "test")


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
    # One by the task of the fit; another test asks for calibrated answers.
    keys = [key for key in digits_run.model.step.compiled if key[0] == "answers"]
    assert sum("temperature" not in task.metadata for _, task, *_ in keys) == 1


def test_a_mixed_precision_run_exports_a_float32_twin(digits_run, tmp_path):
    config = digits_run.config.changed(export={"directory": tmp_path})
    model = mixed(digits_run, "mixed_bfloat16")
    outcome = export(model, digits_run.task, config, digits_run.splits["test"])
    assert outcome.passed and outcome.directory == tmp_path / "digits/1"
    graph = (outcome.directory / "saved_model.pb").read_bytes()
    types = {
        attribute.type
        for function in _graph(graph).library.function
        for node in function.node_def
        for attribute in node.attr.values()
    }
    assert tf.bfloat16.as_datatype_enum not in types and tf.float32.as_datatype_enum in types
    about = version_manifest.about(outcome.directory)
    assert about["trained_precision"] == "mixed_bfloat16" and about["precision"] == "float32"
    assert 0 < about["difference"]["probabilities"] < 0.05, "it is that of the trained model"


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


def test_a_full_disk_is_one_line_and_leaves_nothing(digits_run, tmp_path, monkeypatch):
    def full(*_, **__):
        message = "a/.unpublished-1/variables.tempstate12; No space left on device [Op:SaveV2]"
        raise tf.errors.ResourceExhaustedError(None, None, message)

    monkeypatch.setattr(tf.saved_model, "save", full)
    config = digits_run.config.changed(export={"directory": tmp_path})
    said = "digits cannot be written: No space left on device$"
    with pytest.raises(UsageError, match=said):
        export(digits_run.model, digits_run.task, config, digits_run.splits["test"])
    assert [path.name for path in (tmp_path / "digits").iterdir()] == []


def test_an_interrupted_export_leaves_nothing(digits_run, tmp_path, monkeypatch):
    config = digits_run.config.changed(export={"directory": tmp_path})

    def interrupted(path, golden):
        raise KeyboardInterrupt

    monkeypatch.setattr(proof, "write_golden", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(digits_run.model, digits_run.task, config, digits_run.splits["test"])
    assert list((tmp_path / "digits").iterdir()) == []


def test_export_names_are_the_api(digits_run):
    signatures = tf.saved_model.load(digits_run.export).signatures
    answers = {
        "probabilities": (tf.float32, [None, 10]),
        "class": (tf.int32, [None]),
        "label": (tf.string, [None]),
        "top_scores": (tf.float32, [None, 5]),
        "top_labels": (tf.string, [None, 5]),
    }
    classes = {"classes": (tf.string, [None, 5]), "scores": (tf.float32, [None, 5])}
    api = {
        "serving_default": ("images", tf.uint8, [None, 8, 8, 1], answers),
        "image_bytes": ("image_bytes", tf.string, [None], answers),
        "classify": ("inputs", tf.string, [None], classes),
    }
    assert set(signatures) == set(api)
    for name, (argument, *type_and_shape, wanted) in api.items():
        (spec,) = signatures[name].structured_input_signature[1].values()
        assert spec.name == argument and [spec.dtype, spec.shape.as_list()] == type_and_shape
        outputs = signatures[name].structured_outputs
        assert {n: (v.dtype, v.shape.as_list()) for n, v in outputs.items()} == wanted


def mixed(run, policy):
    """The trained weights in a network of another precision."""
    model = network(run.task, run.config.model, policy)
    model.set_weights(run.model.get_weights())
    return model


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "No example had to be excluded."),
        (1200, "1,200 unsuitable examples were excluded; the run's manifest"),
    ],
)
def test_the_model_card_tells_what_cleaning_left_out(digits_run, count, said):
    about = version_manifest.about(digits_run.export)
    about["trained"]["left_out"] = count
    for enabled in (True, False):
        config = digits_run.config.changed(clean={"enabled": enabled})
        assert (said in model_card.text(config, about, {}, (), {})) == enabled


@pytest.mark.parametrize(("precision", "most"), [("float16", 5e-3), ("bfloat16", 4e-2)])
def test_an_export_in_16_bits_is_near_and_answers_in_32(digits_run, tmp_path, precision, most):
    config = digits_run.config.changed(export={"directory": tmp_path, "precision": precision})
    split = digits_run.splits["test"]
    about = write(tmp_path, digits_run.model, digits_run.task, config, split, metrics={})
    assert about["precision"] == precision and about["trained_precision"] == "float32"
    assert 0 < about["difference"]["probabilities"] < most
    assert about["compared"] == 64
    graph = _graph((tmp_path / "saved_model.pb").read_bytes())
    enum = tf.as_dtype(precision).as_datatype_enum
    types = {
        n.attr["T"].type for f in graph.library.function for n in f.node_def if n.op == "Conv2D"
    }
    assert types == {enum}, "the convolutions compute in another precision"
    answers = tf.saved_model.load(tmp_path).signatures["serving_default"].structured_outputs
    assert {value.dtype for value in answers.values()} == {tf.float32, tf.int32, tf.string}
    sixteen = mixed(digits_run, f"mixed_{precision}")
    again = difference(
        sixteen, digits_run.task, proof.read_golden(tmp_path / proof.GOLDEN)["serving_default"]
    )
    assert again["probabilities"] < about["difference"]["probabilities"] / 10, "not that precision"


def test_the_manifest_tells_what_the_version_is_and_of_every_file(digits_run):
    about = version_manifest.about(digits_run.export)
    there = {p.relative_to(digits_run.export).as_posix() for p in digits_run.export.rglob("*.*")}
    there |= {"assets.extra/tf_serving_warmup_requests"}
    without = {"assets.extra/manifest.json", "assets.extra"}
    assert set(about["files"]) == there - without
    for name, entry in about["files"].items():
        raw = (digits_run.export / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    assert about["config_digest"] == digits_run.config.digest()
    assert about["class_names"] == [str(digit) for digit in range(10)]
    assert about["temperature"] == digits_run.task.temperature != 1
    assert about["metrics"]["accuracy"] == digits_run.test["accuracy"]
    assert about["metrics"]["calibrated.loss"] == digits_run.test["calibrated"]["loss"]
    assert about["trained"] == {
        "steps": digits_run.result["steps"],
        "of": digits_run.result["steps"],
        "complete": True,
        "examples": {name: len(split) for name, split in digits_run.splits.items()},
        "left_out": 0,
    }
    assert about["judged"] == "test" and about["versions"]["keras"] == keras.__version__
    assert about["precision"] == about["trained_precision"] == "float32"
    assert about["difference"]["probabilities"] <= 1e-6 and about["difference"]["label"] == 0
    images = {"dtype": "uint8", "shape": [None, 8, 8, 1]}
    assert about["signatures"]["serving_default"]["inputs"] == {"images": images}
    labels = {"dtype": "string", "shape": [None, 5]}
    assert about["signatures"]["serving_default"]["outputs"]["top_labels"] == labels


def test_the_same_weights_give_the_same_answers_and_manifest(digits_run, tmp_path):
    """The SavedModel's own files differ: in one process the second has other names of layers and
    functions, which Keras and TensorFlow number."""
    split = digits_run.splits["test"]
    metrics = {name: digits_run.result[name] for name in ("train", "validation", "test")}
    before = version_manifest.about(digits_run.export)
    config, trained = digits_run.config, before["trained"]
    about = {"metrics": metrics, "trained": trained}
    write(tmp_path, digits_run.model, digits_run.task, config, split, **about)
    found = version_manifest.about(tmp_path)
    assert set(found["files"]) == set(before["files"])
    ours = (str(proof.GOLDEN), str(warmup.FILE))
    for about in (found, before):
        about["files"] = {name: about["files"][name] for name in ours}
    assert found == before


def test_two_processes_export_the_same_bytes(tmp_path):
    """Nor does it matter where objects lie in memory, and how strings are hashed."""
    words = ["--model.name", "sequential", "--data.limit", "300", "--train.epochs", "1"]
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        process = run_module("pipeline.fit", "digits", *words, cwd=tmp_path / name)
        assert process.returncode == 0, process.stderr
    one, other = (tmp_path / name / "saved_models/digits/1" for name in ("one", "other"))
    files_of = ["saved_model.pb", *(f"variables/{p.name}" for p in (one / "variables").iterdir())]
    assert len(files_of) == 3
    for name in files_of:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_the_calibrated_loss_is_that_of_the_served_probabilities(digits_run):
    split = digits_run.splits["test"]
    served = tf.saved_model.load(digits_run.export).signatures["serving_default"]
    images = split.take(np.arange(len(split)))["image"]
    probabilities = served(images=tf.constant(images))["probabilities"].numpy().astype(np.float64)
    truth = split.column("label")
    loss = -np.log(probabilities[np.arange(len(truth)), truth]).mean()
    assert digits_run.test["calibrated"]["loss"] == pytest.approx(loss, rel=1e-4)
    assert digits_run.test["loss"] != pytest.approx(loss, rel=1e-2)


def test_the_model_card_tells_all_that_was_measured(digits_run):
    card = (digits_run.export / model_card.FILE).read_text()
    sections = ("Data", "Metrics", "Classes", "Answers", "Limits", "How it was made", "Files")
    assert [line[3:] for line in card.splitlines() if line.startswith("## ")] == [
        *sections,
        "How to call it",
    ]
    assert f"{digits_run.model.count_params():,} parameters" in card
    steps = f"{digits_run.result['steps']:,}"
    assert f"Trained for {steps} of {steps} steps." in card
    counts = (f"{name} {len(split):,}" for name, split in digits_run.splits.items())
    assert f"Examples: {', '.join(counts)}." in card
    splits = [f"{digits_run.test['accuracy']:.4f}", f"{digits_run.result['train']['accuracy']:.4f}"]
    (row,) = (line for line in card.splitlines() if line.startswith("| accuracy |"))
    assert all(number in row for number in splits)
    for name, entry in version_manifest.about(digits_run.export)["files"].items():
        assert (entry["sha256"] in card) == (not name.startswith("assets.extra"))
    config = json.loads(re.search(r"```json\n(.*?)```", card, flags=re.DOTALL)[1])
    assert config == json.loads(json.dumps(digits_run.config.as_json()))


def test_weights_are_stored_once(digits_run):
    size = (digits_run.export / "variables/variables.data-00000-of-00001").stat().st_size
    assert size < 1.05 * 4 * digits_run.model.count_params()


def test_a_finished_run_is_exported_in_another_way_without_training(workplace, capsys):
    changes = {
        "model": {"name": "tiny"},
        "data": {"limit": 600},
        "train": {"epochs": 1, "batch_size": 16},
        "runtime": {"precision": "mixed_bfloat16"},
        "run_directory": "mine",
        "log": {"tensorboard": False},
    }
    first = fit("digits", **changes)
    shown = capsys.readouterr().out
    said = (
        "precision  float32 in the export, mixed_bfloat16 in training; on 64 examples the answers"
    )
    assert said in shown and "calibrated temperature " in shown
    served = next(line for line in shown.splitlines() if line.startswith("as served  test loss "))
    about = version_manifest.about(first.export)
    assert about["difference"]["probabilities"] > 0
    # The gate is to compare what is published; the run tells of what was trained.
    assert about["metrics"]["loss"] != first.test["loss"]
    assert (
        f"loss {about['metrics']['loss']:.4f}  accuracy {about['metrics']['accuracy']:.4f}"
        in served
    )
    assert about["metrics"]["loss"] == pytest.approx(first.test["loss"], rel=0.02)
    card = (first.export / model_card.FILE).read_text()
    assert "The test split was evaluated with this version, in float32; " in card
    again = fit("digits", **changes)
    assert again.export == first.export and again.task.metadata == first.task.metadata
    assert "temperature" in again.task.metadata
    capsys.readouterr()
    other = fit("digits", **changes, export={"precision": "bfloat16", "calibrate": False})
    shown = capsys.readouterr().out
    assert other.export.name == "2" and "epoch 1/1" not in shown
    assert "precision  " not in shown.partition("export  ")[2] and "calibrated" not in shown
    about = version_manifest.about(other.export)
    assert about["difference"]["probabilities"] < 1e-3, "it is the trained network"
    assert about["metrics"]["loss"] == other.test["loss"], "judged as it was trained"
    assert about["temperature"] is None and other.task.metadata.get("temperature") is None
    assert other.test["loss"] == first.test["loss"] and "calibrated" not in other.test
