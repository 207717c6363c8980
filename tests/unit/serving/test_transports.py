"""What is sent over the network: the documented JSON, slow and foreign servers,
proxies.
"""

import base64
import contextlib
import http.server
import json
import socket
import socketserver
import threading
import time

import fake_serving
import numpy as np
import pytest

from pipeline.serving import rest, signatures
from pipeline.serving.client import Client
from pipeline.serving.signatures import Field, ServingError

FLOAT, STRING = Field(np.dtype(np.float32), (None,)), Field(np.dtype(object), (None,))
LOADED = b'{"metadata": {"signature_def": {"signature_def": {}}}}'
pytestmark = pytest.mark.usefixtures("no_proxy")


@pytest.fixture
def closed():
    """A port without a server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def replying(*replies):
    """Address of a model behind a server that sends these (status, body, headers) in
    turn.
    """
    rest_of = iter(replies)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            code, body, headers = next(rest_of)
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value.format(self.path))
            self.end_headers()
            self.wfile.write(body)

    with fake_serving.serve_http(Handler) as port:
        yield f"http://127.0.0.1:{port}/v1/models/m"


@contextlib.contextmanager
def dribbling(first, again):
    """Address of a server that sends something, and then something else without end."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(2**16)
            with contextlib.suppress(OSError):
                self.request.sendall(first)
                while not over.wait(0.02):
                    self.request.sendall(again)

    over = threading.Event()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1/models/m"
        finally:
            over.set()
            server.shutdown()


@pytest.mark.parametrize(
    "form", ["http://127.0.0.1:{}/v1/models/m", "grpc://127.0.0.1:{}/m"]
)
def test_a_missing_server_differs_from_a_slow_one(closed, form):
    with (
        Client(form.format(closed)) as client,
        pytest.raises(ServingError, match=r"UNAVAILABLE: .*[Cc]onnection refused"),
    ):
        client.metadata()
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Client(form.format(silent.getsockname()[1]), 0.2) as client,
        pytest.raises(ServingError) as caught,
    ):
        client.metadata()
    assert caught.value.status == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize(
    ("head", "again"),
    [
        ("200 OK\r\n\r\n", b" "),
        ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"x"),
        ("500 no\r\nContent-Length: 3000000\r\n\r\n", b" "),
    ],
    ids=["body", "chunk", "error"],
)
def test_the_timeout_is_that_of_the_whole_reply(head, again):
    with (
        dribbling(f"HTTP/1.1 {head}".encode(), again) as address,
        pytest.raises(ServingError, match="DEADLINE_EXCEEDED: no answer within 0.3 s$"),
    ):
        begin = time.monotonic()
        Client(address, 0.3).metadata()
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    ("code", "body", "headers", "message"),
    [
        (200, b"<html>", {}, "UNKNOWN: not a valid reply from TensorFlow Serving"),
        (200, b"{}", {"Content-Length": "5"}, "UNAVAILABLE: .*Incomplete"),
        (502, b"<html>\nproxy", {}, "UNAVAILABLE: HTTP 502 Bad Gateway"),
        (404, b"", {}, "NOT_FOUND: HTTP 404 Not Found"),
        (400, b'{"error": "one\\n\\t [[two]]"}', {}, "INVALID_ARGUMENT: one$"),
        (
            301,
            b"",
            {"Location": "https://models.test{}/"},
            "redirects to https://models.test/v1/m",
        ),
        (
            302,
            b"",
            {"Location": "/login"},
            "redirects to http://127.*/login; use the address of a",
        ),
        (503, b'{"error": "loading"}', {"Retry-After": "60"}, "UNAVAILABLE: loading"),
    ],
)
def test_replies_of_other_programs_are_one_line(code, body, headers, message):
    with (
        replying((code, body, headers)) as address,
        Client(address) as client,
        pytest.raises(ServingError, match=message) as caught,
    ):
        client.metadata()
    assert "\n" not in str(caught.value)


def test_a_busy_server_is_asked_again(monkeypatch):
    slept = []
    monkeypatch.setattr(rest.time, "sleep", slept.append)
    replies = [
        (503, b"", {}),
        (429, b"", {"Retry-After": "3"}),
        (503, b"", {}),
        (200, LOADED, {}),
    ]
    with replying(*replies) as address, Client(address) as client:
        assert client.metadata() == {}
    assert slept == [0.1, 3, 0.2]


def test_connections_are_kept_open(models):
    backend, connected = fake_serving.Backend(rows=models / "rows/2"), []
    real = fake_serving._Rest.setup
    with pytest.MonkeyPatch.context() as patch, fake_serving.rest(backend) as address:
        patch.setattr(
            fake_serving._Rest, "setup", lambda self: (connected.append(1), real(self))
        )
        with Client(f"{address}/rows") as client:
            for _ in range(3):
                client.predict(features=[[1, 2, 3]])
    assert len(backend.requests) == 3 and connected == [1]


def test_a_proxy_of_the_environment_is_used_and_named(closed, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{closed}")
    monkeypatch.delenv("no_proxy")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(ServingError, match="no_proxy lists hosts") as caught:
        Client("http://models.test:8501/v1/models/m").metadata()
    assert f"through the proxy 127.0.0.1:{closed};" in str(caught.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(ServingError, match="refused$"):
        Client(f"http://127.0.0.1:{closed}/v1/models/m").metadata()
    with replying((200, LOADED, {})) as proxy:
        monkeypatch.setenv("http_proxy", proxy.partition("/v1")[0])
        assert Client("http://models.test:8501/v1/models/m").metadata() == {}


def test_arrays_are_written_as_documented():
    """The example of api_rest.md; strings, which may be any bytes, in Base64."""
    inputs = {
        "tag": signatures.strings([["foo"], [b"image bytes"]]),
        "signal": np.int32([[1, 2], [3, 4]]),
        "x": np.float32([1, 0.5, np.inf]),
    }
    assert (
        json.dumps(inputs, default=rest.to_json)
        == '{"tag": [[{"b64": "Zm9v"}], [{"b64": "aW1hZ2UgYnl0ZXM="}]], '
        '"signal": [[1, 2], [3, 4]], "x": [1.0, 0.5, Infinity]}'
    )


def test_replies_are_read_as_documented():
    raw = {"b64": base64.b64encode(b"\x00").decode()}
    outputs = {"y": [1.0] * 2, "raw_bytes": [raw] * 2, "other": [1]}
    reply = json.loads(json.dumps({"outputs": outputs}), object_hook=rest.from_json)
    read = rest.arrays(reply, {"y": FLOAT, "raw_bytes": STRING})
    assert {name: array.tolist() for name, array in read.items()} == {
        "y": [1.0, 1.0],
        "raw_bytes": [b"\x00"] * 2,
    }
