"""Several machines: what TF_CONFIG says, and waiting until all of them are there."""

import contextlib
import dataclasses
import json
import os
import socket
import time
from collections.abc import Mapping

from pipeline.errors import UsageError

_POLL = 0.2  # seconds between two attempts to reach a worker


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a run."""

    workers: tuple[str, ...]
    """host:port of each; worker 0 is the chief, who alone writes and prints."""
    index: int
    """Which of them this process is."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes and prints."""
        return self.index == 0

    def name(self, index: int) -> str:
        """A worker as a person finds it."""
        return f"worker {index} ({self.workers[index]})"

    def meet(self, seconds: float) -> None:
        """Waits until every worker has reached every other.

        TensorFlow itself waits for an hour, without a word, for a worker that does not come.

        Raises UsageError naming the workers that are missing after `seconds`.
        """
        others = set(range(len(self.workers))) - {self.index}
        reached: set[int] = set()
        heard: set[int] = set()
        end = time.monotonic() + seconds
        with self._listening() as listening:
            while reached != others or heard != others:
                for index in others - reached:
                    if self._call(index):
                        reached.add(index)
                heard |= _answer(listening, _POLL)
                if time.monotonic() > end:
                    missing = ", ".join(self.name(i) for i in sorted(others - (reached & heard)))
                    raise UsageError(
                        f"TF_CONFIG: {missing} did not come within {seconds:g} seconds; start all "
                        "workers together, or wait longer with --runtime.worker-timeout"
                    )

    def _listening(self) -> socket.socket:
        port = self.workers[self.index].rpartition(":")[2]
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("", int(port)))
        except OSError as error:
            listening.close()
            raise UsageError(
                f"TF_CONFIG: {self.name(self.index)}, this process, cannot use its port: "
                f"{error.strerror}"
            ) from None
        listening.listen(len(self.workers))
        return listening

    def _call(self, index: int) -> bool:
        host, _, port = self.workers[index].rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_POLL) as connection:
                connection.sendall(f"{self.index}\n".encode())
        except OSError:
            return False
        return True


def _answer(listening: socket.socket, seconds: float) -> set[int]:
    """Workers that call within this time."""
    heard = set()
    listening.settimeout(seconds)
    with contextlib.suppress(OSError, ValueError):
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(seconds)
            heard.add(int(connection.recv(16)))
    return heard


def read(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster of TF_CONFIG; None where there is none, or only one worker.

    Raises UsageError naming what is wrong in it.
    """
    text = environment.get("TF_CONFIG", "")
    if not text.strip():
        return None
    example = (
        'expected {"cluster": {"worker": ["host0:port", "host1:port"]}, '
        '"task": {"type": "worker", "index": 0}}'
    )
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"TF_CONFIG is no JSON; {example}") from None
    try:
        kinds, task = values["cluster"], values["task"]
        workers = (*kinds.get("chief", []), *kinds.get("worker", []))
        index, kind = task["index"], task["type"]
    except (KeyError, TypeError, AttributeError):
        raise UsageError(f"TF_CONFIG lacks a cluster or a task; {example}") from None
    if set(kinds) - {"chief", "worker"} or kind not in ("chief", "worker"):
        raise UsageError(
            "TF_CONFIG names tasks other than chief and worker; parameter servers are not supported"
        )
    good = all(isinstance(w, str) and _is_address(w) for w in workers)
    if not workers or not good or len(set(workers)) != len(workers):
        raise UsageError(f"TF_CONFIG: workers must be different host:port; {example}")
    if kind == "worker" and isinstance(index, int):
        index += len(kinds.get("chief", []))
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(workers):
        raise UsageError(f"TF_CONFIG: task index {task['index']!r} names none of its workers")
    return Cluster(workers, index) if len(workers) > 1 else None


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 65536
