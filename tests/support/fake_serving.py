"""Stand-ins for TensorFlow Serving: its REST and gRPC interfaces, in front of its C++
session.

They share no code with the client: JSON by the rules of
tensorflow_serving/util/json_tensor.cc, tensors by TensorFlow's functions, gRPC by the
official servicers.
"""

import base64
import contextlib
import functools
import json
import re
import shutil
import subprocess
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from pipeline.serving.savedmodel_session import ServerError, Session

_HTTP = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "INTERNAL": 500,
}
_CODES = {3: "INVALID_ARGUMENT", 5: "NOT_FOUND", 9: "FAILED_PRECONDITION"}
WAYS = {"curl": 0, "Python": 1}

once = functools.cache(Session)
"""A session of a directory that never changes, loaded once."""


class Refused(Exception):
    """An error of the server, with the name of its status code."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Backend:
    """Models by name, one version each, labelled stable, with the errors
    of the server.
    """

    def __init__(self, **directories):
        self.models = {name: (int(d.name), once(d)) for name, d in directories.items()}
        self.requests = []
        self._lock = threading.Lock()

    def find(self, name, version=None, label=None):
        if label not in (None, "", "stable"):
            raise Refused(
                "INVALID_ARGUMENT", f"Unrecognized servable version label: {label}"
            )
        if name not in self.models or version not in (None, self.models[name][0]):
            which = (
                f"Latest({name})" if version is None else f"Specific({name}, {version})"
            )
            raise Refused("NOT_FOUND", f"Servable not found for request: {which}")
        return self.models[name]

    def run(self, session, name, inputs):
        if name not in session.signatures:
            raise Refused(
                "FAILED_PRECONDITION", f'Serving signature key "{name}" not found.'
            )
        with self._lock:
            self.requests.append(
                (name, {key: len(value) for key, value in inputs.items()})
            )
            try:
                return session.run(name, inputs)
            except ServerError as error:
                raise Refused(_CODES.get(error.code, "INTERNAL"), str(error)) from None


@contextlib.contextmanager
def serve_http(handler, **attributes):
    """Port of an HTTP server on this machine."""
    handler = type(
        "Handler", (handler,), {"log_message": lambda *_: None, **attributes}
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def rest(backend):
    """Address of a REST server on this machine, which keeps connections open."""
    with serve_http(_Rest, backend=backend, protocol_version="HTTP/1.1") as port:
        yield f"http://127.0.0.1:{port}/v1/models"


class _Rest(BaseHTTPRequestHandler):
    timeout = 1  # for the next request on an open connection
    wbufsize = -1  # one packet for headers and body
    disable_nagle_algorithm = True

    def do_GET(self):
        self._reply(self._get)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._reply(lambda: self._post(body))

    def _reply(self, answer):
        try:
            code, values = 200, answer()
        except Refused as error:
            code, values = _HTTP[error.code], {"error": str(error)}
        raw = json.dumps(values, indent=1).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _found(self, pattern):
        version = r"(?:/versions/(\d+)|/labels/([^/:]+))?"
        found = re.fullmatch(rf"/v1/models/([^/:]+){version}{pattern}", self.path)
        if not found:
            raise Refused(
                "INVALID_ARGUMENT", f"Malformed request: {self.command} {self.path}"
            )
        number = int(found[2]) if found[2] else None
        return (*self.backend.find(found[1], number, found[3]), found[4])

    def _get(self):
        _, session, _ = self._found("(/metadata)")
        message = get_model_metadata_pb2.SignatureDefMap(
            signature_def=session.signatures
        )
        definitions = json_format.MessageToDict(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        return {"metadata": {"signature_def": definitions}}

    def _post(self, body):
        _, session, _ = self._found("(:predict)")
        name = body.get("signature_name", "serving_default")
        given = session.signatures[name].inputs
        values = body["instances"] if "instances" in body else body["inputs"]
        if (
            "instances" in body
            and isinstance(values[0], dict)
            and set(values[0]) != {"b64"}
        ):
            values = {key: [row[key] for row in values] for key in values[0]}
        if not isinstance(values, dict):
            (only,) = given
            values = {only: values}
        inputs = {key: _array(values[key], given[key].dtype) for key in values}
        outputs = self.backend.run(session, name, inputs)
        columns = {key: _json(key, array) for key, array in outputs.items()}
        if "inputs" in body:
            return {
                "outputs": columns if len(columns) > 1 else next(iter(columns.values()))
            }
        if len(columns) == 1:
            return {"predictions": next(iter(columns.values()))}
        rows = zip(*columns.values(), strict=True)
        return {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


def _array(values, number):
    """JSON values as an array; strings as text or in Base64."""
    if number != tf.string.as_datatype_enum:
        return np.array(values, tf.as_dtype(number).as_numpy_dtype)
    if isinstance(values, list):
        return np.array([_array(one, number) for one in values], object)
    return (
        base64.b64decode(values["b64"]) if isinstance(values, dict) else values.encode()
    )


def _json(name, array):
    """As `AddTensorValues`: float32 with its shortest digits, `_bytes` in Base64."""
    if isinstance(array, np.ndarray) and array.ndim:
        return [_json(name, part) for part in array]
    if isinstance(array, bytes):
        raw = {"b64": base64.b64encode(array).decode()}
        return raw if name.endswith("_bytes") else array.decode()
    return float(str(array)) if array.dtype == np.float32 else array.item()


@contextlib.contextmanager
def rpc(backend):
    """Address of a gRPC server on this machine."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _servicer(backend), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def _servicer(backend):
    def served(answer):
        def method(request, context):
            spec = request.model_spec
            version = spec.version.value if spec.HasField("version") else None
            try:
                _, session = backend.find(spec.name, version, spec.version_label)
                return answer(
                    request, session, spec.signature_name or "serving_default"
                )
            except Refused as error:
                context.abort(getattr(grpc.StatusCode, error.code), str(error))

        return method

    def predict(request, session, name):
        inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
        outputs = backend.run(session, name, inputs).items()
        return predict_pb2.PredictResponse(
            outputs={key: tf.make_tensor_proto(array) for key, array in outputs}
        )

    def metadata(request, session, *_):
        reply = get_model_metadata_pb2.GetModelMetadataResponse()
        definitions = get_model_metadata_pb2.SignatureDefMap(
            signature_def=session.signatures
        )
        reply.metadata["signature_def"].Pack(definitions)
        return reply

    prediction = prediction_service_pb2_grpc.PredictionServiceServicer()
    prediction.Predict, prediction.GetModelMetadata = served(predict), served(metadata)
    return prediction


@contextlib.contextmanager
def both(backend):
    """Port in the examples of SERVING.md -> port of a server on this machine."""
    with rest(backend) as http, rpc(backend) as address:
        yield {
            "8501": re.search(r":(\d+)/", http)[1],
            "8500": address.rpartition(":")[2],
        }


def shown(document, signature, way, ports, capsys):
    """Output of an example that calls a signature in one of the WAYS; ports as from
    `both`.
    """
    part = document.partition(f"## Calling `{signature}`\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```(\w+)\n(.*?)```", part, flags=re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "python"]
    _, code = blocks[WAYS[way]]
    for port, own in ports.items():
        code = code.replace(f"localhost:{port}", f"127.0.0.1:{own}")
    if way != "curl":
        exec(compile(code, "SERVING.md", "exec"), {})
        return capsys.readouterr().out
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    return subprocess.run(
        ["sh", "-ec", code], capture_output=True, text=True, check=True
    ).stdout


def assert_same(got, wanted):
    assert set(got) == set(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        if array.dtype == object:
            assert got[name].tolist() == array.tolist()
        else:
            np.testing.assert_allclose(got[name], array, rtol=2e-6, atol=2e-6)
