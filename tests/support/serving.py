"""Stand-ins for TensorFlow Serving: its documented REST and gRPC, in front of its C++ session.

They share no code with the client: JSON by the rules of tensorflow_serving/util/json_tensor.cc,
tensors by TensorFlow's own functions, gRPC by the official servicers.
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

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format

from pipeline.serving.savedmodel_session import ServerError, Session

_HTTP = {"INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "NOT_FOUND": 404, "INTERNAL": 500}
_CODES = {3: "INVALID_ARGUMENT", 5: "NOT_FOUND", 9: "FAILED_PRECONDITION"}


once = functools.cache(Session)
"""A session of a directory that never changes: loading one takes longer than to ask it."""


class Refused(Exception):
    """A status code by name, and a message."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Backend:
    """Models by name, one version each, labelled stable, with the server's own refusals."""

    def __init__(self, **directories):
        self.models = {name: (int(d.name), once(d)) for name, d in directories.items()}
        self.requests = []
        self._lock = threading.Lock()

    def find(self, name, version=None, label=None):
        if label not in (None, "", "stable"):
            raise Refused("INVALID_ARGUMENT", f"Unrecognized servable version label: {label}")
        if name not in self.models or version not in (None, self.models[name][0]):
            which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise Refused("NOT_FOUND", f"Servable not found for request: {which}")
        return self.models[name]

    def signature(self, session, name):
        if name not in session.signatures:
            message = f'Serving signature key "{name}" not found.'
            raise Refused("FAILED_PRECONDITION", message)
        return session.signatures[name]

    def run(self, session, name, inputs):
        definition = self.signature(session, name)
        if set(inputs) != set(definition.inputs):
            message = f"input size does not match signature: {len(inputs)}"
            raise Refused("INVALID_ARGUMENT", message)
        with self._lock:
            self.requests.append((name, {key: len(value) for key, value in inputs.items()}))
            try:
                return session.run(name, inputs)
            except ServerError as error:
                raise Refused(_CODES.get(error.code, "INTERNAL"), str(error)) from None

    def examples(self, session, name, examples):
        serialized = np.empty(len(examples), object)
        serialized[:] = [example.SerializeToString() for example in examples]
        return self.run(session, name, {"inputs": serialized})


@contextlib.contextmanager
def rest(backend):
    """The address of an HTTP server on this machine."""

    class Handler(_Rest):
        pass

    Handler.backend = backend
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/models"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Rest(BaseHTTPRequestHandler):
    def do_GET(self):
        self._reply(self._get)

    def do_POST(self):
        self._reply(self._post)

    def log_message(self, *_):
        pass

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
        with contextlib.suppress(BrokenPipeError):  # a client that was ended
            self.wfile.write(raw)

    def _found(self, pattern):
        version = r"(?:/versions/(\d+)|/labels/([^/:]+))?"
        found = re.fullmatch(rf"/v1/models/([^/:]+){version}{pattern}", self.path)
        if not found:
            raise Refused("INVALID_ARGUMENT", f"Malformed request: {self.command} {self.path}")
        version = int(found[2]) if found[2] else None
        return (*self.backend.find(found[1], version, found[3]), found)

    def _get(self):
        version, session, found = self._found("(/metadata)?")
        if not found[4]:
            status = {"error_code": "OK", "error_message": ""}
            one = {"version": str(version), "state": "AVAILABLE", "status": status}
            return {"model_version_status": [one]}
        definitions = {
            name: json_format.MessageToDict(
                definition,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            for name, definition in session.signatures.items()
        }
        spec = {"name": found[1], "signature_name": "", "version": str(version)}
        return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": definitions}}}

    def _post(self):
        _, session, found = self._found(":(predict|classify|regress)")
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        except ValueError:
            raise Refused("INVALID_ARGUMENT", "JSON Parse error") from None
        name = body.get("signature_name", "serving_default")
        if found[4] == "predict":
            return self._predict(session, name, body)
        answer = self.backend.examples(session, name, list(map(_example, body["examples"])))
        if found[4] == "regress":
            return {"results": _json("outputs", answer["outputs"])}
        pairs = zip(_json("classes", answer["classes"]), _json("", answer["scores"]), strict=True)
        return {"results": [list(map(list, zip(*pair, strict=True))) for pair in pairs]}

    def _predict(self, session, name, body):
        if ("instances" in body) == ("inputs" in body):
            raise Refused("INVALID_ARGUMENT", "Missing 'inputs' or 'instances' key")
        given = self.backend.signature(session, name).inputs
        values = body["instances"] if "instances" in body else body["inputs"]
        if "instances" in body and isinstance(values[0], dict) and set(values[0]) != {"b64"}:
            values = {key: [row[key] for row in values] for key in values[0]}
        if not isinstance(values, dict):
            (only,) = given
            values = {only: values}
        inputs = {key: _array(key, values[key], given[key].dtype) for key in values}
        outputs = self.backend.run(session, name, inputs)
        outputs = {key: _json(key, array) for key, array in outputs.items()}
        if "inputs" in body:
            return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
        if len(outputs) == 1:
            return {"predictions": next(iter(outputs.values()))}
        rows = zip(*outputs.values(), strict=True)
        return {"predictions": [dict(zip(outputs, row, strict=True)) for row in rows]}


def _array(name, value, number):
    """`AddValueToTensor`: whole numbers for integers, text or base 64 for strings."""
    dtype = tf.dtypes.as_dtype(number)
    allowed = {tf.string: (str, dict), tf.bool: (bool,)}.get(
        dtype, (int, float) if dtype.is_floating else (int,)
    )
    shape, flat = [], [value]
    while flat and isinstance(flat[0], list):
        shape.append(len(flat[0]))
        flat = [one for part in flat for one in part]
    array = np.empty(len(flat), object if dtype == tf.string else dtype.as_numpy_dtype)
    for at, one in enumerate(flat):
        if type(one) not in allowed:
            message = f"JSON Value: {one} is not of expected type: {dtype.name}"
            raise Refused("INVALID_ARGUMENT", message)
        one = one.encode() if isinstance(one, str) else one
        array[at] = base64.b64decode(one["b64"]) if isinstance(one, dict) else one
    return array.reshape(shape)


def _json(name, array):
    """`AddTensorValues`: float32 with the digits that stand for it, `_bytes` in base 64."""
    if isinstance(array, np.ndarray) and array.ndim:
        return [_json(name, part) for part in array]
    if isinstance(array, bytes):
        raw = {"b64": base64.b64encode(array).decode()}
        return raw if name.endswith("_bytes") else array.decode()
    return float(str(array)) if array.dtype == np.float32 else array.item()


def _example(features):
    example = tf.train.Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        for one in values if isinstance(values, list) else [values]:
            if isinstance(one, dict):
                feature.bytes_list.value.append(base64.b64decode(one["b64"]))
            elif isinstance(one, str):
                feature.bytes_list.value.append(one.encode())
            elif isinstance(one, float):
                feature.float_list.value.append(one)
            else:
                feature.int64_list.value.append(one)
    return example


@contextlib.contextmanager
def rpc(backend):
    """The address of a gRPC server on this machine."""
    import grpc
    from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

    prediction, models = _servicers(backend)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(prediction(), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(models(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def _servicers(backend):
    import grpc
    from tensorflow_serving.apis import (
        classification_pb2,
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_service_pb2_grpc,
        regression_pb2,
    )

    def served(answer):
        def method(self, request, context):
            spec = request.model_spec
            version = spec.version.value if spec.HasField("version") else None
            try:
                number, session = backend.find(spec.name, version, spec.version_label)
                return answer(request, session, spec.signature_name or "serving_default", number)
            except Refused as error:
                context.abort(getattr(grpc.StatusCode, error.code), str(error))

        return method

    def predict(request, session, name, number):
        inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
        reply = predict_pb2.PredictResponse()
        for key, array in backend.run(session, name, inputs).items():
            reply.outputs[key].CopyFrom(_as_field(array))
        return reply

    def classify(request, session, name, number):
        answer = backend.examples(session, name, request.input.example_list.examples)
        reply = classification_pb2.ClassificationResponse()
        for labels, scores in zip(answer["classes"], answer["scores"], strict=True):
            one = reply.result.classifications.add()
            for label, score in zip(labels, scores, strict=True):
                one.classes.add(label=label, score=score)
        return reply

    def regress(request, session, name, number):
        answer = backend.examples(session, name, request.input.example_list.examples)
        reply = regression_pb2.RegressionResponse()
        for value in answer["outputs"]:
            reply.result.regressions.add(value=value)
        return reply

    def metadata(request, session, name, number):
        definitions = get_model_metadata_pb2.SignatureDefMap()
        for key, definition in session.signatures.items():
            definitions.signature_def[key].CopyFrom(definition)
        reply = get_model_metadata_pb2.GetModelMetadataResponse()
        reply.metadata["signature_def"].Pack(definitions)
        return reply

    def status(request, session, name, number):
        reply = get_model_status_pb2.GetModelStatusResponse()
        state = get_model_status_pb2.ModelVersionStatus.AVAILABLE
        reply.model_version_status.add(version=number, state=state)
        return reply

    class Prediction(prediction_service_pb2_grpc.PredictionServiceServicer):
        Predict, Classify, Regress = served(predict), served(classify), served(regress)
        GetModelMetadata = served(metadata)

    class Models(model_service_pb2_grpc.ModelServiceServicer):
        GetModelStatus = served(status)

    return Prediction, Models


def _as_field(array):
    """`Tensor::AsProtoField`, the server's way: a list of values, not their bytes."""
    tensor = tf.make_tensor_proto(array)
    if tensor.tensor_content:
        kind = {"f": "float_val", "b": "bool_val"}.get(array.dtype.kind, "int_val")
        wide = {"float64": "double_val", "int64": "int64_val"}
        wide |= {f"uint{bits}": f"uint{bits}_val" for bits in (32, 64)}
        wide |= {"float16": "half_val"}
        values = array.view(np.uint16) if array.dtype == np.float16 else array
        getattr(tensor, wide.get(array.dtype.name, kind)).extend(values.ravel().tolist())
        tensor.tensor_content = b""
    return tensor


@contextlib.contextmanager
def both(backend):
    """Port that the examples of SERVING.md name -> that of a server on this machine."""
    with rest(backend) as http, rpc(backend) as grpc:
        yield {"8501": re.search(r":(\d+)/", http)[1], "8500": grpc.rpartition(":")[2]}


WAYS = {"curl": 0, "Python": 1}


def shown(document, signature, way, ports, capsys):
    """What an example prints that calls a signature in one of the WAYS; ports as of `both`."""
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
    return subprocess.run(["sh", "-ec", code], capture_output=True, text=True, check=True).stdout


def needs_stubs():
    reason = "gRPC needs the extra serving (tensorflow-serving-api)"
    pytest.importorskip("tensorflow_serving.apis.predict_pb2", reason=reason)


def assert_same(got, wanted):
    assert set(got) == set(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        if array.dtype == object:
            assert got[name].tolist() == array.tolist()
        else:
            np.testing.assert_allclose(got[name], array, rtol=2e-6, atol=2e-6)
