"""Workers that wait for one another, and compare what they are."""

import dataclasses
import json
import queue
import re
import signal
import socket
import threading

import pytest
from worker_processes import ports

from pipeline.runtime import rendezvous
from pipeline.runtime.cluster import Cluster
from pipeline.utils.errors import UsageError, WorkerLost

VERSIONS = {"pipeline": "1.0", "numpy": "2.0"}


@pytest.fixture
def pair(tmp_path):
    """Two workers of a run."""
    addresses = tuple(f"127.0.0.1:{port}" for port in ports(2))
    return [Cluster(addresses, i, run=tmp_path / "run") for i in (0, 1)]


def errors(
    workers, versions=(VERSIONS, VERSIONS), gpus=((), ()), before_next=lambda: None
):
    """What each worker raises when they meet; None if it raises nothing.

    Calls `before_next` after the start of each.
    """
    found = [None, None]
    met = []

    def meet(number):
        try:
            met.append(
                rendezvous.meet(
                    workers[number], 20, versions[number], list(gpus[number])
                )
            )
        except (UsageError, WorkerLost) as error:
            found[number] = error

    threads = [threading.Thread(target=meet, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
        before_next()
    for thread in threads:
        thread.join()
    for peers in met:
        peers.close()
    return found


def changed(pair, **values):
    return [pair[0], dataclasses.replace(pair[1], **values)]


def test_workers_that_are_alike_meet(pair, tmp_path):
    assert errors(pair, gpus=(["GPU-1"], ["GPU-2"])) == [None, None]
    assert list((tmp_path / "run").iterdir()) == []


DIFFERENCES = {
    "options": "use the same for all workers, or for independent runs, unset TF_CONFIG",
    "version": "install the same version for all workers",
    "gpu": "use the same GPU GPU-1; give each worker its own",
    "run": "worker 1 (",
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_workers_that_differ_are_refused_with_the_reason(pair, tmp_path, name):
    """All of them, by one line; TensorFlow would wait forever, or fail later."""
    if name == "options":
        found = errors(changed(pair, options="other"))
    elif name == "version":
        found = errors(pair, versions=(VERSIONS, {**VERSIONS, "numpy": "2.1"}))
        assert "numpy 2." in str(found[0])
    elif name == "gpu":
        found = errors(pair, gpus=(["GPU-1"], ["GPU-0", "GPU-1"]))
    else:
        found = errors(changed(pair, run=tmp_path / "other"))
        assert "the same directory, on a disk that all workers share" in str(found[0])
    for error in found:
        assert isinstance(error, UsageError) and error.exit_code == 2
        assert DIFFERENCES[name] in str(error) and "\n" not in str(error)


def test_a_worker_that_is_missing_is_named_with_the_reason(pair, monkeypatch, capsys):
    """At first by the chief in a line; a name may be unknown, or a port closed."""
    monkeypatch.setattr(rendezvous, "_SILENT", 0)
    name = r"worker 1 \(127.0.0.1:\d+\) \(Connection refused\)"
    with pytest.raises(UsageError, match=f"TF_CONFIG: {name} did not respond within 1"):
        rendezvous.meet(pair[0], 1, VERSIONS, [])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and re.match(rf"waiting +for {name}", lines[0])


@pytest.mark.parametrize("index", [0, 2])
def test_workers_with_the_same_index_or_other_lists_are_refused(pair, index):
    """Such as one TF_CONFIG for all; they would wait for a worker that is not there."""
    peers = rendezvous.Connections(pair[1])
    line = json.dumps({"worker": index}).encode() + b"\n"

    def call():
        while not peers._outgoing:
            peers._call(0, line)

    thread = threading.Thread(target=call)
    thread.start()
    expected = f"with the index {index} has connected to worker 0 .* index of its own"
    with pytest.raises(UsageError, match=expected):
        rendezvous.meet(pair[0], 100, VERSIONS, [])
    thread.join()
    peers.close()


def test_a_port_that_is_used_is_named(pair):
    host, port = pair[0].workers[0].split(":")
    with socket.create_server((host, int(port))):
        expected = r"worker 0 \(127.0.0.1:\d+\), this process, cannot use its port"
        with pytest.raises(UsageError, match=expected):
            rendezvous.meet(pair[0], 20, VERSIONS, [])


def test_a_server_that_is_still_ending_is_not_taken_for_a_worker(pair):
    """Such as TensorFlow's of the last attempt, in place of a worker that starts."""
    host, port = pair[1].workers[1].split(":")
    server = socket.create_server((host, int(port)))

    def answer_once():
        if server.fileno() > 0:
            server.accept()[0].close()
            server.close()

    assert errors(pair, before_next=answer_once) == [None, None]


def test_a_worker_that_ends_while_it_waits_is_named_at_once(pair):
    """After it was reached; other programs that connect to the port are ignored."""
    host, port = pair[0].workers[0].split(":")
    raised = queue.Queue()

    def meet():
        try:
            raised.put(rendezvous.meet(pair[0], 20, VERSIONS, []))
        except BaseException as error:
            raised.put(error)

    thread = threading.Thread(target=meet, daemon=True)
    thread.start()
    for line in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"worker": 1}\n'):
        while True:
            try:
                connection = socket.create_connection((host, int(port)))
                break
            except ConnectionRefusedError:  # the thread has not opened it yet
                assert thread.is_alive()
        with connection:
            connection.sendall(line)
    error = raised.get(timeout=20)
    assert isinstance(error, WorkerLost) and error.exit_code == 5


def meet_both(pair):
    """The first worker's rendezvous, and a queue with the other's."""
    peers = queue.Queue()
    other = threading.Thread(
        target=lambda: peers.put(rendezvous.meet(pair[1], 20, VERSIONS, []))
    )
    other.start()
    own = rendezvous.meet(pair[0], 20, VERSIONS, [])
    other.join(20)
    return own, peers


def test_the_end_of_a_worker_aborts_what_the_others_exchange(pair, monkeypatch):
    aborted = queue.Queue()
    monkeypatch.setattr(rendezvous, "_GRACE", 0)
    monkeypatch.setattr(
        rendezvous.context.Context,
        "abort_collective_ops",
        lambda self, code, message: aborted.put(message),
    )
    own, peers = meet_both(pair)
    own.started()
    own.watch()
    assert aborted.empty()
    peers.get(timeout=20).close()
    assert "task:1" in aborted.get(timeout=20)
    own.close()


def test_the_end_of_a_worker_is_a_signal_while_native_code_waits(pair):
    """TensorFlow holds Python's lock then; by default, SIGIO ends the process."""
    own, peers = meet_both(pair)
    received = threading.Event()
    before = signal.signal(signal.SIGIO, lambda *_: received.set())
    try:
        with own.ending_together():
            assert not received.is_set()
            peers.get(timeout=20).close()
            assert received.wait(20)
        with pytest.raises(WorkerLost), own.ending_together():
            pass
    finally:
        signal.signal(signal.SIGIO, before)
        own.close()
