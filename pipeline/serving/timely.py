"""HTTP replies that are whole, of a bounded size, and there when their time is up."""

import functools
import http.client
import io
import socket
import time
import urllib.request
from typing import Any


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
