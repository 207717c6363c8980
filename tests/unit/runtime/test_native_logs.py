"""Filtered stderr: other lines are printed, and the descriptor is restored."""

import os
import tempfile

from pipeline.runtime import native_logs


def test_other_lines_are_printed(capfd, monkeypatch):
    with monkeypatch.context() as here:
        here.setattr(tempfile, "tempdir", "/nowhere")  # as where nothing can be written
        with native_logs.filter_stderr(("noise",)):
            os.write(2, b"noise of a library\na true error\n\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "a true error\nafter\n"
