"""Client side of the REST interface of TensorFlow Serving, using urllib3.

The format is documented in tensorflow_serving/g3doc/api_rest.md; for details, see
tensorflow_serving/util/json_tensor.cc.
"""

import base64
import json
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

import numpy as np
import urllib3
from google.protobuf import json_format
from urllib3.exceptions import HTTPError

from pipeline.serving import signatures
from pipeline.serving.signatures import Arrays, Field, ServingError, Signature
from pipeline.utils import protobuf

with protobuf.importable():
    from tensorflow_serving.apis import get_model_metadata_pb2

# 400 is also used for FAILED_PRECONDITION and OUT_OF_RANGE
# (tensorflow_serving/model_servers/http_server.cc).
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_BUSY = (429, 503)
# Seconds before a retry without a Retry-After header.
_FIRST_DELAY = 0.1
_MAX_DELAY = 5.0
_MAX_CONNECTIONS = 16  # kept open, for as many threads


class Rest:
    """A model behind the REST port of a server.

    `timeout` limits the seconds of a request, including the whole reply, and retries
    while the server is busy.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        self._proxy, self._manager = _manager(url)

    def predict(
        self, name: str, inputs: Arrays, outputs: Mapping[str, Field]
    ) -> Arrays:
        reply = self._request(":predict", {"signature_name": name, "inputs": inputs})
        with signatures.reading_reply(self._url):
            return arrays(reply, outputs)

    def metadata(self) -> dict[str, Signature]:
        reply = self._request("/metadata")
        with signatures.reading_reply(self._url):
            definitions = reply["metadata"]["signature_def"]
            message = get_model_metadata_pb2.SignatureDefMap()
            json_format.ParseDict(definitions, message, ignore_unknown_fields=True)
            return signatures.signatures(message.signature_def)

    def close(self) -> None:
        self._manager.clear()

    def _request(
        self, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Sends a POST request if there is a body, else GET; returns the JSON."""
        deadline = time.monotonic() + self._timeout
        delay = _FIRST_DELAY
        while True:
            try:
                response = self._send(path, body, deadline)
            except (HTTPError, OSError, ValueError) as error:
                raise self._unavailable(error, deadline) from None
            if response.status == 200:
                with signatures.reading_reply(self._url):
                    return dict(json.loads(response.data, object_hook=from_json))
            try:
                wait = urllib3.Retry().parse_retry_after(
                    response.headers["Retry-After"]
                )
            except (KeyError, HTTPError):
                wait = delay
                delay = min(2 * delay, _MAX_DELAY)
            if response.status not in _BUSY or time.monotonic() + wait >= deadline:
                status = _STATUS.get(response.status, "UNKNOWN")
                raise ServingError(self._url, status, self._message(response, path))
            time.sleep(wait)

    def _send(
        self, path: str, body: Mapping[str, Any] | None, deadline: float
    ) -> urllib3.BaseHTTPResponse:
        """Returns a reply that has been read to its end, or raises TimeoutError."""
        response = self._manager.request(
            "GET" if body is None else "POST",
            self._url + path,
            body=None if body is None else json.dumps(body, default=to_json),
            headers={"Content-Type": "application/json"},
            timeout=urllib3.Timeout(total=max(deadline - time.monotonic(), 1e-3)),
            preload_content=False,
            redirect=False,
            retries=False,
        )
        # The timeout above applies to each read, and a slow reply takes many reads.
        timer = threading.Timer(deadline - time.monotonic(), response.shutdown)
        timer.start()
        try:
            _ = response.data
        finally:
            timer.cancel()
            response.close()
        if time.monotonic() >= deadline:
            raise TimeoutError
        return response

    def _unavailable(self, error: BaseException, deadline: float) -> ServingError:
        while inner := error.__cause__ or error.__context__:
            error = inner
        status = "UNAVAILABLE"
        message = getattr(error, "strerror", None) or str(error)
        if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
            status = "DEADLINE_EXCEEDED"
            message = f"no answer within {self._timeout:g} s"
        if self._proxy:
            message += (
                f", through the proxy {self._proxy}; no_proxy lists hosts to reach"
                " directly"
            )
        return ServingError(self._url, status, message)

    def _message(self, response: urllib3.BaseHTTPResponse, path: str) -> str:
        if location := response.get_redirect_location():
            url = urllib.parse.urljoin(self._url + path, location)
            url = url.removesuffix("/").removesuffix(path)
            return f"it redirects to {url}; use the address of a model"
        try:
            return str(response.json()["error"])
        except (LookupError, TypeError, ValueError):  # the reply of another program
            proxy = f" of the proxy {self._proxy}" if response.status == 407 else ""
            return f"HTTP {response.status} {response.reason}{proxy}"


def _manager(url: str) -> tuple[str, urllib3.PoolManager]:
    """Returns the environment's proxy for an address, without password, and a pool."""
    parts = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.netloc):
        return "", urllib3.PoolManager(maxsize=_MAX_CONNECTIONS)
    address = urllib3.util.parse_url(proxy if "://" in proxy else f"http://{proxy}")
    credentials = address.auth and urllib.parse.unquote(address.auth)
    login = urllib3.make_headers(proxy_basic_auth=credentials)
    manager = urllib3.ProxyManager(
        address.url, maxsize=_MAX_CONNECTIONS, proxy_headers=login
    )
    return address.netloc or "", manager


def to_json(value: Any) -> Any:
    """Converts values that JSON lacks: arrays to lists, bytes to Base64."""
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return value.tolist()


def from_json(value: dict[str, Any]) -> Any:
    """Returns a JSON object, or the bytes if it stands for bytes in Base64."""
    if set(value) == {"b64"}:
        return base64.b64decode(value["b64"], validate=True)
    return value


def arrays(
    reply: Mapping[str, Any], outputs: Mapping[str, Field]
) -> dict[str, np.ndarray]:
    """Converts a columnar reply to arrays; strings to bytes objects."""
    values = reply["outputs"]
    if not isinstance(values, dict):
        (only,) = outputs  # the name of a single output is omitted
        values = {only: values}
    return {
        name: signatures.tensor(name, values[name], outputs[name])
        for name in outputs.keys() & values.keys()
    }
