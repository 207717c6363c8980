"""Filtered stderr: other lines are printed, and the descriptor is restored."""

import os
import tempfile
import threading

from pipeline.runtime import native_logs


def test_other_lines_are_printed(capfd, monkeypatch):
    with monkeypatch.context() as here:
        here.setattr(tempfile, "tempdir", "/nowhere")  # as where nothing can be written
        with native_logs.held(("noise",)):
            os.write(2, b"noise of a library\na true error\n\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "a true error\nafter\n"


def test_concurrent_threads_restore_the_descriptor(capfd):
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
