"""The export of a run: its predictions, its files, and what remains of an export that
fails.
"""

import hashlib
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest
import reference_exports
import tensorflow as tf
from exported_run import contents, predictions, trained_in
from PIL import Image
from processes import REPOSITORY
from tensorflow_serving.apis import prediction_log_pb2

from pipeline.export import __main__, proof, run_result, savedmodel, text_files, warmup
from pipeline.export.savedmodel import export
from pipeline.export.verification import begin, start, verify
from pipeline.serving import repository, version_manifest
from pipeline.utils.errors import UsageError
from pipeline.verify import main


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
    assert about["evaluated_split"] == "test"
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
    sections = ["Data", "Metrics", "Classes", "Predictions", "Limits", "Training"]
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
    """A run that its time limit stopped, and a calibration of right predictions alone."""
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
    assert "\ncalibrated no: no temperature lowers the validation loss\n" in said


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


# `pipeline export`: a run's model again, without training; which version is served.


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return trained_in(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def place(trained, workplace):
    """A copy of it, as the current folder."""
    shutil.copytree(trained, workplace, dirs_exist_ok=True)
    return workplace


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
    for name, values in predictions("saved_models/digits/1").items():
        np.testing.assert_array_equal(
            predictions("saved_models/digits/2")[name], values
        )
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


# The verification of an export in a separate process, and its command.


def test_the_process_imports_numpy_protobuf_and_crc32c_only(full_version):
    """It also runs with the libraries of another TensorFlow, without other packages."""
    script = f"""if True:
        import io, json, sys
        begin = set(sys.modules)
        from pathlib import Path
        from pipeline.export import proof
        code = proof.run(proof.checks(Path({str(full_version)!r})), io.StringIO())
        print(json.dumps([code, sorted(set(sys.modules) - begin)]))
    """
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    code, found = json.loads(ran.stdout.splitlines()[-1])
    assert code == 0
    others = [n for n in found if n.partition(".")[0] not in sys.stdlib_module_names]
    messages = re.compile(r"tensorflow(_serving|\.core|\.tsl|\.compiler)(\..*)?")
    others = [n for n in others if not messages.fullmatch(n)]
    assert {n.partition(".")[0] for n in others} == {
        "numpy",
        "google",
        "google_crc32c",
        "pipeline",
    }
    modules = {n for n in others if n.count(".") == 2 and n.startswith("pipeline.")}
    packages = {"export", "serving", "utils", "runtime"}
    assert {n.split(".")[1] for n in modules} == packages, (
        "no training, data, or config"
    )


@pytest.mark.parametrize(
    "changed", ["saved_model.pb", "variables/variables.index", None]
)
def test_the_slow_checks_run_while_other_files_are_still_written(
    pixel_version, tmp_path, changed
):
    """What they have loaded must be what the manifest describes."""
    version, later = tmp_path / "1", [proof.GOLDEN, version_manifest.MANIFEST]
    shutil.copytree(
        pixel_version,
        version,
        ignore=shutil.ignore_patterns(*(Path(f).name for f in later)),
    )
    process = start(version)
    begin(process)
    guard = threading.Timer(
        60, process.kill
    )  # otherwise, a broken `begin` would block forever
    guard.start()
    early = [json.loads(process.stdout.readline())["check"] for _ in range(6)]
    assert early[::2] == early[1::2] == ["operations", "loads", "warm-up"]
    guard.cancel()
    for file in later:
        shutil.copy(pixel_version / file, version / file)
    if changed:
        (version / changed).write_bytes(b"")
        reference_exports.write_manifest(version)
    outcome = verify(version, process=process)
    failed = {check.name: check.detail for check in outcome.checks if not check.passed}
    wanted = (
        {"digests": "the SavedModel was changed after it was loaded"} if changed else {}
    )
    assert failed == wanted


def test_the_command_prints_a_table_and_a_verdict(pixel_version, version, capsys):
    assert main([str(pixel_version)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^passed  refuses serving_default +INVALID", shown, re.MULTILINE)
    passed = (
        "passed all 10 checks: the SavedModel gives the same predictions as the trained"
        " model\n"
    )
    assert shown.endswith(passed)
    (version / "variables/variables.index").write_bytes(b"")
    assert main([str(version)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("FAILED  digests  variables/variables.index has changed")
    assert shown.endswith("must not be served; the other checks were skipped\n")
