"""Files that people have: read, or refused in one line that names the file."""

import pytest
from image_files import write_good
from processes import run_module


@pytest.fixture
def root(tmp_path):
    return write_good(tmp_path / "insects")


def test_the_command_names_the_file_and_nothing_else(root, tmp_path):
    (root / "ant/page.jpg").write_bytes(b"<html>")
    words = (
        "--source.name",
        "folder",
        "--source.path",
        root,
        "--data.image-size",
        8,
        8,
    )
    done = run_module(
        "pipeline.fit", "digits", *words, "--data.cache", "memory", cwd=tmp_path
    )
    assert done.returncode == 2 and not (tmp_path / "runs").exists()
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ant/page.jpg cannot be decoded: the file")
    assert "Traceback" not in done.stderr
