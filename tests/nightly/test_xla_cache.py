"""XLA's cache of compiled programs, as docs/training.md describes it."""

import pytest
from conftest import run_python

pytestmark = pytest.mark.long


def test_a_second_run_uses_the_programs_of_the_first(tmp_path):
    folder, written = tmp_path / "programs", []
    words = ["digits", "--xla", "on", "--train.steps", "3", "--no-export", "--no-progress"]
    flags = {"TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={folder}"}
    for _ in range(2):
        done = run_python("-m", "pipeline.fit", *words, cwd=tmp_path, env=flags, fresh=True)
        assert done.returncode == 0, done.stderr
        # A program that was compiled again would replace its file.
        written.append({file.name: file.stat().st_mtime_ns for file in folder.iterdir()})
    assert written[0] and written[0] == written[1]
