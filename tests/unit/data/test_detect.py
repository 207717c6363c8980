"""A path in place of a recipe: which data are there, and what is said of
anything else.
"""

import errno
import os
from pathlib import Path

import pytest

from pipeline import clean, inspect
from pipeline.config import command_line, formats, python_call, registry
from pipeline.config.config import SourceConfig
from pipeline.data import detect
from pipeline.utils.errors import UsageError

TABLE = "path,label\na.png,x\n"
# Files -> the source and its path.
FOUND = {
    "a/1.jpg b/deep/2.PNG notes.txt": ("folder", "."),
    "train/a/1.jpg train/b/2.jpg test/a/3.jpg": ("folder", "."),
    "flowers/a/1.jpg flowers/b/2.jpg __MACOSX/._a LICENSE": ("folder", "flowers"),
    "one/two/a/1.jpg one/two/b/2.jpg": ("folder", "one/two"),
    "photos/a/1.jpg photos/b/2.jpg @eaDir/1.jpg #recycle/x/1.jpg": ("folder", "photos"),
    "images/1.jpg images/2.jpg labels.csv": ("table", "labels.csv"),
    "a/1.jpg b/2.jpg labels.csv": ("folder", "."),
    "photos/a/1.jpg photos/b/2.jpg __MACOSX/photos/._1.jpg log.csv": (
        "folder",
        "photos",
    ),
    "train/1.jpg test/2.jpg train.csv": ("table", "train.csv"),
    "1.jpg 2.jpg labels.csv log.csv": ("table", "labels.csv"),
    "examples.npz": ("arrays", "examples.npz"),
    "images.npy labels.npy": ("arrays", "."),
    "train/images.npy train/labels.npy test/images.npy": ("arrays", "."),
    "x-00000-of-00002 x-00001-of-00002": ("tfrecord", "."),
    "train/x.tfrecord test/x.tfrecord.gz": ("tfrecord", "."),
    "1.jpg 2.jpg metadata.jsonl log.jsonl": ("table", "metadata.jsonl"),
    "a/1.jpg b/2.jpg metadata.jsonl": ("folder", "."),
    "a/1.jpg b/2.jpg a/1.npy": ("folder", "."),
    "x.npz log.jsonl": ("arrays", "x.npz"),
    "a/1.jpg b/1.png masks.csv": ("table", "masks.csv"),
}
# The same of data other than images.
OTHER_DATA = {
    "a/1.npy b/deep/2.NPY notes.txt": ("folder", "."),
    "train/a/1.npy train/b/2.npy test/a/3.npy a.npz": ("folder", "."),
    "series/a/1.npy series/b/2.npy log.jsonl": ("folder", "series"),
    "a/1.jpg b/2.npy b/3.npy": ("folder", "."),
    "lines/numbers.jsonl": ("table", "lines/numbers.jsonl"),
    "files.csv 1.npy": ("table", "files.csv"),
}
REFUSED = {
    "report.pdf": "only report.pdf; .*folders of files",
    "a/1.heic b/2.heic": "only a/, b/ with .heic files; .*folders",
    "audio/1.wav meta/c.csv": "audio files and a table; give the table: data/meta/c.csv",
    "a/fold1/1.wav a/fold2/2.wav b/c.csv": "fold1, fold2, ... are parts of .*give .*c.csv",
    "images/1.jpg log.csv": "data has images of only one class, 'images'",
    "img/1.jpg test.csv train.csv": "2 data files; give one .*data/train.csv",
    "train/1.jpg a.npz b.npz": "2 data files; give one .*data/a.npz",
    "roses/1.jpg other/@eaDir/1.jpg": "data has images of only one class, 'roses'",
    "roses/1.jpg": "data has images of only one class, 'roses'",
    "1.jpg 2.jpg": "data contains 2 images, but no class folders",
    "1.txt": "1 text file, .*; move the text files",
    "": "data is empty; expected",
    "roses/1.npy": "features files of only one class, 'roses'",
    "1.npy 2.npy": "2 features files, but no class folders",
    "iris.csv numbers.jsonl": "2 data files; give one .*data/iris.csv",
    "log.jsonl": "only log.jsonl; .*folders of files",
}


CONTENTS = {
    "log.csv": "epoch,loss\n1,2\n",
    "log.jsonl": '{"epoch": 1, "loss": 2}\n',
    "metadata.jsonl": '{"file_name": "1.jpg", "label": "x"}\n',
    "iris.csv": "width,height,species\n1,2,x\n2,3,y\n",
    "corners.csv": "xmin,ymin,xmax,ymax,class\n1,2,3,4,a\n2,3,4,5,b\n",
    "numbers.jsonl": '{"features": [1, 2], "label": "x"}\n',
    "files.csv": "file,label\n1.npy,x\n",
    "masks.csv": "image,mask\na/1.jpg,b/1.png\n",
}


def write(names):
    for name in names.split():
        path = Path("data", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CONTENTS.get(path.name, TABLE))
    Path("data").mkdir(exist_ok=True)


@pytest.mark.parametrize("names", FOUND)
def test_data_are_recognized(names, workplace, capsys):
    write(names)
    name, inside = FOUND[names]
    path = Path("data", inside)
    config = command_line.configure(["data", "--epochs", "3"])
    assert config.source == SourceConfig(name=name, options={"path": path})
    assert (config.recipe, config.name) == ("photos", "data")
    said = capsys.readouterr().out
    assert said == (
        "" if inside == "." else f"data       {path}, the only data in data\n"
    )
    for other in (
        command_line.configure(["--source.path", "data", "--epochs", "3"]),
        command_line.configure([str(path), "--epochs", "3"]),
        python_call.request("data", {"epochs": 3}).config,
        python_call.request(None, {"data": Path("data"), "epochs": 3}).config,
    ):
        assert other.source == config.source and other.train == config.train
    assert (
        python_call.request("digits", {"data": "data"}).config.source == config.source
    )


@pytest.mark.parametrize("names", OTHER_DATA)
def test_data_other_than_images_get_the_recipe_data(names, workplace):
    write(names)
    name, inside = OTHER_DATA[names]
    asked = command_line.request(["data", "--epochs", "3"])
    config = asked.config
    assert config.source == SourceConfig(
        name=name, options={"path": Path("data", inside)}
    )
    assert (config.recipe, config.name, asked.planned) == ("data", "data", ())
    assert config.model.name == "mlp" and config.train.optimizer == "adam"
    for other in (
        command_line.configure(["--source.path", "data", "--epochs", "3"]),
        python_call.request("data", {"epochs": 3}).config,
        python_call.request(None, {"data": Path("data"), "epochs": 3}).config,
    ):
        assert (other.recipe, other.source) == ("data", config.source)
        assert other.train == config.train
    own = python_call.request(None, {"data": Path("data"), "model": "tiny"}).config
    assert own.source == config.source and own.recipe != "data"


def test_the_source_that_a_user_names_is_not_looked_for(workplace):
    write("a/fold1/1.jpg a/fold2/2.jpg")
    with pytest.raises(UsageError, match="or write --source.name folder"):
        command_line.configure(["data"])
    for config in (
        command_line.configure(["data/a", "--source.name", "folder"]),
        python_call.request("data/a", {"source": {"name": "folder"}}).config,
    ):
        path = Path("data/a")
        assert config.source == SourceConfig(name="folder", options={"path": path})
        assert config.recipe == "photos"
    with pytest.raises(UsageError, match="unknown source 'folders'"):
        command_line.configure(["data/a", "--source.name", "folders"])


def test_corners_without_a_column_of_files_are_no_boxes(workplace):
    write("corners.csv")
    assert detect.find_source(Path("data"))["name"] == "table"


@pytest.mark.parametrize("names", ["iris.csv", "iris.csv log.csv"])
def test_a_table_gets_the_recipe_tables(names, workplace):
    write(names)
    asked = command_line.request(["data", "--epochs", "3"])
    path = Path("data/iris.csv")
    assert asked.config.source == SourceConfig(name="table", options={"path": path})
    assert (asked.config.recipe, asked.config.name) == ("tables", "data")
    assert asked.planned == ("train.batch_size",)


@pytest.mark.parametrize(
    ("column", "option"),
    [("species", "label"), ("height", "target"), ("WIDTH", "target")],
)
def test_the_target_may_be_any_column(workplace, column, option):
    rows = "".join(f"{n}.5,{n}.25,{'xy'[n % 2]}\n" for n in range(4))
    Path("iris.csv").write_text("width,height,species\n" + rows)
    title = column.lower()
    expected = {"path": Path("iris.csv"), option: title}
    task = {"target": column}
    for config in (
        command_line.configure(["iris.csv", "--target", column]),
        command_line.configure(["--source.path", "iris.csv", "--target", column]),
        python_call.request("iris.csv", {"task": task}).config,
        python_call.request(None, {"data": Path("iris.csv"), "task": task}).config,
    ):
        assert config.recipe == "tables" and config.source.options == expected
        assert config.task.target is None
    kind = {"target": "classes"}
    words = ["--task.target", "classes"]
    for config in (
        command_line.configure(["iris.csv", "--target", column, *words]),
        command_line.configure(["iris.csv", *words, "--target", column]),
        python_call.request("iris.csv", {"target": column, "task": kind}).config,
    ):
        assert config.source.options == expected
        assert config.task.target == "classes"


def test_what_is_to_be_predicted_is_asked_not_guessed(workplace):
    Path("people.csv").write_text("age,height,name of x\n1,2,3\n4,5,6\n")
    message = (
        'people.csv: which column is .*age, height, name of x; .*--target "name of x"'
    )
    with pytest.raises(UsageError, match=message):
        command_line.configure(["people.csv"])
    with pytest.raises(UsageError, match="no column 'weight'; it has age, "):
        command_line.configure(["people.csv", "--target", "weight"])
    with pytest.raises(UsageError, match="unknown target 'weight'"):
        command_line.configure(["digits", "--target", "weight"])


def test_a_table_is_read_once(workplace, monkeypatch):
    Path("iris.csv").write_text("width,height,species\n1,2,x\n3,4,y\n")
    opened = []
    read = Path.read_bytes

    def remember(path):
        if path.suffix == ".csv":
            opened.append(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", remember)
    config = command_line.configure(["iris.csv", "--target", "species"])
    registry.call("sources", "table", config.source.options)
    assert opened == [Path("iris.csv")]
    # As the report does, to find the command of the run.
    again = command_line.configure(["iris.csv", "--target", "species"])
    assert again.source.options == config.source.options
    assert opened == [Path("iris.csv")]


def test_columns_that_the_user_names_are_known_when_the_recipe_is_chosen(workplace):
    Path("table.csv").write_text("width,rating\n1,2\n3,4\n")
    words = ["table.csv", "--source.target", "rating"]
    for config in (
        command_line.configure(words),
        command_line.configure(["--source.path", *words]),
        python_call.request("table.csv", {"source": {"target": "rating"}}).config,
    ):
        assert config.recipe == "tables"
        assert config.source.options == {"path": Path("table.csv"), "target": "rating"}


def test_files_of_an_input_of_the_user(workplace):
    options = 'field: str = "series", suffixes: tuple[str, ...] = (".ts",)'
    Path("series.py").write_text(f"def series(info, *, {options}): ...\n")
    write("a/1.ts b/2.ts")
    options = {"path": Path("data"), "field": "series", "suffixes": (".ts",)}
    expected = SourceConfig(name="folder", options=options)
    request = command_line.path_request(Path("data"), "series.py:series")
    assert request.config.source == expected and request.config.recipe == "data"
    words = ["--source.path", "data", "--source.field", "series"]
    config = command_line.configure([*words, "--source.suffixes", ".ts"])
    assert config.source == expected and config.recipe == "data"
    with pytest.raises(UsageError, match="a/, b/ .*.ts"):
        command_line.configure(["data"])


def test_a_folder_named_as_the_recipe_data_is_a_path(workplace):
    with pytest.raises(UsageError, match="recipe 'data'.*no data"):
        command_line.recipe("data")
    write("iris.csv")
    config = command_line.configure(["data", "--source.target", "width"])
    assert config.source.options == {"path": Path("data/iris.csv"), "target": "width"}
    words = ["data", "--source.name", "scikit_learn", "--source.dataset", "diabetes"]
    source = {"name": "scikit_learn", "dataset": "diabetes"}
    for config in (
        command_line.configure(words),
        python_call.request("data", {"source": source}).config,
    ):
        assert config.recipe == "data" and config.source.name == "scikit_learn"


@pytest.mark.parametrize("names", REFUSED)
def test_other_contents_are_named_in_one_line(names, workplace):
    write(names)
    with pytest.raises(UsageError, match=REFUSED[names]) as caught:
        command_line.configure(["data"])
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_read_is_named(workplace, monkeypatch):
    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    write("")
    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(UsageError, match="data .*Permission denied"):
        command_line.configure(["data"])


def test_the_search_for_data_stops_at_the_first_file_of_a_class(workplace, monkeypatch):
    write(" ".join(f"{name}/{number}.jpg" for name in "ab" for number in range(50)))
    names = []
    is_ignored = detect.is_ignored
    monkeypatch.setattr(
        detect, "is_ignored", lambda name: names.append(name) or is_ignored(name)
    )
    assert detect.find_source(Path("data"))["name"] == "folder"
    assert len(names) == 2


def test_files_of_other_kinds_are_named(workplace):
    write("a/1.jpg b/2.jpg x.zip")
    for name, message in {
        "data/a/1.jpg": "is not a file of examples; expected",
        "data/x.zip": "is not a file of examples; expected",
        "data/c": "data/c: no such file or directory",
        "digts": "did you mean 'digits'? (and no such file or directory)",
    }.items():
        with pytest.raises(UsageError) as caught:
            command_line.configure([name])
        assert message in str(caught.value)
        assert str(caught.value) == message or name != "data/c"


def test_a_folder_named_as_the_recipe_is_its_data(workplace):
    write("a/1.jpg b/2.jpg")
    with pytest.raises(UsageError, match="recipe 'photos'.*no data"):
        command_line.recipe("photos")
    for program in (clean.PROGRAM, inspect.PROGRAM):
        with pytest.raises(UsageError, match=f"in its place: {program} PATH$"):
            command_line.configure(["photos"], program, "")
    Path("data").rename("photos")
    assert command_line.recipe("photos").source.path == Path("photos")


def test_the_recipe_takes_any_source(workplace):
    write("a/1.jpg b/2.jpg")
    words = ["photos", "--source.name", "tfds", "--source.dataset", "cifar10"]
    asked = command_line.request(words)
    assert asked.config.source == SourceConfig(options={"dataset": "cifar10"})
    assert asked == python_call.request(
        "photos", {"source": {"name": "tfds", "dataset": "cifar10"}}
    )
    assert (asked.config.name, "train.epochs" in asked.planned) == ("photos", True)
    by_path = command_line.configure(["photos", "--source.path", "data"])
    assert by_path.source.path == Path("data") and by_path.recipe == "photos"


def test_set_options_are_not_planned(workplace, capsys):
    write("a/1.jpg b/2.jpg")
    everything = command_line.request(["data"]).planned
    assert {"model", "train.epochs", "data.image_size"} < {*everything}
    planned = command_line.request(
        ["data", "--lr", "0.1", "--model.blocks", "1"]
    ).planned
    assert {*everything} - {*planned} == {"train.learning_rate", "model"}
    planned = command_line.request(["data", "--model.weights", "x.keras"]).planned
    assert planned == everything


@pytest.mark.parametrize("data", ["data", "photos", "photos --source.path nothing"])
def test_help_says_what_is_planned(workplace, capsys, data):
    write("a/1.jpg b/2.jpg")
    for words, shown in {
        "": "The architecture [chosen for your data]",
        "epochs": "default: chosen for your data)",
        "source": "--source.path",
    }.items():
        with pytest.raises(SystemExit):
            command_line.configure(
                [*data.split(), "--lr", "0.1", "--help", *words.split()]
            )
        text = " ".join(capsys.readouterr().out.split())
        assert shown in text and "digits" not in text
        if not words and "nothing" not in data:
            assert "learning rate of the schedule [0.1]" in text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("photos [2024]", "photos-2024"),
        ("cats & dogs", "cats & dogs"),
        ("C:\\pets", "C-pets"),
        ("why?", "why"),
        (".hidden", "hidden"),
        ("[*]", None),
    ],
)
def test_a_model_gets_the_closest_name_that_a_server_can_load(text, name):
    assert formats.model_name(text) == name


def test_a_folder_beside_a_recipe_of_its_name_is_said(workplace, capsys):
    for name in ("digits", "regression_linear"):
        assert command_line.recipe(name).recipe == name
        assert not capsys.readouterr().out
        Path(name).mkdir()
        assert command_line.recipe(name).recipe == name
        assert (
            capsys.readouterr().out
            == f"note       {name} is the recipe of this name; for the data beside it, "
            f"write ./{name}\n"
        )
        Path(name).rmdir()


def test_a_source_beside_a_folder_of_its_name_is_said(workplace, capsys):
    Path("tfds").mkdir()
    with pytest.raises(UsageError, match="tfds needs --source.dataset"):
        python_call.request(None, {"data": "tfds"})
    assert "for the data beside it, pass ./tfds" in capsys.readouterr().out


def test_the_whole_name_of_a_folder_names_its_model(workplace):
    write("cats.v2/a/1.jpg cats.v2/b/1.jpg x.2024.npz")
    assert command_line.configure(["data/cats.v2"]).name == "cats.v2"
    assert command_line.configure(["data/x.2024.npz"]).name == "x.2024"
