"""docs/tutorial.md, followed word for word in an empty directory; without the
installation, and without Docker.
"""

import re
import shlex

from processes import REPOSITORY, run_python

_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NOT_RUN = ("python3 -m venv", "source ", "(cd saved_models", "pipeline predict http")


def test_the_tutorial_ends_with_a_served_model(tmp_path):
    text = (REPOSITORY / "docs/tutorial.md").read_text(encoding="utf-8")
    printed = {}
    for kind, block in _BLOCK.findall(text):
        words = [("-c", block)]
        if kind == "sh":
            lines = [x for x in block.splitlines() if not x.startswith(_NOT_RUN)]
            words = [("-m", *shlex.split(line)) for line in lines]
        for arguments in words:
            done = run_python(*arguments, cwd=tmp_path)
            assert done.returncode == 0, (arguments, done.stdout, done.stderr)
            assert "Traceback" not in done.stderr
            printed[" ".join(arguments)] = done.stdout
    assert "nothing found" in printed["-m pipeline clean handwritten"]
    first, second = (printed[x] for x in printed if x.startswith("-m pipeline fit"))
    assert "export     saved_models/handwritten/1, verified" in first
    assert float(re.search(r"^test .*? accuracy (\S+)", first, re.M)[1]) > 0.97
    assert "saved_models/handwritten/2, verified" in second
    for path in (
        "inspected/handwritten-1/index.html",
        "runs/handwritten-1/report.html",
    ):
        assert (tmp_path / path).is_file()
    (asked,) = (printed[x] for x in printed if "Client(" in x)
    assert asked.strip() == "['3']"
    (predicted,) = (printed[x] for x in printed if " predict " in x)
    assert "handwritten/3/0003.png" in predicted
    assert "passed all" in printed["-m pipeline verify saved_models/handwritten/1"]
    assert (
        "saved_models/handwritten/1"
        in printed["-m pipeline export handwritten --pin 1"]
    )
