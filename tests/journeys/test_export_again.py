"""The export of a run: its answers, its files, and what remains of an export that
fails.
"""

import hashlib
import io
import json
import re
import signal
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorflow_serving.apis import prediction_log_pb2

from pipeline.export import run_result, savedmodel, text_files, warmup
from pipeline.export.savedmodel import export
from pipeline.serving import version_manifest


def test_the_export_of_a_run_passes_and_is_version_1(digits_run):
    assert digits_run.export.name == "1"
    verification = digits_run.result["verification"]
    assert verification["passed"] and len(verification["checks"]) == 13
    assert {p.name for p in digits_run.export.parent.iterdir()} == {
        *("1", "models.config", "batching.config", "monitoring.config", "compose.yaml"),
        *("inferenceservice.yaml", "SERVING.md", ".published"),
    }


def test_the_served_answers_are_those_of_the_trained_model(digits_run):
    """With another loader than that of the verification, for every test example."""
    split = digits_run.splits["test"]
    images = split.take(np.arange(len(split)))["image"]
    expected = digits_run.predict(images)
    signatures = tf.saved_model.load(digits_run.export).signatures
    served = signatures["serving_default"](images=tf.constant(images))
    probabilities = served["probabilities"].numpy()
    np.testing.assert_allclose(probabilities, expected["probabilities"], atol=3e-6)
    labels = [label.decode() for label in served["label"].numpy()]
    assert labels == expected["label"].tolist()
    png = [tf.io.encode_png(image).numpy() for image in images[:5]]
    encoded = signatures["image_bytes"](image_bytes=tf.constant(png))
    np.testing.assert_allclose(encoded["probabilities"], probabilities[:5], atol=1e-6)
    # The calibrated loss is that of the served probabilities.
    truth = split.column("label")
    loss = -np.log(
        probabilities.astype(np.float64)[np.arange(len(truth)), truth]
    ).mean()
    assert digits_run.test["calibrated"]["loss"] == pytest.approx(loss, rel=1e-4)
    assert digits_run.test["loss"] != pytest.approx(loss, rel=1e-2)


def test_signatures_are_the_documented_api(digits_run):
    signatures = tf.saved_model.load(digits_run.export).signatures
    outputs = {
        "probabilities": (tf.float32, [None, 10]),
        "class": (tf.int32, [None]),
        "label": (tf.string, [None]),
        "top_scores": (tf.float32, [None, 5]),
        "top_labels": (tf.string, [None, 5]),
    }
    api = {
        "serving_default": ("images", tf.uint8, [None, 8, 8, 1], outputs),
        "image_bytes": ("image_bytes", tf.string, [None], outputs),
    }
    assert set(signatures) == set(api)
    for name, (argument, *type_and_shape, expected) in api.items():
        (spec,) = signatures[name].structured_input_signature[1].values()
        assert (
            spec.name == argument
            and [spec.dtype, spec.shape.as_list()] == type_and_shape
        )
        found = signatures[name].structured_outputs
        assert {n: (v.dtype, v.shape.as_list()) for n, v in found.items()} == expected


def test_an_export_that_stops_leaves_nothing(digits_run, tmp_path, monkeypatch):
    full = "a/.unpublished-1/variables.tempstate12; No space left on device [Op:SaveV2]"
    save = mock.Mock(side_effect=tf.errors.ResourceExhaustedError(None, None, full))
    monkeypatch.setattr(tf.saved_model, "save", save)
    processes = []
    start = savedmodel.start
    monkeypatch.setattr(
        savedmodel, "start", lambda d: processes.append(start(d)) or processes[0]
    )
    config = digits_run.config.changed(export={"directory": tmp_path})
    arguments = (digits_run.network, digits_run.task, config, digits_run.splits["test"])
    (check,) = export(*arguments, metrics={}, trained={}).checks
    assert check.detail.endswith("digits cannot be written: No space left on device")
    assert list((tmp_path / "digits").iterdir()) == []
    assert processes[0].returncode == -signal.SIGKILL, (
        "the process of the checks has ended"
    )


def test_a_copy_of_the_network_that_is_not_the_trained_one_is_not_published(
    digits_run, tmp_path
):
    """The slope is neither a weight nor an option of the model, so the copy does not
    have it.
    """
    network = digits_run.network
    layer = next(x for x in network.layers if isinstance(x, keras.layers.ReLU))
    config = digits_run.config.changed(export={"directory": tmp_path})
    arguments = (network, digits_run.task, config, digits_run.splits["test"])
    with mock.patch.object(layer, "negative_slope", 1.0):
        (check,) = export(*arguments, metrics={}, trained={}).checks
    assert "is not the trained one: probabilities differs by 0." in check.detail
    assert list((tmp_path / "digits").iterdir()) == []


def test_the_manifest_describes_the_version_and_every_file(digits_run):
    about = version_manifest.properties(digits_run.export)
    paths = {
        p.relative_to(digits_run.export).as_posix(): p
        for p in digits_run.export.rglob("*")
    }
    names = {name for name, path in paths.items() if path.is_file()}
    assert set(about["files"]) == names - {"assets.extra/manifest.json"}
    for name, entry in about["files"].items():
        raw = paths[name].read_bytes()
        assert entry == {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    assert about["config_digest"] == digits_run.config.digest()
    assert about["class_names"] == [str(digit) for digit in range(10)]
    assert about["temperature"] == digits_run.task.metadata["temperature"] != 1
    assert about["metrics"]["accuracy"] == digits_run.test["accuracy"]
    assert about["metrics"]["calibrated.loss"] == digits_run.test["calibrated"]["loss"]
    assert about["judged"] == "test"
    assert about["trained"] == {
        "steps": digits_run.result["steps"],
        "of": digits_run.result["steps"],
        "complete": True,
        "stopped": None,
        "examples": {name: len(split) for name, split in digits_run.splits.items()},
        "left_out": 0,
    }
    assert (
        about["difference"]["probabilities"] <= 1e-6
        and about["difference"]["label"] == 0
    )
    weights = digits_run.export / "variables/variables.data-00000-of-00001"
    assert weights.stat().st_size < 1.05 * 4 * digits_run.network.count_params(), (
        "stored once"
    )


def test_the_model_card_contains_all_measurements(digits_run):
    card = (digits_run.export / text_files.MODEL_CARD).read_text()
    sections = ["Data", "Metrics", "Classes", "Answers", "Limits", "Training"]
    assert re.findall(r"^## (.*)$", card, re.MULTILINE) == [*sections, "Usage"]
    assert "\nA network for the task “classes from image”: " in card
    assert f"{digits_run.network.count_params():,} parameters" in card
    steps = f"{digits_run.result['steps']:,}"
    assert f"Trained for {steps} of {steps} steps." in card
    counts = (f"{name} {len(split):,}" for name, split in digits_run.splits.items())
    assert f"Examples: {', '.join(counts)}." in card
    (row,) = (line for line in card.splitlines() if line.startswith("| accuracy |"))
    assert f"{digits_run.test['accuracy']:.4f}" in row
    config = json.loads(re.search(r"```json\n(.*?)```", card, flags=re.DOTALL)[1])
    assert config == json.loads(json.dumps(digits_run.config.as_json()))


def test_the_model_card_says_what_was_cut_short(digits_run):
    """A run that its time limit stopped, and a calibration of right answers alone."""
    manifest = version_manifest.properties(digits_run.export)
    manifest["temperature"] = 1.0
    for complete, stopped, end in (
        (False, "time", ", stopped by the time limit."),
        (False, None, ", before the run was complete."),
        (True, None, "."),
    ):
        trained = {"steps": 330, "of": 345, "complete": complete, "stopped": stopped}
        about = {**manifest, "trained": trained}
        metrics = {"test": digits_run.test}
        card = text_files.model_card(digits_run.config, about, metrics, digits_run.task)
        assert f"\nTrained for 330 of 345 steps{end}\n" in card
        assert "Probabilities are not calibrated" in card


def test_a_calibration_of_right_answers_alone_is_said(digits_run, capsys):
    result = {**digits_run.result, "calibration": {"temperature": 1.0}}
    run_result.report_test(digits_run.config, result, "test")
    said = capsys.readouterr().out
    assert "\ncalibrated not: no temperature lowers the validation loss\n" in said


def requests(path):
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        assert log.WhichOneof("log_type") == "predict_log"
        yield log.predict_log.request


def test_an_export_is_warmed_up_for_every_signature_and_size(digits_run):
    sent, files = [], set()
    for request in requests(digits_run.export / warmup.FILE):
        signature = request.model_spec.signature_name
        (tensor,) = request.inputs.values()
        sent.append((signature, tensor.tensor_shape.dim[0].size))
        if sent[-1] == ("image_bytes", 1):
            image = Image.open(io.BytesIO(tensor.string_val[0]))
            files.add((image.format, image.size))
    signatures = ("serving_default", "image_bytes")
    first = [(name, 1) for name in (*signatures, *signatures[1:] * 2)]
    assert sent == first + [(name, size) for size in (8, 64) for name in signatures]
    assert files == {("PNG", (8, 8)), ("JPEG", (8, 8)), ("PNG", (16, 16))}
