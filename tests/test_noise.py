"""Lines held back from stderr: what is passed on, and that the descriptor comes back."""

import contextlib
import os
import signal
import sys
import tempfile
import threading
import warnings

from pipeline import noise


@contextlib.contextmanager
def errors(path):
    """A file in the place of descriptor 2, inside the test: pytest changes it between the two."""
    saved = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def test_all_but_the_noise_is_passed_on(tmp_path, monkeypatch):
    path = tmp_path / "stderr"
    with errors(path), open(2, "w", closefd=False) as stream, monkeypatch.context() as here:
        here.setattr(sys, "stderr", stream)
        here.setattr(tempfile, "tempdir", "/nowhere")  # as where nothing can be written
        with noise.held(("noise",)):
            os.write(2, b"noise of a library\na true error\n\n")
        stream.flush()
        os.write(2, b"after\n")
    assert path.read_text() == "a true error\nafter\n"


def test_threads_at_once_give_the_descriptor_back(tmp_path):
    """Each took the other's file for stderr, for the rest of the process."""
    begin = threading.Barrier(4)

    def work():
        begin.wait()
        for _ in range(200):
            with noise.held(("noise",)):
                os.write(2, b"noise\n")

    threads = [threading.Thread(target=work) for _ in range(4)]
    with errors(tmp_path / "stderr"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.write(2, b"after\n")
    assert (tmp_path / "stderr").read_text() == "after\n"


def test_a_child_may_hold_lines_back_that_another_thread_holds_at_the_fork(tmp_path):
    held, over = threading.Event(), threading.Event()

    def hold():
        with noise.held(("noise",)):
            held.set()
            over.wait(60)

    with errors(tmp_path / "stderr"):
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(60)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that other threads are not in the child
            child = os.fork()
        if child == 0:
            signal.alarm(10)  # ends it where it waits for ever
            with noise.held(("noise",)):
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        over.set()
        thread.join()
    assert code == 0
