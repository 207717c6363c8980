"""The files beside the versions: read as a server reads them, their examples run as they stand."""

import base64
import contextlib
import http.server
import json
import re
import shutil
import subprocess
import threading
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from pipeline import endpoints, hand_off, provenance
from pipeline.session import Session, as_strings

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
    found = text_format.Parse(hand_off.batching_config(sizes), empty)
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
        "serving": hand_off.IMAGE,
        "serving-gpu": f"{hand_off.IMAGE}-gpu",
    }
    text = (digits_run.export.parent / "SERVING.md").read_text()
    for one in found.values():
        assert all(option in text for option in one["command"])
        (volume,) = one["volumes"]
        assert volume["target"] == "/models/digits" and volume["read_only"]


def test_what_somebody_has_made_his_own_stays(tmp_path):
    hand_off.write(tmp_path, "first", VECTOR, (1, 8))
    own = tmp_path / "batching.config"
    own.write_text(own.read_text().partition("\n")[2])
    models = tmp_path / "models.config"
    models.write_text("model_config_list { }\n")
    kept = own.read_text()
    hand_off.write(tmp_path, "second", VECTOR, (1, 2))
    assert own.read_text() == kept and models.read_text() == "model_config_list { }\n"
    assert "# second, served" in (tmp_path / "SERVING.md").read_text()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


class Served(http.server.BaseHTTPRequestHandler):
    """The REST interface of a server, as its documents say it, around `session`."""

    def do_POST(self):
        name, _, method = self.path.removeprefix("/v1/models/").partition(":")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        signature = body["signature_name"]
        assert name == "digits"
        if method == "classify":
            examples = [{k: value_of(v) for k, v in one.items()} for one in body["examples"]]
            inputs = {"inputs": as_strings([endpoints.example(one) for one in examples])}
        elif "instances" in body:
            ((key, _),) = self.session.signatures[signature].inputs.items()
            inputs = {key: as_strings([value_of(one[key]) for one in body["instances"]])}
        else:
            inputs = {key: np.array(value, np.uint8) for key, value in body["inputs"].items()}
        answers = self.session.run(signature, inputs)
        columns = {name: text(values.tolist()) for name, values in answers.items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        results = [
            list(zip(row["classes"], row["scores"], strict=True))
            for row in rows
            if method == "classify"
        ]
        answer = {"results": results} if method == "classify" else {"predictions": rows}
        sent = json.dumps({"outputs": columns} if "inputs" in body else answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *arguments):
        pass


def value_of(given):
    return base64.b64decode(given["b64"])


def text(values):
    if isinstance(values, list):
        return [text(value) for value in values]
    return values.decode() if isinstance(values, bytes) else values


@pytest.fixture(scope="module")
def rest(digits_run):
    """Port of a server of the exported digits."""
    handler = type("Handler", (Served,), {"session": Session(digits_run.export)})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def document(digits_run):
    """Heading -> language -> the examples below it."""
    parts = (digits_run.export.parent / "SERVING.md").read_text().split("\n## ")
    found = {}
    for part in parts:
        blocks = re.findall(r"```(\w+)\n(.*?)```", part, flags=re.DOTALL)
        found[part.partition("\n")[0]] = blocks
    return found


@pytest.fixture
def picture(digits_run, workplace):
    """The first test image as picture.png in the current folder, and what the model says of it."""
    image = digits_run.splits["test"].take(np.arange(1))["image"]
    tf.io.write_file("picture.png", tf.io.encode_png(image[0]))
    return digits_run.predict(images=image)


def run_python(code, capsys):
    exec(compile(code, "SERVING.md", "exec"), {})
    return capsys.readouterr().out


@pytest.mark.parametrize("signature", ["image_bytes", "classify"])
def test_the_examples_with_files_work_as_they_stand(document, rest, picture, signature, capsys):
    blocks = document[f"Calling `{signature}`"]
    assert [language for language, _ in blocks] == ["sh", "python"]
    label, score = picture["label"][0].decode(), float(picture["probabilities"].max())
    for language, code in blocks:
        code = code.replace("localhost:8501", f"127.0.0.1:{rest}")
        if language == "python":
            shown = run_python(code, capsys)
        elif shutil.which("curl") is None:
            continue
        else:
            shown = subprocess.run(
                ["sh", "-ec", code], capture_output=True, text=True, check=True
            ).stdout
        shown_scores = [float(number) for number in re.findall(r"\b0\.\d+", shown)]
        assert repr(label)[1:-1] in shown and max(shown_scores) == pytest.approx(score, rel=1e-5)


def test_the_example_with_pixels_works_as_it_stands(document, rest, digits_run, capsys):
    (_, code), *_ = document["Calling `serving_default`"]
    shown = run_python(code.replace("localhost:8501", f"127.0.0.1:{rest}"), capsys)
    black = digits_run.predict(images=np.zeros((1, 8, 8, 1), np.uint8))["probabilities"]
    np.testing.assert_allclose(json.loads(shown), black, rtol=1e-4)


def test_the_example_over_grpc_works_as_it_stands(document, digits_run, capsys):
    grpc = pytest.importorskip("grpc", reason="needs the extra serving")
    stubs = pytest.importorskip(
        "tensorflow_serving.apis.prediction_service_pb2_grpc", reason="needs the extra serving"
    )
    from tensorflow_serving.apis import predict_pb2

    session = Session(digits_run.export)

    class Service(stubs.PredictionServiceServicer):
        def Predict(self, request, context):
            assert request.model_spec.name == "digits"
            inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
            answer = predict_pb2.PredictResponse()
            for name, values in session.run(request.model_spec.signature_name, inputs).items():
                answer.outputs[name].CopyFrom(tf.make_tensor_proto(values))
            return answer

    server = grpc.server(futures.ThreadPoolExecutor(1))
    stubs.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _, (_, code) = document["Calling `serving_default`"]
    shown = run_python(code.replace("localhost:8500", f"127.0.0.1:{port}"), capsys)
    server.stop(None).wait()
    black = digits_run.predict(images=np.zeros((1, 8, 8, 1), np.uint8))["probabilities"]
    numbers = [float(word) for word in re.sub(r"[\[\]]", " ", shown).split()]
    np.testing.assert_allclose([numbers], black, rtol=1e-3)


def test_the_table_names_every_signature_with_its_shapes(digits_run):
    text = (digits_run.export.parent / "SERVING.md").read_text()
    for name, fields in provenance.read(digits_run.export)["signatures"].items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` "))
        assert all(f"`{key}`" in row for side in fields.values() for key in side)
    assert (
        "| `serving_default` | `images` uint8 [N, 8, 8, 1] | `probabilities` float32 [N, 10];"
        in text
    )


def test_numbers_are_sent_as_they_are_in_a_shell():
    text = hand_off.serving("line", VECTOR, 8)
    (body,) = re.findall(r"curl -d '(.*)' http://localhost:8501/v1/models/line:predict", text)
    assert json.loads(body) == {"signature_name": "serving_default", "instances": [[0.0, 0.0]]}
    assert "more than 8 rows" in text and "np.zeros((1, 2), np.float32)" in text
