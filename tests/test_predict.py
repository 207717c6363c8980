"""The command that asks a model about files: what it prints, skips, refuses and leaves behind."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import served_models
import serving
from conftest import REPOSITORY, run_module
from served_models import SIDE, png

from pipeline import asked, predict, version_policy
from pipeline.client import Client
from pipeline.errors import UsageError
from pipeline.served import ServingError

IMAGES = np.random.default_rng(2).integers(0, 256, (9, SIDE, SIDE, 3), np.uint8)
pytestmark = pytest.mark.usefixtures("direct")


@pytest.fixture
def pictures(workplace):
    """Nine pictures in data/, in two folders, among what is none."""
    for at, image in enumerate(IMAGES):
        path = workplace / "data" / "ab"[at % 2] / f"bild ü{at}.{'PNG' if at == 3 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(image))
    (workplace / "data/notes.txt").write_text("none")
    (workplace / "data/.hidden.png").write_bytes(b"none")
    return workplace / "data"


@pytest.fixture(scope="module")
def here(models):
    return Client(models / "pictures/1")


@pytest.fixture(scope="module")
def labels(here):
    """Of the pictures, by number."""
    return here.predict(images=IMAGES)["label"].tolist()


class Ran:
    """Exit code, records, and what was said beside, of the command run in this process."""

    def __init__(self, capsys, *words):
        self.code = predict.main([str(word) for word in words])
        self.text, self.said = capsys.readouterr()

    @property
    def records(self):
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def run(capsys, monkeypatch):
    # The stream of a test cannot be changed to UTF-8: it is.
    monkeypatch.setattr(sys.stdout, "reconfigure", lambda **_: None, raising=False)
    return lambda *words: Ran(capsys, *words)


def number(record):
    return int(record["file"].partition("ü")[2].partition(".")[0])


def test_a_folder_is_answered_in_order_of_its_names(run, models, pictures, labels):
    ran = run(models / "pictures", "data", "--batch-size", "4")
    assert ran.code == 0 and "skipped" not in ran.said
    assert [number(record) for record in ran.records] == [0, 2, 4, 6, 8, 1, 3, 5, 7]
    for record in ran.records:
        assert set(record) == {"file", "label", "class", "probability"}
        assert os.path.exists(record["file"])
        assert record["label"] == labels[number(record)] == served_models.CLASSES[record["class"]]
    assert ran.said.startswith("answered   9, ")


def test_the_pinned_version_answers_as_behind_a_server(run, models, pictures, tmp_path):
    model = tmp_path / "pinned"
    for version in ("1", "2"):
        shutil.copytree(models / "pictures/1", model / version)
    (model / "2/saved_model.pb").write_bytes(b"broken")
    with pytest.raises(UsageError, match="pinned/2: "):
        run(model, "data")
    version_policy.pin(model, 1)
    assert run(model, "data").code == 0


def test_links_are_followed_once(pictures, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "far.png").touch()
    (pictures / "a/link").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(pictures)
    (elsewhere / "self").symlink_to(elsewhere)
    names = asked.named(["data"], asked.IMAGES)
    assert [name for name in names if "link" in name] == ["data/a/link/far.png"]
    assert len(names) == 10


def test_the_most_probable_classes(run, models, pictures, here):
    ran = run(models / "pictures/1", "data/a/*.png", "--top=3")
    wanted = here.predict(images=IMAGES[::2])
    assert len(ran.records) == 5
    for at, record in enumerate(ran.records):
        assert [one["label"] for one in record["top"]] == wanted["top_labels"][at, :3].tolist()
        shares = [one["probability"] for one in record["top"]]
        np.testing.assert_allclose(shares, wanted["top_scores"][at, :3], rtol=1e-6)
        assert shares[0] == record["probability"] == max(shares)


@pytest.mark.parametrize("form", ["rest", "rpc"])
def test_a_server_gives_the_same_lines(run, models, pictures, form):
    if form == "rpc":
        reason = "gRPC needs the extra serving (tensorflow-serving-api)"
        pytest.importorskip("tensorflow_serving.apis.predict_pb2", reason=reason)
    (pictures / "a/broken.png").write_bytes(b"none")
    here = run(models / "pictures", "data", "--top", "5")
    backend = serving.Backend(pictures=models / "pictures/1")
    with getattr(serving, form)(backend) as address:
        there = run(f"{address}/pictures", "data", "--top", "5")
    assert there.code == here.code == 1
    assert len(there.records) == 9
    for one, other in zip(there.records, here.records, strict=True):
        assert one.keys() == other.keys() and one["file"] == other["file"]
        assert one["label"] == other["label"]
        assert one["probability"] == pytest.approx(other["probability"], rel=1e-5)
    assert [line for line in there.said.splitlines() if "skipped  " in line] == [
        line for line in here.said.splitlines() if "skipped  " in line
    ]


def test_what_is_broken_is_named_and_the_rest_answered(run, models, pictures, labels):
    whole = (pictures / "a/bild ü0.png").read_bytes()
    (pictures / "a/cut.png").write_bytes(whole[: len(whole) // 2])
    (pictures / "a/empty.png").write_bytes(b"")
    (pictures / "b/text.jpg").write_bytes(b"none")
    (pictures / "b/circle.png").symlink_to("circle.png")
    os.mkfifo(pictures / "b/pipe.png")
    backend = serving.Backend(pictures=models / "pictures/1")
    with serving.rest(backend) as address:
        ran = run(f"{address}/pictures", "data", "gone.png", "--batch-size", "8")
    assert ran.code == 1
    assert [labels[number(record)] for record in ran.records] == [r["label"] for r in ran.records]
    assert len(ran.records) == 9
    skipped = dict(
        line.removeprefix("skipped    ").split(": ", 1)
        for line in ran.said.splitlines()
        if line.startswith("skipped ")
    )
    kind = "the file is no JPEG, PNG, GIF, BMP or WebP image"
    assert skipped.pop("data/a/cut.png")
    assert skipped == {
        "data/a/empty.png": kind,
        "data/b/text.jpg": kind,
        "data/b/circle.png": "Too many levels of symbolic links",
        "data/b/pipe.png": "it is no regular file",
        "gone.png": "No such file or directory",
    }
    assert "answered   9, 6 skipped" in ran.said


def test_one_broken_file_costs_few_requests(models):
    backend = serving.Backend(pictures=models / "pictures/1")
    items = [asked.Item({"file": str(at)}, png(IMAGES[at % 9])) for at in range(32)]
    items[13] = asked.Item({"file": "13"}, b"broken")
    with serving.rest(backend) as address:
        question = predict.Question(Client(f"{address}/pictures"), 1)
        records = question._ask(items)
    assert [r["file"] for r in records if "error" in r] == ["13"]
    assert [r["file"] for r in records] == [str(at) for at in range(32)]
    assert len(backend.requests) == 1 + 2 * 5  # it is found by halves


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\0"])
def test_names_are_read_from_a_list(run, models, pictures, monkeypatch, separator):
    names = [os.fsencode(path) for path in sorted((pictures / "a").iterdir())]
    listed = io.TextIOWrapper(io.BytesIO(separator.join([*names, b""])))
    monkeypatch.setattr(sys, "stdin", listed)
    ran = run(models / "pictures", "-", "data/b")
    assert ran.code == 0 and [number(r) for r in ran.records] == [0, 2, 4, 6, 8, 1, 3, 5, 7]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_name_may_be_anything(workplace, models, form):
    names = [b"\xff.png", b"new\nline.png", b'"a",b.png', b"[1].png", b"-.png", "ü.png".encode()]
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


def test_a_table_has_a_heading_and_columns_for_more_classes(run, models, pictures):
    ran = run("--format", "csv", "--top", "2", models / "pictures", "data/a")
    table = list(csv.DictReader(io.StringIO(ran.text)))
    lines = run("--top", "2", models / "pictures", "data/a").records
    columns = ["file", "label", "class", "probability", "label_2", "probability_2"]
    assert list(table[0]) == columns and len(table) == 5
    for row, line in zip(table, lines, strict=True):
        second = line.pop("top")[1]
        line |= {f"{name}_2": value for name, value in second.items()}
        assert row == {name: str(value) for name, value in line.items()}


def test_output_appears_whole_or_not_at_all(run, models, pictures, monkeypatch):
    ran = run(models / "pictures", "data", "--output", "answers/all.jsonl")
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
        run(models / "pictures", "data/a", "--output", "answers/all.jsonl", "--batch-size", "2")
    assert len(calls) == 1
    assert [path.name for path in (pictures.parent / "answers").iterdir()] == ["all.jsonl"]
    assert (pictures.parent / "answers/all.jsonl").read_text() == first


def test_a_server_that_goes_away_ends_the_command(run, models, pictures, capsys):
    backend = serving.Backend(pictures=models / "pictures/1")
    real = backend.run

    def full(session, name, inputs):
        if backend.requests:
            raise serving.Refused("INTERNAL", "it has gone")
        return real(session, name, inputs)

    backend.run = full
    with (
        serving.rest(backend) as address,
        pytest.raises(ServingError, match="INTERNAL: it has gone"),
    ):
        run(f"{address}/pictures", "data", "--batch-size", "2")
    assert len(capsys.readouterr().out.splitlines()) == 2, "what was answered stays"


def test_rows_of_tables_are_answered(run, models, workplace):
    (workplace / "a.csv").write_text("x,y,z\n1,2,3\n\n4,five,6\n1,2\n0.1,0,-0e0\nnan,1,1\n")
    np.save(workplace / "b.npy", np.array([[1, 2, 3], [4, 5, 6]]))
    np.save(workplace / "flat.npy", np.zeros(3))
    (workplace / "c.csv").write_bytes(b"\xff\xfe1,2,3")
    ran = run(models / "rows", ".")
    assert ran.code == 1
    assert ran.records == [
        {"file": "./a.csv", "row": 0, "prediction": 6.0},
        {"file": "./a.csv", "row": 3, "prediction": 0.1},
        {"file": "./b.npy", "row": 0, "prediction": 6.0},
        {"file": "./b.npy", "row": 1, "prediction": 15.0},
    ]
    said = ran.said.splitlines()
    assert said[0] == "skipped    ./a.csv row 1: 'five' is no number"
    assert said[1] == "skipped    ./a.csv row 2: it has 2 numbers, and the model takes 3"
    assert said[2].startswith("skipped    ./a.csv row 4: ") and "not finite" in said[2]
    assert said[3] == "skipped    ./c.csv: it is no text in UTF-8"
    assert said[4] == "skipped    ./flat.npy: it holds no array of numbers (rows, features)"
    table = run(models / "rows", "b.npy", "--format", "csv")
    assert table.text == "file,row,prediction\nb.npy,0,6.0\nb.npy,1,15.0\n"


def test_objects_in_an_array_are_never_unpickled(run, models, workplace):
    np.save(workplace / "b.npy", np.array([[1, "x", None]], object), allow_pickle=True)
    assert run(models / "rows", "b.npy").code == 1


def test_requests_are_bounded_in_examples_and_bytes(monkeypatch):
    monkeypatch.setattr(asked, "_MOST_TOGETHER", 10)
    items = [asked.Item({}, bytes(size)) for size in (4, 4, 4, 11, 1, 1, 1, 1)]
    lengths = [[len(item.value) for item in batch] for batch in asked.batches(items, 3)]
    assert lengths == [[4, 4], [4], [11], [1, 1, 1], [1]]
    assert list(asked.ahead(asked.batches(items, 3))) == list(asked.batches(items, 3))


def test_a_file_that_is_too_long_is_not_read(run, models, pictures, monkeypatch):
    monkeypatch.setattr(asked, "_MOST_BYTES", 50)
    ran = run(models / "pictures", "data/a")
    assert ran.code == 1 and "it is longer than 50 bytes" in ran.said


def test_in_python_what_cannot_be_read_is_a_record(models, pictures, labels):
    records = list(predict.predict(models / "pictures", [pictures / "a", "gone.png"], top=2))
    assert [r["label"] for r in records[:5]] == labels[::2] and len(records[0]["top"]) == 2
    assert records[5] == {"file": "gone.png", "error": "No such file or directory"}


def test_progress_moves_on_a_terminal(run, models, pictures, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    (pictures / "a/broken.png").write_bytes(b"none")
    terminal, clock = Terminal(), iter(range(1000))
    monkeypatch.setattr(predict.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(sys, "stderr", terminal)
    run(models / "pictures", "data")
    shown = terminal.getvalue()
    assert shown.count("\r") == 10 + 2  # each record, and a line cleared for what is said
    assert "\x1b[Kskipped    data/a/broken.png: the file is no" in shown
    assert shown.endswith(" a second\n")


def test_closed_streams_are_no_accident(run, models, pictures, monkeypatch):
    (pictures / "a/broken.png").write_bytes(b"none")
    monkeypatch.setattr(sys, "stderr", None)
    ran = run(models / "pictures", "data/a")
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
        (["{models}/pictures", "data", "--output", "data/notes.txt/x"], "--output: .* is a file"),
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
def test_wrong_words_end_with_one_line(run, models, pictures, monkeypatch, words, message):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UsageError, match=message) as caught:
        run(*(word.format(models=models) for word in words))
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_a_model_that_takes_no_files_says_what_it_takes(models, tmp_path):
    import tensorflow as tf

    spec = {"x": tf.TensorSpec((None, 2, 2, 1), tf.uint8)}
    served_models.save(tmp_path / "1", serving_default=(lambda x: {"y": x}, spec))
    with pytest.raises(UsageError, match=r"takes x uint8 \[\?, 2, 2, 1\]; pipeline\.client asks"):
        predict.predict(tmp_path, ["a.png"])


def test_help_names_every_option(workplace):
    ran = run_module("pipeline.predict", "--help", cwd=workplace)
    assert ran.returncode == 0
    for option in ("--format {None,jsonl,csv}", "--output", "--top", "--batch-size", "--timeout"):
        assert option in ran.stdout
