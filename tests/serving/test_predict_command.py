"""The command `predict`: its arguments, what it prints, and the files it leaves."""

import csv
import io
import json
import os
import signal
import sys
import threading

import numpy as np
import pytest
import served_models
import serving
from asking import IMAGES, number
from conftest import run_module, run_python
from served_models import png

from pipeline import predict
from pipeline.serving.client import Client
from pipeline.serving.signatures import ServingError
from pipeline.utils.errors import UsageError

pytestmark = pytest.mark.usefixtures("direct")


@pytest.fixture(scope="module")
def wanted(models):
    return Client(models / "pictures/1").predict(images=IMAGES)


def test_images_are_answered_in_order(ask, models, pictures, wanted):
    ran = ask(models / "pictures", "data", "--batch-size", "4", "--top=3")
    assert ran.code == 0 and [number(r) for r in ran.records] == [0, 2, 4, 6, 8, 1, 3, 5, 7]
    for record in ran.records:
        index = number(record)
        assert record["label"] == wanted["label"][index] == served_models.CLASSES[record["class"]]
        assert [one["label"] for one in record["top"]] == wanted["top_labels"][index, :3].tolist()
        shares = [one["probability"] for one in record["top"]]
        np.testing.assert_allclose(shares, wanted["top_scores"][index, :3], rtol=1e-6)
        assert shares[0] == record["probability"]
    assert ran.said == "answered   9\n"


@pytest.mark.parametrize("form", ["rest", "rpc"])
def test_a_server_gives_the_same_answers(ask, models, pictures, form):
    (pictures / "a/broken.png").write_bytes(b"none")
    here = ask(models / "pictures", "data")
    with getattr(serving, form)(serving.Backend(pictures=models / "pictures/1")) as address:
        there = ask(f"{address}/pictures", "data")
    assert there.code == here.code == 1 and len(there.records) == 9
    for one, other in zip(there.records, here.records, strict=True):
        assert one == {**other, "probability": pytest.approx(other["probability"], rel=1e-5)}
    assert there.said.splitlines()[0] == here.said.splitlines()[0]
    assert ", 1 skipped" in there.said


@pytest.mark.parametrize("separator", [b"\n", b"\0"])
def test_names_are_read_from_stdin(ask, models, pictures, monkeypatch, separator):
    names = [os.fsencode(path) for path in sorted((pictures / "a").iterdir())]
    listed = io.TextIOWrapper(io.BytesIO(separator.join([*names, b""])))
    monkeypatch.setattr(sys, "stdin", listed)
    ran = ask(models / "pictures", "-", "data/b")
    assert ran.code == 0 and [number(r) for r in ran.records] == [0, 2, 4, 6, 8, 1, 3, 5, 7]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_names_may_contain_anything(workplace, models, form):
    """In a process without Python TensorFlow, whose stdout is not UTF-8."""
    names = [b"\xff.png", b"new\nline.png", b'"a",b.png', b"[1].png", b"-.png", "ü.png".encode()]
    for name in names:
        (workplace / os.fsdecode(name)).write_bytes(png(IMAGES[0]))
    script = f"""if True:
        import sys
        from pipeline import predict
        assert predict.main({[str(models / "pictures"), "--format", form]} + sys.argv[1:]) == 0
        assert not {{"tensorflow", "keras"}} & set(sys.modules)
    """
    words = map(os.fsdecode, [b"--", *names])
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = run_python("-c", script, *words, cwd=workplace, env=environment, fresh=True)
    assert ran.returncode == 0, ran.stderr
    if form == "jsonl":
        records = [json.loads(line) for line in ran.stdout.split("\n")[:-1]]
        assert [os.fsencode(record["file"]) for record in records] == names
    else:
        records = list(csv.DictReader(io.StringIO(ran.stdout, newline="")))
        assert [r["file"] for r in records] == ["\\udcff.png", *(n.decode() for n in names[1:])]


def test_a_table_has_a_header_and_columns_for_more_classes(ask, models, pictures):
    ran = ask("--format", "csv", "--top", "2", models / "pictures", "data/a")
    table = list(csv.DictReader(io.StringIO(ran.text)))
    lines = ask("--top", "2", models / "pictures", "data/a").records
    columns = ["file", "label", "class", "probability", "label_2", "probability_2"]
    assert list(table[0]) == columns and len(table) == 5
    for row, line in zip(table, lines, strict=True):
        line |= {f"{name}_2": value for name, value in line.pop("top")[1].items()}
        assert row == {name: str(value) for name, value in line.items()}


def test_output_is_complete_or_the_answers_so_far_are_kept(ask, models, pictures, capsys):
    answers = pictures.parent / "answers"
    answers.mkdir()
    (answers / "link.csv").symlink_to("all.csv")
    assert ask(models / "pictures", "data", "--output", "answers/link.csv").text == ""
    first = (answers / "all.csv").read_text()
    assert first.startswith("file,label,") and len(first.splitlines()) == 10
    backend = serving.Backend(pictures=models / "pictures/1")
    real = backend.run

    def stops(session, name, inputs):
        if backend.requests:
            raise serving.Refused("INTERNAL", "it has stopped")
        return real(session, name, inputs)

    backend.run = stops
    words = ["data", "--output", "answers/all.csv", "--batch-size", "2"]
    with serving.rest(backend) as address, pytest.raises(ServingError, match="it has stopped"):
        ask(f"{address}/pictures", *words)
    assert sorted(p.name for p in answers.iterdir()) == ["all.csv", "all.csv.part", "link.csv"]
    assert (answers / "all.csv").read_text() == first
    part = (answers / "all.csv.part").read_text()
    assert first.startswith(part) and len(part.splitlines()) == 3
    assert "kept       the answers so far, in " in capsys.readouterr().err


def test_a_signal_keeps_the_answers_so_far(models, pictures):
    """The server stops answering and the command gets SIGTERM."""
    backend = serving.Backend(pictures=models / "pictures/1")
    real, asked, over = backend.run, threading.Event(), threading.Event()

    def run(session, name, inputs):
        if backend.requests:
            asked.set()
            over.wait(60)
        return real(session, name, inputs)

    backend.run = run
    with serving.rest(backend) as address:
        from fork_server import Process

        words = ["data", "--output", "all.jsonl", "--batch-size", "2"]
        command = ["-m", "pipeline.predict", f"{address}/pictures", *words]
        with Process(*command, cwd=pictures.parent) as process:
            assert asked.wait(60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        over.set()
    assert len((pictures.parent / "all.jsonl.part").read_text().splitlines()) == 2
    assert not (pictures.parent / "all.jsonl").exists()


def test_names_do_not_control_the_terminal(models, workplace, monkeypatch):
    name = "\x1b]0;title\x07\x9b2J.png"
    (workplace / name).write_bytes(png(IMAGES[0]))
    terminal = io.TextIOWrapper(io.BytesIO())
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    assert predict.main([str(models / "pictures"), name, "--format", "csv"]) == 0
    terminal.flush()
    text = terminal.buffer.getvalue().decode()
    assert "title" in text and not {"\x1b", "\x07", "\x9b"} & set(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "MODEL FILES takes a directory such as saved_models/digits"),
        (["{models}/pictures"], "and then files, directories, patterns or -"),
        (["{models}/pictures", "data", "--form", "csv"], "unknown option '--form'; did you mean"),
        (["{models}/pictures", "data", "--format", "xml"], "--format must be .*jsonl.*csv"),
        (["{models}/pictures", "data", "--format"], "--format needs a value"),
        (["{models}/pictures", "data", "--top", "0"], "--top must be .*1"),
        (["{models}/pictures", "data", "--top", "6"], "--top must be at most 5, the classes that"),
        (["{models}/rows", "a.npy", "--top", "2"], "--top must be at most 1"),
        (["{models}/pictures", "data", "--batch-size=-1"], "--batch-size must be .*1"),
        (["{models}/pictures", "data", "--timeout", "nan"], "--timeout must be"),
        (["{models}/pictures", "data", "--output", "data"], "--output must be a file"),
        (
            ["{models}/pictures", "data", "--output", "data/notes.txt/x"],
            "--output: .* is not a dir",
        ),
        (["nowhere", "data"], "'nowhere' is not a directory or address"),
        (["data", "data"], "contains no versions"),
        (["http://localhost:8501/digits", "data"], "is not a directory or address; give a dir"),
        (["{models}/rows", "data"], r"data contains no files; .*rows takes \*.csv, \*.npy"),
        (["{models}/pictures", "-"], "contains no files"),
    ],
)
def test_wrong_words_are_one_line(ask, models, pictures, monkeypatch, words, message):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UsageError, match=message) as caught:
        ask(*(word.format(models=models) for word in words))
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_the_program_prints_nothing_else(pictures, models):
    (pictures / "b/text.jpg").write_bytes(b"none")
    ran = run_module("pipeline.predict", models / "pictures", "data", cwd=pictures.parent)
    assert ran.returncode == 1 and len(ran.stdout.splitlines()) == 9
    skipped, answered = ran.stderr.splitlines()
    assert skipped.startswith("skipped    data/b/text.jpg: ") and answered.startswith("answered ")


def test_help_names_every_option(ask):
    ran = ask("--help")
    assert ran.code == 0
    for option in ("MODEL", "--format", "--output", "--top", "--batch-size", "--timeout"):
        assert option in ran.text
