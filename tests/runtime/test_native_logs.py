"""Lines held back from stderr: what is passed on, and that the descriptor comes back."""

import os
import signal
import tempfile
import threading
import warnings

from pipeline.runtime import native_logs


def test_all_but_the_noise_is_passed_on(capfd, monkeypatch):
    with monkeypatch.context() as here:
        here.setattr(tempfile, "tempdir", "/nowhere")  # as where nothing can be written
        with native_logs.held(("noise",)):
            os.write(2, b"noise of a library\na true error\n\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "a true error\nafter\n"


def test_threads_at_once_give_the_descriptor_back(capfd):
    """Each took the other's file for stderr, for the rest of the process."""
    begin = threading.Barrier(4)

    def work():
        begin.wait()
        for _ in range(200):
            with native_logs.held(("noise",)):
                os.write(2, b"noise\n")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_a_child_may_hold_lines_back_that_another_thread_holds_at_the_fork(capfd):
    held, over = threading.Event(), threading.Event()

    def hold():
        with native_logs.held(("noise",)):
            held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other threads are not in the child
        child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends it where it waits for ever
        with native_logs.held(("noise",)):
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    over.set()
    thread.join()
    assert code == 0
