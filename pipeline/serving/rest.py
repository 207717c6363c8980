"""TensorFlow Serving's REST interface, the client's half of it, over urllib.

https://github.com/tensorflow/serving/blob/master/tensorflow_serving/g3doc/api_rest.md, and where
that is silent tensorflow_serving/util/json_tensor.cc.
"""

import base64
import functools
import http.client
import io
import json
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.serving import signatures
from pipeline.serving.signatures import Field, ServingError, Signature, Version
from pipeline.serving.transport import Transport
from pipeline.utils.protobuf import NAMED_DTYPES

# 400 also stands for FAILED_PRECONDITION and OUT_OF_RANGE
# (tensorflow_serving/model_servers/http_server.cc).
_STATUS = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    409: "ABORTED", 413: "RESOURCE_EXHAUSTED", 429: "RESOURCE_EXHAUSTED", 499: "CANCELLED",
    500: "INTERNAL", 501: "UNIMPLEMENTED", 502: "UNAVAILABLE", 503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}  # fmt: skip
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_BYTES = 2**31  # of a reply
_MOST_SAID = 2**20  # of a refusal
# What JSON's values are for whole numbers and truth. For others a gateway may write null for NaN.
_PYTHON = {"b": (bool,), "i": (int,), "u": (int,)}


class Rest(Transport):
    """One model behind a server's REST port.

    Args:
        url: `http://HOST:8501/v1/models/NAME`, or a version or label of it.
        timeout: Seconds.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self._url, self._timeout = url, timeout

    def predict(
        self, name: str, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, Field]
    ) -> dict[str, np.ndarray]:
        """Outputs of the signature `name`; `outputs` are their types."""
        reply = self._post("predict", {"signature_name": name, "inputs": columns(inputs)})
        return self._read(lambda: arrays(reply, outputs))

    def classify(
        self, name: str, examples: Sequence[Mapping[str, Sequence]]
    ) -> list[list[tuple[str, float]]]:
        """(label, score) pairs of each example."""
        reply = self._post("classify", {"signature_name": name, "examples": _examples(examples)})
        return self._read(
            lambda: [
                [(label, signatures.shortest(score)) for label, score in pairs]
                for pairs in _results(reply)
            ]
        )

    def regress(self, name: str, examples: Sequence[Mapping[str, Sequence]]) -> np.ndarray:
        """One value for each example, float32 (examples,)."""
        reply = self._post("regress", {"signature_name": name, "examples": _examples(examples)})
        return self._read(lambda: np.array(_results(reply), np.float32))

    def metadata(self) -> dict[str, Signature]:
        """Its signatures."""
        reply = self._ask("/metadata")
        return self._read(
            lambda: {
                name: Signature(_fields(definition["inputs"]), _fields(definition["outputs"]))
                for name, definition in sorted(_definitions(reply).items())
                if not name.startswith("__")
            }
        )

    def status(self) -> list[Version]:
        """Its versions that the server knows."""
        reply = self._ask("")
        return self._read(
            lambda: [
                Version(int(one["version"]), one["state"], one["status"].get("error_message", ""))
                for one in reply["model_version_status"]
            ]
        )

    def close(self) -> None:
        """Each request has its own connection."""

    def _post(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask(f":{verb}", json.dumps(body).encode())

    def _ask(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        """The reply's JSON; POST where there is a body."""
        try:
            # Names may be in any script; what is already escaped stays.
            url = urllib.parse.quote(self._url + path, safe="/:%?=&@[]+,;")
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with ask(request, self._timeout) as reply:
                raw = whole(reply, _MOST_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                status = _STATUS.get(error.code, "UNKNOWN")
                said = _message(error) or f"HTTP {error.code} {error.reason}"
                said += self._by_proxy() if error.code == 407 else ""
                if error.code in _REDIRECTS and (to := error.headers.get("Location")):
                    said = _redirected(urllib.parse.urljoin(url, to), path)
            raise ServingError(self._url, status, said) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(error) from None
        except ValueError as error:  # of a name that no address can have, here or in a redirect
            raise ServingError(self._url, "UNAVAILABLE", f"no address: {error}") from None
        return self._read(lambda: dict(json.loads(raw)))

    def _unavailable(self, error: Exception) -> ServingError:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(why, TimeoutError):
            said = f"no answer within {self._timeout:g} s{self._by_proxy()}"
            return ServingError(self._url, "DEADLINE_EXCEEDED", said)
        said = getattr(why, "strerror", None) or str(why) or type(why).__name__
        return ServingError(self._url, "UNAVAILABLE", said + self._by_proxy())

    def _by_proxy(self) -> str:
        proxy = _proxy(self._url)
        meant = "; the variable no_proxy names hosts that are asked without"
        return f", asked through the proxy {proxy}{meant}" if proxy else ""

    def _read(self, reading: Callable[[], Any]) -> Any:
        try:
            return reading()
        except signatures.STRANGE as error:
            said = "the reply is not one of TensorFlow Serving"
            said = str(error) if isinstance(error, signatures.Unreadable) else said
            raise ServingError(self._url, "UNKNOWN", said) from None


def _redirected(to: str, path: str) -> str:
    """What to say of a redirect that was answered to a request for `path` below a model."""
    bare = to.rstrip("/").removesuffix(path)
    if not path or bare != to.rstrip("/"):
        return f"it redirects to {bare[:500]}: give that address"
    return f"it redirects to {to[:500]}, which is no address of a model"


def _proxy(url: str) -> str | None:
    """The one that the environment names for this address, as urllib reads it."""
    parts = urllib.parse.urlsplit(url)
    passed = urllib.request.proxy_bypass(parts.netloc)
    found = None if passed else urllib.request.getproxies().get(parts.scheme)
    return found and found.rpartition("@")[2]  # without a password


def columns(inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Arrays as JSON values in the columnar format; strings, which may be any bytes, in base 64."""
    return {name: _nested(array) for name, array in inputs.items()}


def _nested(array: np.ndarray) -> Any:
    if array.dtype != object:
        return array.tolist()
    encoded = np.empty(array.size, object)
    encoded[:] = [_binary(one) for one in array.flat]
    return encoded.reshape(array.shape).tolist()


def arrays(reply: Mapping[str, Any], outputs: Mapping[str, Field]) -> dict[str, np.ndarray]:
    """A reply to `predict`, in the columnar or the row format, as arrays; strings as bytes.

    Args:
        reply: Its JSON.
        outputs: Name -> type. Others are left out.

    Raises:
        Unreadable: Values of an output are not of its type.
        LookupError, TypeError, ValueError: It is no such reply.
    """
    if "predictions" in reply:
        rows = reply["predictions"]
        if _is_named(rows[0] if rows else None):
            values = {name: [row[name] for row in rows] for name in rows[0]}
        else:
            values = {_only(outputs): rows}
    else:
        named = _is_named(reply["outputs"])
        values = reply["outputs"] if named else {_only(outputs): reply["outputs"]}
    found = {}
    for name, field in outputs.items():
        if name in values:
            try:
                found[name] = _array(values[name], field.dtype)
            except signatures.STRANGE as error:
                raise signatures.Unreadable(f"{name} must be {field}, received {error}") from None
    return found


def _is_named(value: Any) -> bool:
    """Whether a value is an object by output name, not a single one in base 64."""
    return isinstance(value, dict) and set(value) != {"b64"}


def _only(outputs: Mapping[str, Field]) -> str:
    """The name of the only output, which a reply leaves out."""
    (name,) = outputs
    return name


def _array(value: Any, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "O":
        return signatures.strings(_decoded(value))
    python = _PYTHON.get(dtype.kind, (int, float, type(None)))
    for one in np.array(value, object).flat:
        if type(one) not in python:
            raise ValueError(json.dumps(one)[:100])
    with np.errstate(over="raise"):  # FloatingPointError, as of a number that no float32 can be
        return np.array(value, dtype)


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    return base64.b64decode(value["b64"], validate=True) if isinstance(value, dict) else value


def _binary(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def _examples(examples: Sequence[Mapping[str, Sequence]]) -> list[dict[str, list]]:
    return [
        {
            name: [_binary(one) if isinstance(one, bytes) else one for one in values]
            for name, values in example.items()
        }
        for example in examples
    ]


def _results(reply: Mapping[str, Any]) -> list[Any]:
    """Servers write `results`; their documentation also says `result`."""
    return reply["results"] if "results" in reply else reply["result"]


def _definitions(reply: Mapping[str, Any]) -> dict[str, Any]:
    return reply["metadata"]["signature_def"]["signature_def"]


def _fields(tensors: Mapping[str, Any]) -> dict[str, Field]:
    found = {}
    for name, tensor in sorted(tensors.items()):
        shape = tensor["tensor_shape"]
        sizes = [int(axis["size"]) for axis in shape.get("dim", ())]
        dtype = NAMED_DTYPES.get(tensor["dtype"])
        found[name] = signatures.field(dtype, None if shape.get("unknown_rank") else sizes)
    return found


def _message(error: urllib.error.HTTPError) -> str:
    """What the server says; nothing where it is not TensorFlow Serving that answers."""
    try:
        return str(json.loads(error.read(_MOST_SAID))["error"])
    except (OSError, http.client.HTTPException, *signatures.STRANGE):
        return ""


def ask(request: urllib.request.Request, timeout: float) -> http.client.HTTPResponse:
    """Sends a request; the reply, also the body that is still to be read, has to be there in time.

    The timeout of `urllib` holds for each piece alone: a server that sends a byte a second is
    never late.

    Args:
        request: Of `http` or `https`; a redirect is a refusal, as urllib would follow it without
            what was posted.
        timeout: Seconds for all of it, but for a host of many addresses, each of which has as long.

    Raises:
        urllib.error.HTTPError: The server refuses; it can be read like a reply.
        OSError, http.client.HTTPException: There is no reply; TimeoutError where it is late.
    """
    until = time.monotonic() + timeout
    handlers = _Http(until), _Https(until), _NoRedirect()
    return urllib.request.build_opener(*handlers).open(request, timeout=timeout)


def whole(reply: Any, most: int) -> bytes:
    """A reply's body; raises OSError where it has more than `most` bytes or ends before its end."""
    parts, size = [], 0
    while part := reply.read1(2**20):
        parts.append(part)
        size += len(part)
        if size > most:
            raise OSError(f"the reply has more than {most:,} bytes")
    if reply.length:  # which only `read` looks after
        raise http.client.IncompleteRead(b"".join(parts), reply.length)
    return b"".join(parts)


class _Until(io.RawIOBase):
    """What a socket still sends until a moment of the monotonic clock."""

    def __init__(self, raw: Any, connection: socket.socket, until: float) -> None:
        self._raw, self._connection, self._until = raw, connection, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._connection.settimeout(_left(self._until))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()  # which lets go of the connection
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, until: float, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Until(self.fp.detach(), sock, until))


class _Handler(urllib.request.AbstractHTTPHandler):
    def __init__(self, until: float) -> None:
        super().__init__()
        self._until = until

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> Any:
        def connection(*args: Any, **given: Any) -> http.client.HTTPConnection:
            made = http_class(*args, **{**given, "timeout": _left(self._until)})
            made.response_class = functools.partial(_Response, until=self._until)
            return made

        return super().do_open(connection, req, **options)


class _Http(_Handler, urllib.request.HTTPHandler):
    """In place of the one that knows of no end."""


class _Https(_Handler, urllib.request.HTTPSHandler):
    """The same over TLS."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
