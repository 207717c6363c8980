"""Training on several machines: reads TF_CONFIG and waits for all workers."""

import contextlib
import dataclasses
import os
import re
import socket
import time
from collections.abc import Mapping

from pipeline.config.config import Config
from pipeline.utils import safe_io
from pipeline.utils.errors import UsageError

# A host name or IPv4 address, and a port: what TensorFlow's servers accept.
_ADDRESS = re.compile(r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}:[1-9][0-9]{0,4}")
_POLL = 0.2  # seconds between two attempts to reach a worker


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a run."""

    workers: tuple[str, ...]
    """host:port of each; only worker 0, the chief, writes and prints."""
    index: int
    """The index of this process."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes and prints."""
        return self.index == 0

    def name(self, index: int) -> str:
        """The name of a worker in messages."""
        return f"worker {index} ({self.workers[index]})"

    def meet(self, seconds: float, token: str) -> None:
        """Waits until every worker has reached every other, with the same `token`.

        TensorFlow itself waits silently for an hour for a missing worker, and forever
        for a worker with another number of steps.

        Raises UsageError naming the workers that are missing after `seconds`, or whose
        token differs.
        """
        peers = set(range(len(self.workers))) - {self.index}
        reached: set[int] = set()
        tokens: dict[int, str] = {}
        end = time.monotonic() + seconds
        with self._listen() as listener:
            while reached != peers or set(tokens) != peers:
                for index in peers - reached:
                    if self._call(index, token):
                        reached.add(index)
                tokens |= _answer(listener)
                if time.monotonic() > end:
                    absent = sorted(peers - (reached & set(tokens)))
                    names = ", ".join(map(self.name, absent))
                    raise UsageError(
                        f"TF_CONFIG: {names} did not respond within {seconds:g}"
                        " seconds; start all workers together, or increase"
                        " --runtime.worker-timeout"
                    )

        if different := sorted(index for index in peers if tokens[index] != token):
            names = ", ".join(map(self.name, different))
            raise UsageError(
                f"TF_CONFIG: {names} was started with other options; use the same for"
                " all workers"
            )

    def _listen(self) -> socket.socket:
        port = self.workers[self.index].rpartition(":")[2]
        try:
            return socket.create_server(("", int(port)), backlog=len(self.workers))
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"TF_CONFIG: {self.name(self.index)}, this process, cannot use its"
                f" port: {error}"
            ) from None

    def _call(self, index: int, token: str) -> bool:
        host, _, port = self.workers[index].rpartition(":")
        try:
            address = (host, int(port))
            with socket.create_connection(address, timeout=_POLL) as connection:
                connection.sendall(f"{self.index} {token}\n".encode())
        except OSError:
            return False
        return True


def _answer(listener: socket.socket) -> dict[int, str]:
    """Returns worker and token of the next connection; empty if none arrives soon."""
    listener.settimeout(_POLL)
    with contextlib.suppress(OSError, ValueError):
        connection, _ = listener.accept()
        with connection, connection.makefile(encoding="ascii") as lines:
            connection.settimeout(_POLL)
            index, token = lines.readline(200).split()
            return {int(index): token}
    return {}


def read(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """Reads TF_CONFIG; returns None if it is not set, or has only one worker.

    Raises UsageError naming the mistake in it.
    """
    text = environment.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        values = safe_io.parse_json(text)
        addresses = values["cluster"]
        task = values["task"]
        workers = (*addresses.get("chief", []), *addresses.get("worker", []))
        good = addresses.keys() <= {"chief", "worker"} and type(task["index"]) is int
        good = good and all(map(_ADDRESS.fullmatch, workers))
        if not good or len({worker.lower() for worker in workers}) != len(workers):
            raise ValueError(text)
        address = addresses[task["type"]][task["index"]]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UsageError(
            'TF_CONFIG must be {"cluster": {"worker": ["host0:port", "host1:port"]},'
            ' "task": {"type": "worker", "index": 0}}, with different chief and worker'
            " tasks only"
        ) from None
    return Cluster(workers, workers.index(address)) if len(workers) > 1 else None


def of_run(config: Config) -> Cluster | None:
    """Reads TF_CONFIG; raises UsageError if this run does not support it."""
    workers = read()
    if workers:
        require_supported(config, "TF_CONFIG names several workers")
    return workers


def require_supported(config: Config, cause: str) -> None:
    """Raises UsageError if several workers cannot carry out this run.

    `cause` says what asks for several workers.
    """
    if config.train.engine == "model_fit":
        raise UsageError(
            f"{cause}, but Keras's fit crashes with more than one; use --train.engine"
            " gradient_tape"
        )
    if config.clean.enabled:
        raise UsageError(
            f"{cause}, which must exclude the same examples: run pipeline clean once,"
            " and use its --clean.manifest for all of them"
        )
    if config.data.folds:
        raise UsageError(
            f"{cause}, but --data.folds trains in one process; use only one of them"
        )
    if config.run_directory is None or config.dry_run:
        raise UsageError(
            f"{cause}, which need a common run: set --run-directory to a directory on a"
            " shared disk, without --dry-run"
        )
