"""XLA's cache of compiled programs, as docs/training.md describes it."""

from processes import run_python


def test_a_second_run_uses_the_programs_of_the_first(tmp_path):
    words = [
        "-m",
        "pipeline.fit",
        "digits",
        "--xla",
        "on",
        "--train.steps",
        "3",
        "--no-export",
    ]
    flags = {
        "TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={tmp_path / 'programs'}"
    }
    written = []
    for _ in range(2):
        done = run_python(*words, cwd=tmp_path, env=flags, fresh=True)
        assert done.returncode == 0, done.stderr
        # A program that was compiled again would replace its file.
        written.append(
            {f.name: f.stat().st_mtime_ns for f in (tmp_path / "programs").iterdir()}
        )
    assert written[0] and written[0] == written[1]
