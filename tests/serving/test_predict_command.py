"""The command that asks a model: what it is told, what it prints and leaves behind."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import served_models
import serving
from asking import IMAGES, number
from conftest import REPOSITORY, run_module
from served_models import png

from pipeline import predict
from pipeline.serving.client import Client
from pipeline.utils.errors import UsageError

pytestmark = pytest.mark.usefixtures("direct")


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\0"])
def test_names_are_read_from_a_list(ask, models, pictures, monkeypatch, separator):
    names = [os.fsencode(path) for path in sorted((pictures / "a").iterdir())]
    listed = io.TextIOWrapper(io.BytesIO(separator.join([*names, b""])))
    monkeypatch.setattr(sys, "stdin", listed)
    ran = ask(models / "pictures", "-", "data/b")
    assert ran.code == 0 and [number(r) for r in ran.records] == [0, 2, 4, 6, 8, 1, 3, 5, 7]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_name_may_be_anything(workplace, models, form):
    names = [
        b"\xff.png",
        b"new\nline.png",
        b"re\rturn.png",
        b'"a",b.png',
        b"[1].png",
        b"-.png",
        "ü.png".encode(),
    ]
    for name in names:
        (workplace / os.fsdecode(name)).write_bytes(png(IMAGES[0]))
    words = ["--format", form, models / "pictures", "--", *map(os.fsdecode, names)]
    ran = subprocess.run(
        [sys.executable, "-m", "pipeline.predict", *words],
        # What is printed is UTF-8 all the same.
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    text = ran.stdout.decode()
    if form == "jsonl":
        records = [json.loads(line) for line in text.split("\n")[:-1]]
        assert [os.fsencode(record["file"]) for record in records] == names
    else:
        records = list(csv.DictReader(io.StringIO(text, newline="")))
        wanted = ["\\udcff.png", *(name.decode() for name in names[1:])]
        assert [record["file"] for record in records] == wanted
        assert list(records[0]) == ["file", "label", "class", "probability"]
    assert "ü.png" in text


def test_a_table_has_a_heading_and_columns_for_more_classes(ask, models, pictures):
    ran = ask("--format", "csv", "--top", "2", models / "pictures", "data/a")
    table = list(csv.DictReader(io.StringIO(ran.text)))
    lines = ask("--top", "2", models / "pictures", "data/a").records
    columns = ["file", "label", "class", "probability", "label_2", "probability_2"]
    assert list(table[0]) == columns and len(table) == 5
    for row, line in zip(table, lines, strict=True):
        second = line.pop("top")[1]
        line |= {f"{name}_2": value for name, value in second.items()}
        assert row == {name: str(value) for name, value in line.items()}


def test_output_appears_whole_or_not_at_all(ask, models, pictures, monkeypatch, capsys):
    ran = ask(models / "pictures", "data", "--output", "answers/all.jsonl")
    assert ran.code == 0 and ran.text == ""
    first = (pictures.parent / "answers/all.jsonl").read_text()
    assert len(first.splitlines()) == 9
    real = Client.predict

    def interrupted(client, *words, **inputs):
        if any(pictures.parent.joinpath("answers").glob(".unpublished*")) and calls:
            raise KeyboardInterrupt
        calls.append(words)
        return real(client, *words, **inputs)

    calls = []
    monkeypatch.setattr(Client, "predict", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(models / "pictures", "data/a", "--output", "answers/all.jsonl", "--batch-size", "2")
    assert len(calls) == 1
    answers = pictures.parent / "answers"
    assert sorted(path.name for path in answers.iterdir()) == ["all.jsonl", "all.jsonl.part"]
    assert (answers / "all.jsonl").read_text() == first
    assert first.startswith((answers / "all.jsonl.part").read_text()), "what was answered is kept"
    assert len((answers / "all.jsonl.part").read_text().splitlines()) == 2
    assert "kept       2, " in capsys.readouterr().err
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        ask(models / "pictures", "data/a", "--output", "answers/all.jsonl", "--batch-size", "4")
    assert len((answers / "all.jsonl.part").read_text().splitlines()) == 2, "it stays"
    assert len((answers / "all.jsonl.part2").read_text().splitlines()) == 4
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        ask(models / "pictures", "data/a", "--output", f"answers/{'ü' * 127}", "--batch-size", "4")
    assert (answers / f"{'ü' * 100}.part").is_file(), "a name may have 255 bytes"


@pytest.mark.parametrize("strikes", ["SIGTERM", "SIGHUP", "SIGHUP under nohup"])
def test_a_command_that_is_ended_keeps_its_answers(models, pictures, strikes):
    backend, second = serving.Backend(pictures=models / "pictures/1"), threading.Event()
    real, over = backend.run, threading.Event()

    def run(*request):
        if backend.requests:
            second.set()
            over.wait(60)
        return real(*request)

    backend.run = run
    with serving.rest(backend) as address:
        words = [f"{address}/pictures", "data", "--batch-size", "2", "--output", "all.csv"]
        command = [sys.executable, "-m", "pipeline.predict", *words]
        name, under, _ = strikes.partition(" under nohup")
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        with subprocess.Popen(
            # This process may itself be under nohup.
            ["env", "--default-signal=HUP", *["nohup"] * bool(under), *command],
            cwd=pictures.parent,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert second.wait(60)
            process.send_signal(signal.Signals[name])
            if under:
                over.set()
            said = process.communicate(timeout=60)[1]
        over.set()
    answers = pictures.parent / ("all.csv" if under else "all.csv.part")
    assert process.returncode == (0 if under else 128 + signal.Signals[name]), said
    assert len(answers.read_text().splitlines()) == (10 if under else 3)
    if not under:
        assert said.startswith("kept       2, ") and said.endswith("/all.csv.part\n")
        assert not (pictures.parent / "all.csv").exists()


def test_progress_moves_on_a_terminal(ask, models, pictures, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    (pictures / "a/broken.png").write_bytes(b"none")
    terminal, clock = Terminal(), iter(range(1000))
    monkeypatch.setattr(predict.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(sys, "stderr", terminal)
    ask(models / "pictures", "data")
    shown = terminal.getvalue()
    assert shown.count("\r") == 10 + 2  # each record, and a line cleared for what is said
    assert "\x1b[Kskipped    data/a/broken.png: the file is no" in shown
    assert shown.endswith(" a second\n")


def test_closed_streams_are_no_accident(ask, models, pictures, monkeypatch):
    (pictures / "a/broken.png").write_bytes(b"none")
    monkeypatch.setattr(sys, "stderr", None)
    ran = ask(models / "pictures", "data/a")
    assert ran.code == 1 and len(ran.records) == 5
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(UsageError, match="no stdout to print to; give --output"):
        predict.main([str(models / "pictures"), "data/a"])
    assert predict.main([str(models / "pictures"), "data/a", "--output", "all.jsonl"]) == 1


def test_a_name_does_not_rule_the_terminal(models, workplace, monkeypatch):
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    name = "\x1b]0;title\x07\x9b2J.png"
    (workplace / name).write_bytes(png(IMAGES[0]))
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", Terminal(shown))
    assert predict.main([str(models / "pictures"), name, "--format", "csv"]) == 0
    sys.stdout.flush()
    text = shown.getvalue().decode()
    assert "title" in text and not {"\x1b", "\x07", "\x9b"} & set(text)


def test_the_command_loads_no_tensorflow(pictures, models):
    script = f"""if True:
        import sys
        from pipeline import predict
        assert predict.main([{str(models / "pictures")!r}, "data"]) == 0
        assert not {{"tensorflow", "keras"}} & set(sys.modules)
    """
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=pictures.parent,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(ran.stdout.splitlines()) == 9


@pytest.mark.parametrize("level", ["2", "3"])
def test_the_program_says_nothing_but_what_it_has_to(pictures, models, monkeypatch, level):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)  # 2 lets errors through: there is no GPU
    (pictures / "b/text.jpg").write_bytes(b"none")
    ran = run_module("pipeline.predict", models / "pictures", "data", cwd=pictures.parent)
    assert ran.returncode == 1 and len(ran.stdout.splitlines()) == 9
    skipped, answered = ran.stderr.splitlines()
    assert skipped.startswith("skipped    data/b/text.jpg: ") and answered.startswith("answered ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "MODEL FILES takes a folder such as saved_models/digits"),
        (["{models}/pictures"], "and then files, folders, patterns or -"),
        (["{models}/pictures", "data", "--form", "csv"], "unknown option '--form'; did you mean"),
        (["{models}/pictures", "data", "--format", "xml"], "--format must be one of jsonl, csv"),
        (["{models}/pictures", "data", "--format"], "--format needs a value"),
        (["{models}/pictures", "data", "--top", "0"], "--top must be from 1 to"),
        (["{models}/pictures", "data", "--top", "6"], "--top must be at most 5: .* no more class"),
        (["{models}/rows", "a.npy", "--top", "2"], "--top must be at most 1"),
        (["{models}/pictures", "data", "--batch-size", "x"], "--batch-size must be a whole number"),
        (["{models}/pictures", "data", "--batch-size=-1"], "--batch-size must be from 1"),
        (
            ["{models}/pictures", "data", "--timeout", "nan"],
            "--timeout must be seconds, more than 0",
        ),
        (["{models}/pictures", "data", "--output", "data"], "--output must be a file"),
        (
            ["{models}/pictures", "data", "--output", "data/notes.txt/x"],
            "--output: .* is not a directory",
        ),
        (["nowhere", "data"], "'nowhere' is no folder and no address"),
        (["", "data"], "'' is no folder"),
        (["data", "data"], "holds no exported version"),
        (
            ["http://localhost:8501/digits", "data"],
            "no address of a model; give a folder such as saved_models",
        ),
        (["{models}/rows", "data"], r"data names no files; .*rows takes \*.csv, \*.npy"),
        (["{models}/pictures", "-"], "names no files"),
    ],
)
def test_wrong_words_end_with_one_line(ask, models, pictures, monkeypatch, words, message):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UsageError, match=message) as caught:
        ask(*(word.format(models=models) for word in words))
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_a_model_that_takes_no_files_says_what_it_takes(models, tmp_path):
    import tensorflow as tf

    spec = {"x": tf.TensorSpec((None, 2, 2, 1), tf.uint8)}
    served_models.save(tmp_path / "1", serving_default=(lambda x: {"y": x}, spec))
    with pytest.raises(
        UsageError, match=r"takes x uint8 \[\?, 2, 2, 1\]; pipeline\.serving\.client asks"
    ):
        predict.predict(tmp_path, ["a.png"])


def test_help_names_every_option(workplace):
    ran = run_module("pipeline.predict", "--help", cwd=workplace)
    assert ran.returncode == 0
    for option in ("--format {None,jsonl,csv}", "--output", "--top", "--batch-size", "--timeout"):
        assert option in ran.stdout
