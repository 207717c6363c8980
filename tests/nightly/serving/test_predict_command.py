"""The command `predict`: its arguments, what it prints, and the files it leaves."""

import json
import os

import pytest
from predict_command import IMAGES
from processes import run_python
from served_models import png

pytestmark = pytest.mark.usefixtures("direct")


def test_names_may_contain_anything(workplace, models):
    """In a process without Python TensorFlow, whose stdout is not UTF-8."""
    names = [
        b"\xff.png",
        b"new\nline.png",
        b'"a",b.png',
        b"[1].png",
        b"./-.png",
        "ü.png".encode(),
    ]
    for name in names:
        (workplace / os.fsdecode(name)).write_bytes(png(IMAGES[0]))
    script = f"""if True:
        import sys
        from pipeline import predict
        assert predict.main({[str(models / "pictures")]} + sys.argv[1:]) == 0
        assert not {{"tensorflow", "keras"}} & set(sys.modules)
    """
    words = map(os.fsdecode, names)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = run_python("-c", script, *words, cwd=workplace, env=environment, fresh=True)
    assert ran.returncode == 0, ran.stderr
    records = [json.loads(line) for line in ran.stdout.split("\n")[:-1]]
    assert [os.fsencode(record["file"]) for record in records] == names
