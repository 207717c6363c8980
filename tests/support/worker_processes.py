"""Several workers of one cluster, as processes of this machine."""

import json
import os
import socket
import threading

import fork_server


def ports(count):
    """Numbers of ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    for listener in sockets:
        listener.bind(("127.0.0.1", 0))
    numbers = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return numbers


def text_of(workers, kind="worker", index=0):
    """A TF_CONFIG."""
    return json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": kind, "index": index}}
    )


class Workers:
    """Processes of one cluster, with their output in files.

    `words` are the arguments of both, `other` those of worker 1 if they differ.
    """

    def __init__(self, words, cwd, other=None):
        addresses = [f"127.0.0.1:{port}" for port in ports(2)]
        self._files = [
            [cwd / f"{i}.{kind}" for kind in ("out", "err")] for i in range(2)
        ]
        self.processes = []
        for index, files in enumerate(self._files):
            env = {**os.environ, "TF_CONFIG": text_of(addresses, index=index)}
            with files[0].open("w") as out, files[1].open("w") as err:
                own = other if index and other else words
                process = fork_server.Process(
                    *own, cwd=cwd, env=env, stdout=out, stderr=err
                )
                self.processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def output(self, index):
        """(exit code, stdout, stderr) of a worker once it has ended."""
        code = self.processes[index].wait(600)
        return code, *(path.read_text() for path in self._files[index])

    def wait_for(self, text):
        """Waits until the chief has printed it."""
        while text not in self._files[0][0].read_text():
            assert all(process.poll() is None for process in self.processes), (
                self.output(0)
            )
            threading.Event().wait(0.1)
