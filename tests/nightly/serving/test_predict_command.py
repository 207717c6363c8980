"""The command `predict`: its arguments, what it prints, and the files it leaves."""

import json
import os
import signal
import threading

import fake_serving
import pytest
from predict_command import IMAGES
from processes import run_python
from served_models import png

pytestmark = pytest.mark.usefixtures("no_proxy")


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


def test_a_signal_keeps_the_answers_so_far(models, pictures):
    """The server stops answering and the command gets SIGTERM."""
    backend = fake_serving.Backend(pictures=models / "pictures/1")
    real, asked, over = backend.run, threading.Event(), threading.Event()

    def run(session, name, inputs):
        if backend.requests:
            asked.set()
            over.wait(60)
        return real(session, name, inputs)

    backend.run = run
    with fake_serving.rest(backend) as address:
        from fork_server import Process

        words = ["data", "--output", "all.jsonl", "--batch-size", "2"]
        command = ["-m", "pipeline.predict", f"{address}/pictures", *words]
        with Process(*command, cwd=pictures.parent) as process:
            assert asked.wait(60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == -signal.SIGTERM
        over.set()
    assert len((pictures.parent / "all.jsonl.part").read_text().splitlines()) == 2
    assert not (pictures.parent / "all.jsonl").exists()
