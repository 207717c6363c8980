"""The files beside the versions: read as a server reads them, their examples run as they stand."""

import contextlib
import json
import re

import numpy as np
import pytest
import serving
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from pipeline.export import deployment_files, manifest_writer
from pipeline.serving import models_config, version_manifest

VECTOR = {
    "serving_default": {
        "inputs": {"features": {"dtype": "float32", "shape": [None, 2]}},
        "outputs": {"prediction": {"dtype": "float32", "shape": [None]}},
    },
    "regress": {
        "inputs": {"inputs": {"dtype": "string", "shape": [None]}},
        "outputs": {"outputs": {"dtype": "float32", "shape": [None]}},
    },
}


def message(name, needs="google/protobuf/wrappers.proto", **fields):
    """An empty message of tensorflow/serving whose class is in no wheel.

    Fields: name -> (number, type, repeated); `needs` is the file of types that are messages.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", syntax="proto3")
    file.dependency.append(needs)
    kind = file.message_type.add(name=name)
    for field, (number, type_, repeated) in fields.items():
        own = type_.startswith(".")
        kind.field.add(
            name=field,
            number=number,
            label=3 if repeated else 1,
            type=11 if own else descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{type_}"),
            type_name=type_ if own else None,
        )
    pool = descriptor_pool.Default()
    with contextlib.suppress(TypeError):  # a second parameter of the same test
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


@pytest.mark.parametrize("sizes", [(1, 8, 64), (32,), (8, 2, 8)])
def test_batching_is_as_the_server_demands(sizes):
    """tensorflow_serving/servables/tensorflow/session_bundle_config.proto."""
    number = ".google.protobuf.Int64Value"
    names = ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads")
    fields = {name: (at + 1, number, False) for at, name in enumerate(names)}
    empty = message("BatchingParameters", **fields, allowed_batch_sizes=(6, "INT64", True))
    found = text_format.Parse(deployment_files.batching_config(sizes), empty)
    allowed = list(found.allowed_batch_sizes)
    assert allowed == sorted(set(sizes)) and found.max_batch_size.value == allowed[-1]
    assert found.num_batch_threads.value > 0 and found.batch_timeout_micros.value > 0


def test_monitoring_is_on(digits_run):
    """tensorflow_serving/config/monitoring_config.proto."""
    message("PrometheusConfig", enable=(1, "BOOL", False), path=(2, "STRING", False))
    inner = (1, ".PrometheusConfig", False)
    empty = message("MonitoringConfig", "PrometheusConfig.proto", prometheus_config=inner)
    text = (digits_run.export.parent / "monitoring.config").read_text()
    found = text_format.Parse(text, empty).prometheus_config
    assert found.enable and found.path == "/monitoring/prometheus/metrics"


def test_compose_starts_what_the_docker_lines_start(digits_run):
    yaml = pytest.importorskip("yaml", reason="needs pyyaml")
    found = yaml.safe_load((digits_run.export.parent / "compose.yaml").read_text())["services"]
    assert {name: one["image"] for name, one in found.items()} == {
        "serving": deployment_files.IMAGE,
        "serving-gpu": f"{deployment_files.IMAGE}-gpu",
    }
    text = (digits_run.export.parent / "SERVING.md").read_text()
    for one in found.values():
        assert all(option in text for option in one["command"])
        (volume,) = one["volumes"]
        assert volume["target"] == "/models/digits" and volume["read_only"]


def test_what_somebody_has_made_his_own_stays(tmp_path):
    model = tmp_path / "first"
    model.mkdir()
    deployment_files.write(model, VECTOR, (1, 8))
    model = model.rename(tmp_path / "second")
    own, models = model / "batching.config", model / "models.config"
    own.write_text(own.read_text().partition("\n")[2])
    models.write_text(f"# mine\n{models.read_text()}")
    kept = own.read_text(), models.read_text()
    deployment_files.write(model, VECTOR, (1, 2))
    assert (own.read_text(), models.read_text()) == kept
    assert "# second, served" in (model / "SERVING.md").read_text()
    assert not [path for path in model.iterdir() if path.name.startswith(".")]


def test_a_model_that_was_renamed_is_served_under_its_new_name(tmp_path):
    model = tmp_path / "it's {first}"
    model.mkdir()
    deployment_files.write(model, VECTOR, (1, 8))
    models_config.pin(model, 4)
    model = model.rename(tmp_path / "second")
    deployment_files.write(model, VECTOR, (1, 8))
    assert models_config.pinned(model) == (4,)
    expected = models_config.new("second").partition("model_version_policy")[0]
    assert (model / "models.config").read_text().startswith(expected)
    (tmp_path / "link").symlink_to("second")
    deployment_files.write(tmp_path / "link", VECTOR, (1, 8))
    assert (model / "models.config").read_text().startswith(expected), "a link renames nothing"
    before = (model / "models.config").stat().st_mtime_ns
    deployment_files.write(model, VECTOR, (1, 8))
    assert (model / "models.config").stat().st_mtime_ns == before


@pytest.fixture(scope="module")
def ports(digits_run):
    """Port in the examples -> that of a server of the exported digits."""
    serving.needs_stubs()
    with serving.both(serving.Backend(digits=digits_run.export)) as ports:
        yield ports


@pytest.fixture
def picture(digits_run, workplace):
    """The first test image as picture.png in the current folder, and what the model says of it."""
    image = digits_run.splits["test"].take(np.arange(1))["image"]
    tf.io.write_file("picture.png", tf.io.encode_png(image[0]))
    return digits_run.predict(images=image)


@pytest.mark.parametrize("way", serving.WAYS)
@pytest.mark.parametrize("signature", ["serving_default", "image_bytes", "classify"])
def test_the_examples_work_as_they_stand(ports, digits_run, picture, signature, way, capsys):
    said = picture
    if signature == "serving_default":
        said = digits_run.predict(images=np.zeros((1, 8, 8, 1), np.uint8))
    document = (digits_run.export.parent / "SERVING.md").read_text()
    shown = serving.shown(document, signature, way, ports, capsys)
    scores = [float(number) for number in re.findall(r"\b\d\.\d+(?:e-\d+)?", shown)]
    assert max(scores) == pytest.approx(said["probabilities"].max(), rel=1e-3)
    if signature == "classify":
        assert said["label"][0].decode() in shown


def test_the_table_names_every_signature_with_its_shapes(digits_run):
    text = (digits_run.export.parent / "SERVING.md").read_text()
    for name, fields in version_manifest.about(digits_run.export)["signatures"].items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` "))
        assert all(f"`{key}`" in row for side in fields.values() for key in side)
    assert (
        "| `serving_default` | `images` uint8 [N, 8, 8, 1] | `probabilities` float32 [N, 10];"
        in text
    )


def test_numbers_are_sent_as_they_are_in_a_shell():
    text = deployment_files.serving("line", VECTOR, 8)
    (body,) = re.findall(r"curl -d '(.*)' http://localhost:8501/v1/models/line:predict", text)
    assert json.loads(body) == {"signature_name": "serving_default", "instances": [[0.0, 0.0]]}
    assert "more than 8 rows" in text and "np.zeros((1, 2), np.float32)" in text


@pytest.mark.parametrize("sizes", [[], "abc", [0], [1.5], [True], None, 3])
def test_a_manifest_without_batch_sizes_changes_nothing(tmp_path, sizes):
    version = tmp_path / "m/1"
    (version / "assets.extra").mkdir(parents=True)
    manifest_writer.write(version, {"signatures": {}, "options": {"batch_sizes": sizes}})
    deployment_files.follow(version.parent, version)
    assert [path.name for path in version.parent.iterdir()] == ["1"]
