"""Folders: next numbers without collisions, publishing in one rename, nothing foreign touched."""

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

from pipeline.config import registry
from pipeline.runtime import run_directory
from pipeline.training import preflight
from pipeline.utils import files, locks, temp_files
from pipeline.utils.errors import UsageError


@pytest.fixture
def config(workplace):
    return registry.load("recipes", "digits")()


def test_runs_are_numbered(config):
    names = []
    for _ in range(3):
        preflight.check(config)
        with run_directory.opened(config) as run:
            names.append(str(run))
    assert names == ["runs/digits-1", "runs/digits-2", "runs/digits-3"]
    assert json.loads(Path("runs/digits-2/config.json").read_text()) == config.as_json()


@pytest.fixture(scope="module")
def races(tmp_path_factory):
    """What `races.py` prints of 51 races, and the folder they took place in."""
    folder = tmp_path_factory.mktemp("races")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(REPOSITORY / "tests/support/races.py"), "51", "0"]
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )
    assert process.returncode == 0, process.stderr
    return folder, json.loads(process.stdout)


def test_each_race_for_a_run_directory_has_one_winner(races):
    """The others are told who it is; a third of the folders had a holder that was killed."""
    _, found = races
    assert [len(race["told"]) for race in found["locks"]] == [2, 3, 4] * 17
    for race in found["locks"]:
        winners = [pid for pid, told in zip(race["pids"], race["told"], strict=True) if not told]
        assert len(winners) == 1, race
        for told in filter(None, race["told"]):
            who = rf"is in use by process {winners[0]} on {re.escape(socket.gethostname())} since "
            assert re.match(rf"locks/\d+ {who}20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\S*; wait", told)
    left = [bool(race["stale"]) for race in found["locks"]]
    assert left == [True, True, False] * 17, "only a killed holder leaves its name behind"


def test_racing_starts_get_different_folders(races):
    folder, found = races
    assert sorted(found["runs"]) == [f"runs/digits-{n}" for n in range(1, 9)]
    assert sorted(found["versions"]) == [f"models/{n}" for n in range(1, 9)]
    published = [(folder / f"models/{n}/saved_model.pb").read_text() for n in range(1, 9)]
    assert sorted(published) == sorted(map(str, range(8)))
    assert sorted(os.listdir(folder / "models")) == [".published", *"12345678"]


def test_a_held_run_is_refused_before_anything_else(config, workplace):
    given = begun(config)
    path = workplace / "mine/.lock"
    with run_directory.opened(given):
        assert set(json.loads(path.read_text())) == {"pid", "host", "since"}
        refused(given, rf"mine is in use by process {os.getpid()} on .* since 20", force=True)
        with pytest.raises(UsageError, match="in use"), run_directory.opened(given):
            pass
    assert path.read_text() == "", "nobody's name is left in a run"
    preflight.check(given)


def test_a_lock_that_somebody_deletes_still_holds(config, workplace):
    given = begun(config)
    with run_directory.opened(given):
        (workplace / "mine/.lock").unlink()
        for _ in range(2):  # the second finds the first one's file
            with pytest.raises(UsageError, match="mine is in use"), run_directory.opened(given):
                pass
    with run_directory.opened(given):
        pass


@pytest.mark.parametrize(
    "text", ["", "{", '{"pi', '{"pid": "x"}', '{"pid": 1, "host": "elsewhere", "since": "1970"}']
)
def test_what_a_dead_process_left_in_the_lock_blocks_nobody(config, workplace, text):
    given = begun(config)
    (workplace / "mine/.lock").write_text(text)
    preflight.check(given)
    with run_directory.opened(given):
        pass


@pytest.mark.parametrize("kind", ["text", "link", "pipe", "folder"])
def test_a_lock_that_is_not_ours_is_left_alone(config, workplace, kind):
    given, precious = begun(config), workplace / "precious"
    precious.write_text("mine")
    path = workplace / "mine/.lock"
    path.unlink(missing_ok=True)
    if kind == "text":
        path.write_text("another tool's")
    elif kind == "link":
        path.symlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    refused(given, "mine/.lock is no lock of ours; remove it, or give another folder")
    with pytest.raises(UsageError, match="no lock of ours"), run_directory.opened(given):
        pass
    assert precious.read_text() == "mine"
    assert kind != "text" or path.read_text() == "another tool's"


def test_a_holder_that_does_not_say_who_it_is_is_refused_too(config, workplace, monkeypatch):
    monkeypatch.setattr(locks, "_TRIES", 3)
    given = begun(config)
    with (workplace / "mine/.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(given, "mine is in use by another process; wait until it has ended, or give")


def test_a_published_folder_is_readable_by_the_server(workplace):
    folder = temp_files.folder(workplace / "m")
    assert folder.name.startswith(".") and not folder.name.isdecimal()
    (folder / "x").write_text("1")
    version = files.publish(folder, workplace / "m")
    assert version.name == "1" and oct(version.stat().st_mode & 0o777) == "0o755"
    (workplace / "m/7").mkdir()
    folder = temp_files.folder(workplace / "m")
    (workplace / "m/8").write_text("a file that came meanwhile")
    assert files.publish(folder, workplace / "m").name == "9"
    assert (workplace / "m/8").read_text() == "a file that came meanwhile"


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def begun(config, **changes):
    """The config of a run in the folder `mine`, which is there afterwards."""
    given = config.changed(run_directory="mine", **changes)
    with run_directory.opened(given):
        return given


def refused(config, message, **changes):
    before = sorted(os.walk("."))
    with pytest.raises(UsageError, match=message):
        preflight.check(config.changed(**changes))
    assert sorted(os.walk(".")) == before


def test_what_cannot_be_written_is_refused(config, workplace):
    (workplace / "file").write_text("mine")
    (workplace / "full").mkdir()
    (workplace / "full/notes.txt").write_text("mine")
    refused(config, "--run-directory: file is a file", run_directory="file")
    refused(config, "file is a file, so file/run cannot be made", run_directory="file/run")
    refused(config, "full holds 'notes.txt' but no run", run_directory="full")
    refused(config, "cannot write into /proc", run_directory="/proc/run")
    refused(config, "file is a file", export={"directory": "file"})
    refused(
        config,
        "full is not a directory of models: it contains 'notes",
        export={"directory": "full"},
    )
    (workplace / "models/digits").mkdir(parents=True)
    (workplace / "models/digits/notes.txt").write_text("mine")
    refused(config, "digits contains 'notes.txt', which is not", export={"directory": "models"})
    assert (workplace / "full/notes.txt").read_text() == "mine"


@pytest.fixture
def ordinary_user(workplace):
    """The superuser may write everywhere: act as nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.chmod(workplace, 0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_folders_without_permission_are_refused(config, workplace, request):
    for name, mode in (("locked", 0o500), ("closed", 0)):
        (workplace / name).mkdir(mode=mode)
    (workplace / "sealed").mkdir()
    (workplace / "sealed/config.json").write_text("{}")
    (workplace / "sealed").chmod(0)
    request.getfixturevalue("ordinary_user")
    for name in ("locked/run", "closed/run", "sealed", "sealed/deeper/run"):
        with pytest.raises(UsageError, match="Permission denied|cannot write"):
            preflight.check(config.changed(run_directory=name))


def test_links_that_lead_nowhere_are_refused(config, workplace):
    (workplace / "loop").symlink_to("loop")
    (workplace / "gone").symlink_to("nowhere")
    for name in ("loop", "gone", "loop/run", "gone/run"):
        refused(config, "leads nowhere|symbolic links", run_directory=name)
        refused(config, "leads nowhere|symbolic links", export={"directory": name})


@pytest.mark.parametrize("text", ["{", "null", "[1]", '{"source": 5}', "[" * 100_000, "{}"])
def test_a_run_with_a_damaged_config_is_refused(config, text):
    given = begun(config)
    Path("mine/config.json").write_text(text)
    refused(given, "mine/config.json is damaged")


@pytest.mark.parametrize("section", ["source", "data", "model", "train", "runtime", "export"])
@pytest.mark.parametrize("value", [[], None, 3, "x", [["a", 1]]])
def test_a_section_that_is_none_is_damage(config, section, value):
    given = begun(config)
    path = Path("mine/config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), section: value}))
    refused(given, r"mine/config\.json is damaged; give a new folder")


FILES = ["decisions.json", "log.jsonl", "bad_steps.jsonl", "hang.txt", "result.json"]
FILES += ["manifest.jsonl", "gallery.html"]
DATA = ["metadata.json", "splits.npz", "source.json"]
STRANGE = {
    "folder": os.mkdir,
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "circle": lambda path: path.symlink_to(path.name),
    "link to a folder": lambda path: path.symlink_to("."),
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", [*FILES, *DATA])
def test_what_is_no_file_where_one_is_written_is_refused_and_not_opened(config, name, kind):
    given = begun(config)
    path = Path("mine") / name
    STRANGE[kind](path)
    said = f"mine/{name} is damaged; start again in a new --run-directory"
    refused(given, said if name in DATA else f"mine/{name} is no regular file; remove it")
    path.rmdir() if kind == "folder" else path.unlink()
    preflight.check(given)


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
@pytest.mark.parametrize("kind", ["file", "pipe", "circle", "link that leads nowhere", "link"])
def test_what_is_no_folder_where_one_is_made_is_refused(config, workplace, name, kind):
    given = begun(config)
    path = workplace / "mine" / name
    (workplace / "elsewhere").write_text("mine")
    targets = {
        "circle": name,
        "link that leads nowhere": "nowhere",
        "link": workplace / "elsewhere",
    }
    if kind in targets:
        path.symlink_to(targets[kind])
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("mine")
    refused(given, f"mine/{name} is no folder; bring it back, or remove what is there")
    path.unlink()
    preflight.check(given)


def test_links_to_the_right_things_are_good(config, workplace):
    given = begun(config)
    (workplace / "elsewhere").mkdir()
    (workplace / "elsewhere/file").write_text("")
    for name in FILES:
        (workplace / "mine" / name).symlink_to(workplace / "elsewhere/file")
    for name in ("checkpoints", "tensorboard"):
        (workplace / "mine" / name).symlink_to(workplace / "elsewhere")
    preflight.check(given)
    (workplace / "elsewhere/file").unlink()  # what is written replaces the links
    preflight.check(given)


def test_versions_and_hidden_files_are_not_foreign(config, workplace):
    target = workplace / "saved_models/digits"
    (target / "1").mkdir(parents=True)
    (target / "1/saved_model.pb").write_text("")
    (target / ".unpublished-x").mkdir()
    preflight.check(config)
    (target / "2").mkdir()
    with pytest.raises(UsageError, match="'2', which is not an exported version"):
        preflight.check(config)


def test_files_for_servers_are_not_foreign_but_must_be_readable(config, workplace):
    target = workplace / "saved_models/digits"
    target.mkdir(parents=True)
    for name in ("models.config", "compose.yaml", "SERVING.md", ".published"):
        (target / name).write_text("")
    preflight.check(config)
    (target / "models.config").write_bytes(b"\xff")
    refused(config, r"digits/models\.config cannot be read: .*UTF-8; fix it")
    (target / "x.md").mkdir()
    refused(config, "'x.md', which is not an exported version; move it")


def test_beside_versions_there_may_be_what_servers_pass_by(config, workplace):
    """The pictures, say, that the examples in SERVING.md ask about."""
    target = workplace / "saved_models/digits"
    (target / "photos").mkdir(parents=True)
    (target / "picture.png").write_text("")
    refused(config, "'photos', which is not an exported version; move it elsewhere")
    (target / "1").mkdir()
    (target / "1/saved_model.pb").write_text("")
    (workplace / "saved_models/notes.txt").write_text("")
    preflight.check(config)
    (target / "7").write_text("")
    refused(config, "'7', which is not an exported version")
    (target / "7").unlink()
    (target / "1/saved_model.pb").unlink()
    refused(config, "saved_models is not a directory of models: it contains 'notes.txt'")
