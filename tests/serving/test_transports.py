"""What goes over the network: servers that are none, the documented JSON, tensors of gRPC."""

import base64
import contextlib
import http.server
import json
import socket
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pytest
import serving
from conftest import REPOSITORY
from served_models import SIDE, png

from pipeline.serving import rest, signatures
from pipeline.serving.client import Client
from pipeline.serving.signatures import Field, ServingError, Version

IMAGES = np.random.default_rng(1).integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
FLOAT, STRING = Field(np.dtype(np.float32), (None,)), Field(np.dtype(object), (None,))
pytestmark = pytest.mark.usefixtures("direct")


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


@contextlib.contextmanager
def replying(code, body, elsewhere=None):
    """Address of a model behind something that answers one request so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(code)
            if elsewhere:
                self.send_header("Location", elsewhere.format(self.path))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/models/m"
        thread.join()


@pytest.mark.parametrize("form", ["http://127.0.0.1:{}/v1/models/m", "grpc://127.0.0.1:{}/m"])
def test_a_server_that_is_not_there_is_told_from_one_that_is_slow(deaf, closed, form):
    if form.startswith("grpc"):
        serving.needs_stubs()
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
    with (
        replying(code, body) as address,
        pytest.raises(ServingError, match=message) as caught,
    ):
        Client(address).status()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("asks", ["status", "predict"])
def test_a_redirect_is_named_and_not_followed(code, asks):
    """urllib makes a GET of a POST that is redirected, which was told of as bad pictures."""
    elsewhere = "https://models.test{}/"
    with replying(code, b"", elsewhere) as address, pytest.raises(ServingError) as caught:
        getattr(Client(address), asks)()
    said = "it redirects to https://models.test/v1/models/m: give that address"
    assert caught.value.message == said and caught.value.status != "INVALID_ARGUMENT"


def test_a_redirect_to_something_else_is_told_as_it_is():
    with replying(302, b"", "/login") as address, pytest.raises(ServingError) as caught:
        Client(address).metadata()
    to = f"{address.partition('/v1')[0]}/login"
    assert caught.value.message == f"it redirects to {to}, which is no address of a model"


def test_a_proxy_that_fails_is_named(closed, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{closed}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(ServingError, match="the variable no_proxy") as caught:
        Client("http://models.test:8501/v1/models/m").status()
    assert f"asked through the proxy 127.0.0.1:{closed};" in str(caught.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(ServingError, match="refused$"):
        Client(f"http://127.0.0.1:{closed}/v1/models/m").status()


def test_columns_are_written_as_documented():
    """The example of api_rest.md; strings, which may be any bytes, in base 64."""
    tag = signatures.strings(["foo", "bar"])
    signal, sensor = np.int32([[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]]), np.zeros((2, 2, 2), np.int64)
    written = json.loads(json.dumps(rest.columns({"tag": tag, "signal": signal, "sensor": sensor})))
    assert written == {
        "tag": [{"b64": "Zm9v"}, {"b64": "YmFy"}],
        "signal": [[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]],
        "sensor": [[[0, 0], [0, 0]], [[0, 0], [0, 0]]],
    }
    image = rest.columns(
        {"image": signatures.strings([[b"image bytes"], [b"awesome image bytes"]])}
    )
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
    assert set(rest.arrays({"outputs": {"y": [1.0], "other": [1]}}, {"y": FLOAT})) == {"y"}


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([1.9], np.int32), (["2"], np.int32), ([2**40], np.int32), ([None], np.int32),
     ([1e300], np.float32), (["1"], np.float32), ([True], np.float32), ([1], np.bool_)],
)  # fmt: skip
def test_a_number_of_another_kind_is_no_reply(values, dtype):
    with pytest.raises(
        signatures.Unreadable, match=rf"y must be {np.dtype(dtype)} \[\?\], received"
    ):
        rest.arrays({"outputs": values}, {"y": Field(np.dtype(dtype), (None,))})


def test_null_stands_for_nan():
    assert np.isnan(rest.arrays({"outputs": [None, 1.5]}, {"y": FLOAT})["y"]).tolist() == [1, 0]


@pytest.mark.parametrize("kind", ["tensorflow.serving.SignatureDefMap", "tensorflow.TensorProto"])
def test_metadata_over_grpc_that_are_damaged_are_no_reply(kind, monkeypatch):
    serving.needs_stubs()
    from tensorflow_serving.apis import get_model_metadata_pb2

    reply = get_model_metadata_pb2.GetModelMetadataResponse()
    reply.metadata["signature_def"].type_url = f"type.googleapis.com/{kind}"
    reply.metadata["signature_def"].value = b"\xff\xff\xff"
    client = Client("grpc://localhost:1/m")
    monkeypatch.setattr(client._transport, "_ask", lambda *_: reply)
    with pytest.raises(ServingError, match="UNKNOWN: the reply is not one of TensorFlow Serving"):
        client.metadata()


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
    serving.assert_same(signatures.answer(read), got)
    assert replies["rows:predict"] == {"predictions": [6.0]}


def test_names_in_any_script_are_escaped_once(models):
    backend = serving.Backend(**{"b%C3%BCro": models / "rows/2"})
    with serving.rest(backend) as address:
        for name in ("büro", "b%C3%BCro"):
            assert Client(f"{address}/{name}").status() == [Version(2, "AVAILABLE")]


def test_tensorflow_can_be_imported_after_a_client(swift):
    """Neither a session nor the stubs load it, and neither stands in its way."""
    script = f"""if True:
        import sys
        from pipeline.serving.client import Client
        client = Client({str(swift)!r})
        assert client.predict(images=[[[[0] * 3] * 8] * 8])["class"].shape == (1,)
        Client("grpc://127.0.0.1:1/m").close()
        assert "tensorflow" not in sys.modules
        import tensorflow as tf
        assert int(tf.constant(1) + 1) == 2
        tf.train.Example.FromString(tf.train.Example().SerializeToString())
        assert tf.saved_model.load({str(swift)!r}).signatures
        assert client.predict(images=[[[[0] * 3] * 8] * 8])["class"].shape == (1,)
    """
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
