"""Files that a model is asked about: what is answered, skipped and refused."""

import os
import shutil

import numpy as np
import pytest
import served_models
import serving
from asking import IMAGES, number
from served_models import png

from pipeline import predict
from pipeline.serving import file_inputs, models_config
from pipeline.serving.client import Client
from pipeline.serving.signatures import ServingError
from pipeline.utils.errors import UsageError

pytestmark = pytest.mark.usefixtures("direct")


@pytest.fixture(scope="module")
def here(models):
    return Client(models / "pictures/1")


@pytest.fixture(scope="module")
def labels(here):
    """Of the pictures, by number."""
    return here.predict(images=IMAGES)["label"].tolist()


def test_a_folder_is_answered_in_order_of_its_names(ask, models, pictures, labels):
    ran = ask(models / "pictures", "data", "--batch-size", "4")
    assert ran.code == 0 and "skipped" not in ran.said
    assert [number(record) for record in ran.records] == [0, 2, 4, 6, 8, 1, 3, 5, 7]
    for record in ran.records:
        assert set(record) == {"file", "label", "class", "probability"}
        assert os.path.exists(record["file"])
        assert record["label"] == labels[number(record)] == served_models.CLASSES[record["class"]]
    assert ran.said.startswith("answered   9, ")


def test_images_that_no_model_takes_are_noted(ask, models, pictures):
    for name in ("a/one.HEIC", "b/two.tiff", "b/notes.txt", "b/.three.tif"):
        (pictures / name).write_bytes(b"")
    ran = ask(models / "pictures", "data", "data/*/**", "data/*.bmp")
    assert ran.code == 1 and len(ran.records) == 18
    note, skipped, _ = ran.said.splitlines()
    expected = "note       2 files passed by, such as data/a/one.HEIC; taken are *.jpg, "
    assert note.startswith(expected)
    (pictures / "others").mkdir()
    (pictures / "others/four.jxl").touch()
    with pytest.raises(UsageError, match="data/others names no files"):
        ask(models / "pictures", "data/others")
    why = "no file is named so, and none fits the pattern"
    assert skipped == f"skipped    data/*.bmp: {why}"


def test_the_pinned_version_answers_as_behind_a_server(ask, models, pictures, tmp_path):
    model = tmp_path / "pinned"
    for version in ("1", "2"):
        shutil.copytree(models / "pictures/1", model / version)
    (model / "2/saved_model.pb").write_bytes(b"broken")
    with pytest.raises(UsageError, match="pinned/2: "):
        ask(model, "data")
    models_config.pin(model, 1)
    assert ask(model, "data").code == 0


def test_links_are_followed_once(pictures, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "far.png").touch()
    (pictures / "a/link").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(pictures)
    (elsewhere / "self").symlink_to(elsewhere)
    names = file_inputs.named(["data"], file_inputs.IMAGES)
    assert [name for name in names if "link" in name] == ["data/a/link/far.png"]
    assert len(names) == 10


def test_the_most_probable_classes(ask, models, pictures, here):
    ran = ask(models / "pictures/1", "data/a/*.png", "--top=3")
    wanted = here.predict(images=IMAGES[::2])
    assert len(ran.records) == 5
    for at, record in enumerate(ran.records):
        assert [one["label"] for one in record["top"]] == wanted["top_labels"][at, :3].tolist()
        shares = [one["probability"] for one in record["top"]]
        np.testing.assert_allclose(shares, wanted["top_scores"][at, :3], rtol=1e-6)
        assert shares[0] == record["probability"] == max(shares)


@pytest.mark.parametrize("form", ["rest", "rpc"])
def test_a_server_gives_the_same_lines(ask, models, pictures, form):
    if form == "rpc":
        reason = "gRPC needs the extra serving (tensorflow-serving-api)"
        pytest.importorskip("tensorflow_serving.apis.predict_pb2", reason=reason)
    (pictures / "a/broken.png").write_bytes(b"none")
    here = ask(models / "pictures", "data", "--top", "5")
    backend = serving.Backend(pictures=models / "pictures/1")
    with getattr(serving, form)(backend) as address:
        there = ask(f"{address}/pictures", "data", "--top", "5")
    assert there.code == here.code == 1
    assert len(there.records) == 9
    for one, other in zip(there.records, here.records, strict=True):
        assert one.keys() == other.keys() and one["file"] == other["file"]
        assert one["label"] == other["label"]
        assert one["probability"] == pytest.approx(other["probability"], rel=1e-5)
    assert [line for line in there.said.splitlines() if "skipped  " in line] == [
        line for line in here.said.splitlines() if "skipped  " in line
    ]


def test_what_is_broken_is_named_and_the_rest_answered(ask, models, pictures, labels):
    whole = (pictures / "a/bild ü0.png").read_bytes()
    (pictures / "a/cut.png").write_bytes(whole[: len(whole) // 2])
    (pictures / "a/empty.png").write_bytes(b"")
    (pictures / "b/text.jpg").write_bytes(b"none")
    (pictures / "b/circle.png").symlink_to("circle.png")
    os.mkfifo(pictures / "b/pipe.png")
    backend = serving.Backend(pictures=models / "pictures/1")
    with serving.rest(backend) as address:
        ran = ask(f"{address}/pictures", "data", "gone.png", "--batch-size", "8")
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
        "data/b/pipe.png": "it is not a regular file",
        "gone.png": "No such file or directory",
    }
    assert "answered   9, 6 skipped" in ran.said


def test_one_broken_file_costs_few_requests(models):
    backend = serving.Backend(pictures=models / "pictures/1")
    items = [file_inputs.Item({"file": str(at)}, png(IMAGES[at % 9])) for at in range(32)]
    items[13] = file_inputs.Item({"file": "13"}, b"broken")
    with serving.rest(backend) as address:
        question = predict.Question(Client(f"{address}/pictures"), 1)
        records = question._ask(items)
    assert [r["file"] for r in records if "error" in r] == ["13"]
    assert [r["file"] for r in records] == [str(at) for at in range(32)]
    assert len(backend.requests) == 1 + 2 * 5  # it is found by halves


def test_a_server_that_goes_away_ends_the_command(ask, models, pictures, capsys):
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
        ask(f"{address}/pictures", "data", "--batch-size", "2")
    assert len(capsys.readouterr().out.splitlines()) == 2, "what was answered stays"


def test_a_table_keeps_its_columns(ask, models, pictures, capsys):
    backend = serving.Backend(pictures=models / "pictures/1")
    real = backend.run

    def poorer(session, name, inputs):
        outputs = real(session, name, inputs)
        if len(backend.requests) > 1:
            del outputs["label"]
        return outputs

    backend.run = poorer
    with serving.rest(backend) as address, pytest.raises(ServingError) as caught:
        ask(f"{address}/pictures", "data", "--batch-size", "2", "--format", "csv")
    assert str(caught.value) == f"{address}/pictures: UNKNOWN: the reply lacks the output label"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "file,label,class,probability" and len(lines) == 3


def test_rows_of_tables_are_answered(ask, models, workplace):
    (workplace / "a.csv").write_text("x,y,z\n1,2,3\n\n4,five,6\n1,2\n0.1,0,-0e0\nnan,1,1\n")
    np.save(workplace / "b.npy", np.array([[1, 2, 3], [4, 5, 6]]))
    np.save(workplace / "flat.npy", np.zeros(3))
    (workplace / "c.csv").write_bytes(b"\xff\xfe1,2,3")
    ran = ask(models / "rows", ".")
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
    table = ask(models / "rows", "b.npy", "--format", "csv")
    assert table.text == "file,row,prediction\nb.npy,0,6.0\nb.npy,1,15.0\n"


def test_objects_in_an_array_are_never_unpickled(ask, models, workplace):
    np.save(workplace / "b.npy", np.array([[1, "x", None]], object), allow_pickle=True)
    assert ask(models / "rows", "b.npy").code == 1


def test_requests_are_bounded_in_examples_and_bytes(monkeypatch):
    monkeypatch.setattr(file_inputs, "_MOST_TOGETHER", 10)
    items = [file_inputs.Item({}, bytes(size)) for size in (4, 4, 4, 11, 1, 1, 1, 1)]
    lengths = [[len(item.value) for item in batch] for batch in file_inputs.batches(items, 3)]
    assert lengths == [[4, 4], [4], [11], [1, 1, 1], [1]]
    assert list(file_inputs.ahead(file_inputs.batches(items, 3))) == list(
        file_inputs.batches(items, 3)
    )


def test_a_file_that_is_too_long_is_not_read(ask, models, pictures, monkeypatch):
    monkeypatch.setattr(file_inputs, "_MOST_BYTES", 50)
    ran = ask(models / "pictures", "data/a")
    assert ran.code == 1 and "it is longer than 50 bytes" in ran.said


def test_in_python_what_cannot_be_read_is_a_record(models, pictures, labels):
    records = list(predict.predict(models / "pictures", [pictures / "a", "gone.png"], top=2))
    assert [r["label"] for r in records[:5]] == labels[::2] and len(records[0]["top"]) == 2
    assert records[5] == {"file": "gone.png", "error": "No such file or directory"}
