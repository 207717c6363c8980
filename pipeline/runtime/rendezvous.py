"""The workers of a run meet before training, and notice when one of them has ended.

TensorFlow alone waits silently for an hour for a missing worker, and forever for one
with another number of steps. It notices the end of a worker at once only if both have
exchanged something before, and otherwise after ten seconds.
"""

import contextlib
import fcntl
import functools
import json
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from pipeline.runtime.cluster import Cluster
from pipeline.utils import safe_io, temp_files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, WorkerLost

_POLL = 0.2  # seconds between two attempts to reach a worker
_MAX_LINE = 2**16  # bytes of a line
# A worker that has ended as it should has closed its connections as well; after that,
# the others need no more than this many seconds.
_GRACE = 2.0
_SILENT = 10.0  # seconds until the chief says for whom it waits
_STDERR = 2


def meet(
    cluster: Cluster,
    seconds: float,
    versions: Mapping[str, str],
    gpus: list[str],
) -> "Connections":
    """Waits until every worker has reached every other, and compares the workers.

    Args:
        cluster: The workers.
        seconds: How long to wait for a worker.
        versions: Name -> version of the packages, which must be the same everywhere.
        gpus: Identifiers of the GPUs of this worker, which no other may use.

    Returns:
        The connections to the other workers, to be watched.

    Raises:
        UsageError: Workers are missing after `seconds`, have other options or versions,
            share a GPU, or do not see the same run directory. All workers get the
            message of the first that has found it.
        WorkerLost: A worker has ended meanwhile.
    """
    peers = Connections(cluster)
    facts = {"options": cluster.options, "versions": dict(versions), "gpus": gpus}
    with contextlib.ExitStack() as stack:
        if cluster.run and cluster.is_chief:
            cluster.run.mkdir(parents=True, exist_ok=True)
            mark = temp_files.file(cluster.run)
            stack.callback(temp_files.remove, mark)
            facts["mark"] = mark.name
        try:
            for index, others in sorted(peers.exchange(facts, seconds).items()):
                _compare(cluster, index, facts, others)
        except UsageError as error:
            peers.send({"error": str(error)})
            peers.close()
            raise
        except BaseException:
            peers.close()
            raise
        peers.agree(seconds)
    return peers


def _compare(
    cluster: Cluster, index: int, own: dict[str, Any], other: dict[str, Any]
) -> None:
    """Raises UsageError if a worker and this one cannot train together."""
    name = f"{cluster.source}: {cluster.name(index)}"
    for package, version in own["versions"].items():
        theirs = other["versions"].get(package)
        if theirs != version:
            raise UsageError(
                f"{name} has {package} {theirs}, and {cluster.name(cluster.index)} has"
                f" {version}; install the same version for all workers"
            )
    if other["options"] != own["options"]:
        raise UsageError(
            f"{name} was started with other options; use the same for all workers, or"
            f" {cluster.alone}"
        )
    if shared := sorted(set(own["gpus"]) & set(other["gpus"])):
        raise UsageError(
            f"{name} and {cluster.name(cluster.index)} use the same GPU {shared[0]};"
            " give each worker its own, such as with srun --gpus-per-task=1, or start"
            " one worker for each machine"
        )
    if "mark" in other and cluster.run and not _sees(cluster.run, other["mark"]):
        raise UsageError(
            f"{cluster.name(cluster.index)} does not see what {cluster.name(index)}"
            f" writes to {cluster.run}: --run-directory must be the same directory, on"
            f" a disk that all workers share; {cluster.alone}"
        )


def _sees(run: Path, mark: str) -> bool:
    # NFS remembers for half a minute that a directory was missing, unless this client
    # tries to create it.
    with contextlib.suppress(OSError):
        run.mkdir(parents=True, exist_ok=True)
    return (run / mark).exists()


class Connections:
    """Connections to the other workers of a cluster: one in each direction.

    Each message is a line of JSON. The first tells who a worker is, the second that it
    is ready, or why it is not.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._others = set(range(len(cluster.workers))) - {cluster.index}
        self._outgoing: dict[int, socket.socket] = {}
        self._incoming: dict[socket.socket, bytes] = {}
        self._indices: dict[socket.socket, int] = {}
        self._facts: dict[int, dict[str, Any]] = {}
        self._failures: dict[int, str] = {}  # why a worker could not be reached
        self._ready: set[int] = set()
        self._has_exchanged = False
        self._lost: int | None = None
        self._has_started = threading.Event()

    def exchange(
        self, facts: Mapping[str, Any], seconds: float
    ) -> dict[int, dict[str, Any]]:
        """Sends facts about this worker; returns those about the others by index."""
        start = time.monotonic()
        end = start + seconds
        notice = start + _SILENT if self._cluster.is_chief else math.inf
        line = _line({"worker": self._cluster.index, **facts})
        with self._listen() as listener:
            while not self._outgoing.keys() == self._facts.keys() == self._others:
                for index in self._others - self._outgoing.keys():
                    self._call(index, line)
                self._receive(listener)
                present = self._outgoing.keys() & self._facts
                self._check_time(end, seconds, present)
                if time.monotonic() > notice:
                    notice = math.inf
                    say("waiting", f"for {self._missing(present)}")
        self._has_exchanged = True
        return self._facts

    def agree(self, seconds: float) -> None:
        """Waits until all workers are ready."""
        end = time.monotonic() + seconds
        self.send({})
        try:
            while self._ready != self._others:
                self._receive()
                self._check_time(end, seconds, self._ready)
        except BaseException:
            self.close()
            raise

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message to all workers that can be reached."""
        for connection in self._outgoing.values():
            with contextlib.suppress(OSError):
                connection.sendall(_line(message))

    def close(self) -> None:
        """Closes all connections."""
        for connection in (*self._outgoing.values(), *self._incoming):
            connection.close()

    def watch(self) -> None:
        """Watches from now on whether a worker ends.

        Before `started`, this process then ends, too. Later, an exchange with other
        workers fails at once instead.
        """
        threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def ending_together(self) -> Iterator[None]:
        """Ends this process at once if another worker ends within the block.

        TensorFlow waits for the other workers with Python's lock held, so that no
        thread of Python can notice. The kernel does: it sends SIGIO, whose default is
        to end the process.
        """
        connections = (*self._outgoing.values(), *self._incoming)
        for connection in connections:
            fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
            flags = fcntl.fcntl(connection, fcntl.F_GETFL)
            fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
        self._receive(timeout=0)  # it may have ended before
        try:
            yield
        finally:
            for connection in connections:
                flags = fcntl.fcntl(connection, fcntl.F_GETFL)
                fcntl.fcntl(connection, fcntl.F_SETFL, flags & ~os.O_ASYNC)

    def started(self) -> None:
        """From now on, the collective operations of TensorFlow can be aborted."""
        self._has_started.set()

    def _watch(self) -> None:
        while True:
            try:
                self._receive(timeout=None)
            except (UsageError, WorkerLost) as error:
                if self._has_started.wait(_GRACE):
                    time.sleep(_GRACE)
                    # As TensorFlow's own check of the health of workers does.
                    context.context().abort_collective_ops(
                        tf.errors.UNAVAILABLE, f"task:{self._lost} has ended"
                    )
                    return
                os.write(_STDERR, f"error: {error}\n".encode())
                os._exit(WorkerLost.exit_code)

    def _check_time(self, end: float, seconds: float, present: set[int]) -> None:
        if time.monotonic() <= end:
            return
        raise UsageError(
            f"{self._cluster.source}: {self._missing(present)} did not respond within"
            f" {seconds:g} seconds; start all workers together, or increase"
            f" --runtime.worker-timeout; {self._cluster.alone}"
        )

    def _missing(self, present: set[int]) -> str:
        """The names of the other workers, and why they could not be reached."""
        names = ", ".join(map(self._cluster.name, sorted(self._others - present)))
        causes = ", ".join(sorted(set(self._failures.values())))
        return f"{names} ({causes})" if causes else names

    def _listen(self) -> socket.socket:
        cluster = self._cluster
        host, _, port = cluster.workers[cluster.index].rpartition(":")
        is_ipv6 = host.startswith("[")
        family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        try:
            return socket.create_server(
                ("", int(port)),
                family=family,
                backlog=len(cluster.workers),
                dualstack_ipv6=is_ipv6 and socket.has_dualstack_ipv6(),
            )
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"{cluster.source}: {cluster.name(cluster.index)}, this process, cannot"
                f" use its port: {error}; end the program that uses it, or set"
                " TF_CONFIG with another port"
            ) from None

    def _call(self, index: int, line: bytes) -> None:
        host, _, port = self._cluster.workers[index].rpartition(":")
        try:
            address = (host.strip("[]"), int(port))
            connection = socket.create_connection(address, timeout=_POLL)
            self._outgoing[index] = connection
            connection.sendall(line)
            self._failures.pop(index, None)
        except OSError as error:
            self._failures[index] = error.strerror or str(error)

    def _receive(
        self, listener: socket.socket | None = None, timeout: float | None = _POLL
    ) -> None:
        """Waits for the next messages or connections."""
        with selectors.DefaultSelector() as selector:

            def register(
                connection: socket.socket, handle: Callable[..., None]
            ) -> None:
                action = functools.partial(handle, connection)
                selector.register(connection, selectors.EVENT_READ, action)

            for connection in self._incoming:
                register(connection, self._read)
            for connection in self._outgoing.values():
                register(connection, self._drop)
            if listener:
                register(listener, self._admit)
            found = selector.select(timeout)
        for key, _ in found:
            key.data()

    def _admit(self, listener: socket.socket) -> None:
        self._incoming[listener.accept()[0]] = b""

    def _drop(self, connection: socket.socket) -> None:
        """Closes a connection that did not reach a worker of this run, or no longer.

        Workers do not answer on it. It may have reached the server of a worker that was
        killed and is still ending, before another was started in its place.
        """
        for index, outgoing in list(self._outgoing.items()):
            if outgoing is connection:
                del self._outgoing[index]
                connection.close()
                if self._has_exchanged:
                    self._lose(index)

    def _lose(self, index: int) -> None:
        self._lost = index
        raise WorkerLost(
            f"{self._cluster.name(index)} has ended; start all workers again with the"
            " same command"
        )

    def _read(self, connection: socket.socket) -> None:
        try:
            received = connection.recv(_MAX_LINE)
        except OSError:
            received = b""
        *lines, rest = (self._incoming[connection] + received).split(b"\n")
        self._incoming[connection] = rest
        try:
            for line in lines:
                self._accept(connection, safe_io.parse_json(line.decode()))
        except (ValueError, LookupError, TypeError):
            received = b""  # another program
        if received and len(rest) < _MAX_LINE:
            return
        del self._incoming[connection]
        connection.close()
        if connection in self._indices:
            self._lose(self._indices[connection])

    def _accept(self, connection: socket.socket, message: dict[str, Any]) -> None:
        index = self._indices.get(connection)
        if index is None:
            index = int(message.pop("worker"))
            if index not in self._others:
                raise UsageError(
                    f"{self._cluster.source}: a worker with the index {index} has"
                    f" connected to {self._cluster.name(self._cluster.index)}; each"
                    " worker needs an index of its own, and all the same list"
                )
            self._indices[connection] = index
            self._facts[index] = message
        elif "error" in message:
            raise UsageError(message["error"])
        else:
            self._ready.add(index)


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
