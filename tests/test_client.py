"""The client against stand-ins for the server over REST and gRPC, and a model from its folder."""

import base64
import contextlib
import http.server
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import serving
import tensorflow as tf
from conftest import REPOSITORY
from serving import png

from pipeline import local, proof, rest, served
from pipeline.client import Client
from pipeline.errors import UsageError
from pipeline.served import Field, ServingError, Version

FIXTURE = Path(__file__).parent / "fixtures/digits/1"
IMAGES = np.random.default_rng(1).integers(0, 256, (3, serving.SIDE, serving.SIDE, 3), np.uint8)
FLOAT, STRING = Field(np.dtype(np.float32), (None,)), Field(np.dtype(object), (None,))


def needs_stubs():
    reason = "gRPC needs the extra serving (tensorflow-serving-api)"
    pytest.importorskip("tensorflow_serving.apis.predict_pb2", reason=reason)


@pytest.fixture(autouse=True)
def _direct(monkeypatch):
    """No proxy of the user's between two ports of this machine; each model is loaded once."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(local, "Session", serving.once)


@pytest.fixture(scope="module")
def backend(models):
    return serving.Backend(pictures=models / "pictures/1", rows=models / "rows/2")


@pytest.fixture(params=["rest", "rpc", "local"], scope="module")
def address(request, models, backend):
    """Of the models, without their names."""
    with contextlib.ExitStack() as stack:
        if request.param == "rpc":
            needs_stubs()
            yield stack.enter_context(serving.rpc(backend))
        elif request.param == "rest":
            yield stack.enter_context(serving.rest(backend))
        else:
            yield str(models)


@pytest.fixture(scope="module")
def here(models):
    """The classifier, loaded here."""
    return Client(models / "pictures")


@pytest.fixture
def pictures(address):
    with Client(f"{address}/pictures") as client:
        yield client


@pytest.fixture
def rows(address):
    with Client(f"{address}/rows") as client:
        yield client


def wanted(signature, models, **inputs):
    """Answers by Python TensorFlow; strings as str."""
    loaded = tf.saved_model.load(str(models / "pictures/1"))
    outputs = loaded.signatures[signature](**{k: tf.constant(v) for k, v in inputs.items()})
    return {k: served.answer({k: v.numpy()})[k] for k, v in outputs.items()}


def assert_same(got, wanted):
    assert set(got) == set(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        if array.dtype == object:
            assert got[name].tolist() == array.tolist()
        else:
            np.testing.assert_allclose(got[name], array, rtol=2e-6, atol=2e-6)


def test_pixels_are_answered_as_by_tensorflow(pictures, models):
    got = pictures.predict(images=IMAGES)
    assert_same(got, wanted("serving_default", models, images=IMAGES))
    assert set(got["label"]) <= set(serving.CLASSES)
    assert_same(pictures.predict(images=IMAGES.astype(int).tolist()), got)


def test_encoded_images_are_answered_as_their_pixels(pictures):
    got = pictures.predict("image_bytes", image_bytes=[png(image) for image in IMAGES])
    assert_same(got, pictures.predict(images=IMAGES))


def test_strings_come_back_in_every_byte(pictures):
    raw = [b"", b"\x00\xff\x00", bytes(range(256))]
    text = ["", "fünf\n", 'a "quoted" one']
    got = pictures.predict("text", text=text, raw=raw)
    assert got["text"].tolist() == text
    assert got["raw_bytes"].tolist() == raw


def test_numbers_of_every_type_come_back(pictures):
    values = {}
    for name, field in pictures.metadata()["kinds"].inputs.items():
        kind = field.dtype
        if kind.kind in "iu":
            ends = [np.iinfo(kind).min, np.iinfo(kind).max]
        else:
            ends = [True, False] if kind.kind == "b" else [1 / 3, 1e300]
        values[name] = np.array([ends, ends[::-1]], kind)
    assert len(values) == 9
    got = pictures.predict("kinds", **values)
    for name, array in values.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


def test_the_documented_half_plus_three(pictures):
    """And its only output, whose name the REST interface leaves out."""
    got = pictures.predict("half_plus_three", x=[1.0, 2.0, 5.0])
    np.testing.assert_array_equal(got["y"], np.float32([3.5, 4.0, 5.5]))
    assert got["y"].dtype == np.float32
    strange = pictures.predict("half_plus_three", x=[np.nan, np.inf])["y"]
    assert np.isnan(strange[0]) and strange[1] == np.inf


def test_examples_are_classified(pictures):
    got = pictures.classify([{"image/encoded": png(image)} for image in IMAGES])
    answer = pictures.predict(images=IMAGES)
    assert [[label for label, _ in pairs] for pairs in got] == answer["top_labels"].tolist()
    scores = np.array([[score for _, score in pairs] for pairs in got])
    np.testing.assert_allclose(scores, answer["top_scores"], rtol=2e-6)


def test_examples_are_regressed(rows):
    got = rows.regress([{"features": [1.0, 2.0, 0.5]}, {"features": np.float32([0, -1, 2.25])}])
    assert got.dtype == np.float32 and got.tolist() == [3.5, 1.25]


def test_the_signatures_are_those_of_the_model(pictures):
    known = pictures.metadata()
    assert {"serving_default", "image_bytes", "classify"} < set(known)
    assert not any(name.startswith("__") for name in known)
    size = (None, serving.SIDE, serving.SIDE, 3)
    assert known["serving_default"].inputs == {"images": Field(np.dtype(np.uint8), size)}
    assert known["image_bytes"].inputs == {"image_bytes": STRING}
    assert known["serving_default"].outputs["top_labels"] == Field(np.dtype(object), (None, 5))
    assert str(known["serving_default"].inputs["images"]) == "uint8 [?, 4, 4, 3]"


def test_the_status_names_the_version(pictures, rows):
    assert pictures.status() == [Version(1, "AVAILABLE")]
    assert rows.status() == [Version(2, "AVAILABLE")]


def test_a_refusal_is_one_line_with_its_status(pictures):
    with pytest.raises(ServingError, match="pictures.*: INVALID_ARGUMENT: .*[Ss]hape") as caught:
        pictures.predict(images=IMAGES[:, :, :2])
    assert caught.value.status == "INVALID_ARGUMENT" and "\n" not in str(caught.value)
    broken = [png(IMAGES[0]), b"no image"]
    with pytest.raises(ServingError) as caught:
        pictures.predict("image_bytes", image_bytes=broken)
    assert caught.value.message == "the file is no JPEG, PNG, GIF, BMP or WebP image"
    assert pictures.predict(images=IMAGES)["class"].shape == (3,), "the model stays up"
    with pytest.raises(ServingError, match="FAILED_PRECONDITION|INVALID_ARGUMENT"):
        pictures.classify([{"image/encoded": b"x"}], signature="other")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"image": IMAGES}, "there is no input 'image'; did you mean 'images'"),
        ({}, r"the input 'images' is missing; it is uint8 \[\?, 4, 4, 3\]"),
        ({"images": IMAGES / 255}, "images must be uint8 .* received float64"),
        ({"images": IMAGES.astype(np.int16) + 1}, "images must be uint8 .* out of its range"),
        ({"images": [[1], [2, 3]]}, "its lists differ in length"),
        ({"images": [["a"]]}, "received str"),
    ],
)
def test_what_the_types_cannot_hold_is_not_sent(here, inputs, message):
    with pytest.raises(UsageError, match=message) as caught:
        here.predict(**inputs)
    assert not isinstance(caught.value, ServingError)


def test_other_wrong_calls_are_told_before_they_are_sent(here):
    with pytest.raises(UsageError, match="no signature 'image_byte'; did you mean 'image_bytes'"):
        here.predict("image_byte", image_bytes=[b""])
    with pytest.raises(UsageError, match=r"image_bytes must be string \[\?\], received int"):
        here.predict("image_bytes", image_bytes=[1])
    with pytest.raises(UsageError, match="lists differ in length"):
        here.predict("image_bytes", image_bytes=[[b"a"], [b"b", b"c"]])
    with pytest.raises(UsageError, match="feature 'a' must be bytes, text or numbers"):
        here.classify([{"a": [1, "b"]}])
    with pytest.raises(UsageError, match="no examples"):
        here.regress([])


def test_features_are_of_one_type():
    example = {"a": "ü", "b": [1, 2.5], "c": np.arange(2), "d": [b"\x00", "x"], "e": True, "f": []}
    assert served.features(example) == {
        "a": ["ü".encode()],
        "b": [1.0, 2.5],
        "c": [0, 1],
        "d": [b"\x00", b"x"],
        "e": [1],
        "f": [],
    }


def test_what_is_not_there_is_said(address, tmp_path):
    if "://" not in address:
        with pytest.raises(UsageError, match="nowhere' is no folder and no address"):
            Client(f"{address}/nowhere")
        (tmp_path / "1").mkdir()
        (tmp_path / "1/saved_model.pb").write_bytes(b"\xff")
        with pytest.raises(UsageError, match=r"pipeline\.verify .*1 says what is wrong"):
            Client(tmp_path)
        return
    with Client(f"{address}/pictures/labels/stable") as client:
        assert client.status() == [Version(1, "AVAILABLE")]
    with (
        Client(f"{address}/pictures/labels/canary") as client,
        pytest.raises(ServingError, match="INVALID_ARGUMENT: Unrec.* label: canary"),
    ):
        client.metadata()
    parts = ("nowhere", "pictures/versions/7", "rows/versions/1")
    for part in parts:
        with (
            Client(f"{address}/{part}") as client,
            pytest.raises(ServingError, match="NOT_FOUND: Servable not found for request"),
        ):
            client.predict(images=IMAGES)
    with Client(f"{address}/rows/versions/2/") as client:
        assert client.predict(features=[[1, 2, 3]])["prediction"].tolist() == [6.0]


def test_the_short_form_of_a_version(backend):
    needs_stubs()
    with serving.rpc(backend) as address, Client(f"{address}/rows/2") as client:
        assert client.status() == [Version(2, "AVAILABLE")]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "http://localhost:8501",
        "http://localhost:8501/v1/models/digits:predict",
        "http://localhost:8501/v1/models/digits/versions/x",
        "grpc://localhost/digits",
        "grpc://localhost:8500/digits/x",
        "http://localhost:x/v1/models/digits",
        "http://localhost:99999/v1/models/digits",
        "http://[::1/v1/models/digits",
        "ftp://localhost/digits",
        "localhost:8501/v1/models/digits",
    ],
)
def test_an_address_that_is_none_shows_a_good_one(address):
    with pytest.raises(UsageError, match="digits/1"):
        Client(address)


@pytest.mark.parametrize("timeout", [0, -1.0, float("inf"), float("nan")])
def test_a_timeout_is_a_positive_number(timeout):
    with pytest.raises(UsageError, match="timeout must be a positive number"):
        Client("http://localhost:8501/v1/models/digits", timeout)


@pytest.fixture
def deaf():
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed():
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("form", ["http://127.0.0.1:{}/v1/models/m", "grpc://127.0.0.1:{}/m"])
def test_a_server_that_is_not_there_is_told_from_one_that_is_slow(deaf, closed, form):
    if form.startswith("grpc"):
        needs_stubs()
    with (
        Client(form.format(closed)) as client,
        pytest.raises(ServingError, match=r"UNAVAILABLE: .*[Cc]onnection refused"),
    ):
        client.status()
    with Client(form.format(deaf), 0.2) as client, pytest.raises(ServingError) as caught:
        client.status()
    assert caught.value.status == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize(
    ("code", "body", "message"),
    [
        (200, b"<html>", "UNKNOWN: the reply is not one of TensorFlow Serving"),
        (200, b"[1]", "UNKNOWN: the reply is not one of TensorFlow Serving"),
        (200, b'{"model_version_status": [{}]}', "UNKNOWN: the reply is not one of Tensor"),
        (502, b"<html>\nproxy", "UNAVAILABLE: HTTP 502 Bad Gateway"),
        (404, b"", "NOT_FOUND: HTTP 404 Not Found"),
        (400, b'{"error": "one\\n\\t [[two]]"}', "INVALID_ARGUMENT: one$"),
        (503, rb'{ "error": "it\'s" }', "UNAVAILABLE: HTTP 503"),
    ],
)
def test_what_answers_need_not_be_a_server_of_models(code, body, message):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        client = Client(f"http://127.0.0.1:{server.server_port}/v1/models/m")
        with pytest.raises(ServingError, match=message) as caught:
            client.status()
        thread.join()
    assert "\n" not in str(caught.value)


def test_columns_are_written_as_documented():
    """The example of api_rest.md; strings, which may be any bytes, in base 64."""
    tag = served.strings(["foo", "bar"])
    signal, sensor = np.int32([[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]]), np.zeros((2, 2, 2), np.int64)
    written = json.loads(json.dumps(rest.columns({"tag": tag, "signal": signal, "sensor": sensor})))
    assert written == {
        "tag": [{"b64": "Zm9v"}, {"b64": "YmFy"}],
        "signal": [[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]],
        "sensor": [[[0, 0], [0, 0]], [[0, 0], [0, 0]]],
    }
    image = rest.columns({"image": served.strings([[b"image bytes"], [b"awesome image bytes"]])})
    first, second = {"b64": "aW1hZ2UgYnl0ZXM="}, {"b64": "YXdlc29tZSBpbWFnZSBieXRlcw=="}
    assert image == {"image": [[first], [second]]}
    assert json.dumps(rest.columns({"x": np.float32([1, 0.5, np.inf])})) == (
        '{"x": [1.0, 0.5, Infinity]}'
    )


def test_replies_are_read_as_documented():
    y = rest.arrays({"predictions": [3.5, 4.0, 5.5]}, {"y": FLOAT})["y"]
    assert y.dtype == np.float32 and y.tolist() == [3.5, 4.0, 5.5]
    both = {"y": FLOAT, "raw_bytes": STRING}
    raw = {"b64": base64.b64encode(b"\x00").decode()}
    by_row = rest.arrays({"predictions": [{"y": 1.0, "raw_bytes": raw}] * 2}, both)
    by_column = rest.arrays({"outputs": {"y": [1.0] * 2, "raw_bytes": [raw] * 2}}, both)
    for read in (by_row, by_column):
        assert read["y"].tolist() == [1.0, 1.0] and read["raw_bytes"].tolist() == [b"\x00"] * 2
    alone = rest.arrays({"outputs": raw}, {"raw_bytes": STRING})["raw_bytes"]
    assert alone.shape == () and alone.item() == b"\x00"
    newer = rest.arrays({"outputs": {"y": [1.0, 2.0], "n": [1, 2], "s": ["a", "b"]}}, {"y": FLOAT})
    assert newer["n"].tolist() == [1, 2] and newer["s"].tolist() == [b"a", b"b"]


def test_rows_and_columns_get_the_same_answer(backend):
    """What `curl` would send, in the format that the client does not use."""
    encoded = [{"b64": base64.b64encode(png(image)).decode()} for image in IMAGES]
    bodies = {
        "pictures:predict": {"instances": encoded, "signature_name": "image_bytes"},
        "rows:predict": {"instances": [[1.0, 2, 3]]},
    }
    with serving.rest(backend) as address:
        replies = {}
        for path, body in bodies.items():
            with urllib.request.urlopen(f"{address}/{path}", json.dumps(body).encode()) as reply:
                replies[path] = json.load(reply)
        client = Client(f"{address}/pictures")
        got = client.predict("image_bytes", image_bytes=[png(image) for image in IMAGES])
        read = rest.arrays(replies["pictures:predict"], client.metadata()["image_bytes"].outputs)
    assert_same(served.answer(read), got)
    assert replies["rows:predict"] == {"predictions": [6.0]}


def test_names_in_any_script_are_escaped_once(models):
    backend = serving.Backend(**{"b%C3%BCro": models / "rows/2"})
    with serving.rest(backend) as address:
        for name in ("büro", "b%C3%BCro"):
            assert Client(f"{address}/{name}").status() == [Version(2, "AVAILABLE")]


@pytest.mark.parametrize(
    "array",
    [
        np.float16([[0.5, -2, 65504]]),
        np.uint16([1, 65535]),
        np.int8([[-128], [127]]),
        np.array([True, False]),
        np.float32([]).reshape(0, 3),
        np.array([b"a", b"\x00"], object),
        np.float64(0.1),
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_tensors_of_grpc_are_read_as_tensorflow_does(array):
    from pipeline import rpc

    for tensor in (tf.make_tensor_proto(array), serving._as_field(array)):
        np.testing.assert_array_equal(rpc.from_message(tensor), tf.make_ndarray(tensor))
        assert rpc.from_message(tensor).dtype == array.dtype


def test_a_tensor_of_equal_values_may_hold_one():
    from pipeline import rpc

    tensor = tf.make_tensor_proto(0.25, shape=(2, 2))
    assert list(tensor.float_val) == [0.25]
    np.testing.assert_array_equal(rpc.from_message(tensor), np.full((2, 2), 0.25, np.float32))


def test_without_the_stubs_grpc_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis", None)
    with pytest.raises(UsageError, match="needs the package tensorflow-serving-api .*http:// nee"):
        Client("grpc://127.0.0.1:8500/digits")


def test_tensorflow_can_be_imported_after_a_client(tmp_path):
    """Neither a session nor the stubs load it, and neither stands in its way."""
    script = f"""if True:
        import contextlib, sys
        from pipeline.client import Client
        from pipeline.errors import UsageError
        client = Client({str(FIXTURE)!r})
        assert client.predict(images=[[[[0]] * 8] * 8])["class"].shape == (1,)
        with contextlib.suppress(UsageError):  # without the extra
            Client("grpc://127.0.0.1:1/m").close()
        assert "tensorflow" not in sys.modules
        import tensorflow as tf
        assert int(tf.constant(1) + 1) == 2
        tf.train.Example.FromString(tf.train.Example().SerializeToString())
        assert tf.saved_model.load({str(FIXTURE)!r}).signatures
        assert client.predict(images=[[[[0]] * 8] * 8])["class"].shape == (1,)
    """
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


def docker_reason():
    """Why no container can be started here; empty where one can."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    ran = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=60)
    return "" if ran.returncode == 0 else f"docker info: {ran.stderr.strip()[-200:]}"


@pytest.fixture(scope="module")
def container():
    """(REST port, gRPC port) of the released server with the export of the first release."""
    if reason := docker_reason():
        pytest.skip(f"the released server needs docker: {reason}")
    image = "tensorflow/serving:2.20.0"
    pulled = subprocess.run(["docker", "pull", "-q", image], capture_output=True, text=True)
    if pulled.returncode:
        pytest.skip(f"{image} cannot be pulled: {pulled.stderr.strip()[-200:]}")
    ports = ["-p", "127.0.0.1::8501", "-p", "127.0.0.1::8500"]
    mount = ["-v", f"{FIXTURE.parent}:/models/digits:ro", "-e", "MODEL_NAME=digits"]
    started = subprocess.run(
        ["docker", "run", "-d", "--rm", *ports, *mount, image], capture_output=True, text=True
    )
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    try:
        # Its log says when it listens; no waiting by the clock.
        with subprocess.Popen(
            ["docker", "logs", "-f", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as log:
            assert any("Exporting HTTP/REST API" in line for line in log.stdout), "it ended"
            log.kill()
        found = [
            subprocess.run(["docker", "port", name, port], capture_output=True, text=True).stdout
            for port in ("8501", "8500")
        ]
        yield [int(re.search(r":(\d+)", text)[1]) for text in found]
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True)


@pytest.mark.parametrize("kind", ["rest", "rpc"])
def test_the_released_server_answers_as_the_export_does(container, kind):
    http_port, grpc_port = container
    address = f"http://127.0.0.1:{http_port}/v1/models/digits"
    if kind == "rpc":
        needs_stubs()
        address = f"grpc://127.0.0.1:{grpc_port}/digits"
    golden = proof.read_golden(FIXTURE / proof.GOLDEN)
    with Client(address) as client:
        assert client.status() == [Version(1, "AVAILABLE")]
        for name, sides in golden.items():
            got = client.predict(name, **sides["inputs"])
            want = served.answer(sides["outputs"])
            assert got["label"].tolist() == want["label"].tolist()
            np.testing.assert_allclose(got["probabilities"], want["probabilities"], atol=1e-5)
        with pytest.raises(ServingError, match="INVALID_ARGUMENT"):
            client.predict(images=golden["serving_default"]["inputs"]["images"][:, :4])
