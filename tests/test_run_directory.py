"""Folders: next numbers without collisions, publishing in one rename, nothing foreign touched."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from pipeline import files, run_directory, shelf
from pipeline.errors import UsageError


@pytest.fixture
def config(workplace):
    return shelf.take("recipes", "digits")()


def test_runs_are_numbered(config):
    names = []
    for _ in range(3):
        run_directory.check(config)
        names.append(str(run_directory.create(config)))
    assert names == ["runs/digits-1", "runs/digits-2", "runs/digits-3"]
    assert json.loads(Path("runs/digits-2/config.json").read_text()) == config.as_json()


def _create(barrier, config):
    barrier.wait()
    run_directory.create(config)


def _publish(barrier, number):
    parent = Path("models")
    folder = files.scratch(parent)
    (folder / "saved_model.pb").write_text(str(number))
    barrier.wait()
    files.publish(folder, parent)


def test_racing_starts_get_different_folders(config):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(8)
    for target, argument in ((_create, [config] * 8), (_publish, range(8))):
        workers = [context.Process(target=target, args=(barrier, a)) for a in argument]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
    assert sorted(os.listdir("runs")) == [f"digits-{n}" for n in range(1, 9)]
    published = [Path(f"models/{n}/saved_model.pb").read_text() for n in range(1, 9)]
    assert sorted(published) == sorted(map(str, range(8)))
    assert len(os.listdir("models")) == 8


def test_a_published_folder_is_readable_by_the_server(workplace):
    folder = files.scratch(workplace / "m")
    assert folder.name.startswith(".") and not folder.name.isdecimal()
    (folder / "x").write_text("1")
    version = files.publish(folder, workplace / "m")
    assert version.name == "1" and oct(version.stat().st_mode & 0o777) == "0o755"
    (workplace / "m/7").mkdir()
    folder = files.scratch(workplace / "m")
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


def refused(config, message, **changes):
    before = sorted(os.walk("."))
    with pytest.raises(UsageError, match=message):
        run_directory.check(config.changed(**changes))
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
        config, "full is no folder of models: it holds 'notes.txt'", export={"directory": "full"}
    )
    (workplace / "models/digits").mkdir(parents=True)
    (workplace / "models/digits/notes.txt").write_text("mine")
    refused(config, "digits holds 'notes.txt', which is no export", export={"directory": "models"})
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
            run_directory.check(config.changed(run_directory=name))


def test_links_that_lead_nowhere_are_refused(config, workplace):
    (workplace / "loop").symlink_to("loop")
    (workplace / "gone").symlink_to("nowhere")
    for name in ("loop", "gone", "loop/run", "gone/run"):
        refused(config, "leads nowhere|symbolic links", run_directory=name)
        refused(config, "leads nowhere|symbolic links", export={"directory": name})


def test_one_process_at_a_time(config, workplace):
    run = run_directory.create(config)
    with (
        run.locked(),
        pytest.raises(UsageError, match="digits-1 is in use by another process"),
        run_directory.RunDirectory(run.path).locked(),
    ):
        pass
    with run.locked():
        pass


@pytest.mark.parametrize("text", ["{", "null", "[1]", '{"source": 5}', "[" * 100_000, "{}"])
def test_a_run_with_a_damaged_config_is_refused(config, text):
    given = config.changed(run_directory="mine")
    run_directory.create(given)
    Path("mine/config.json").write_text(text)
    refused(given, "mine/config.json is damaged")


def test_versions_and_hidden_files_are_not_foreign(config, workplace):
    target = workplace / "saved_models/digits"
    (target / "1").mkdir(parents=True)
    (target / "1/saved_model.pb").write_text("")
    (target / ".unpublished-x").mkdir()
    run_directory.check(config)
    (target / "2").mkdir()
    with pytest.raises(UsageError, match="'2', which is no exported version"):
        run_directory.check(config)


def test_a_run_is_resumed_only_with_its_own_config(config):
    given = config.changed(run_directory="mine")
    run_directory.create(given)
    run_directory.check(given)
    run_directory.check(given.changed(log={"progress": False}))
    refused(given, "mine is a run with another --train.epochs", train={"epochs": 1})
    refused(given, "mine is a run with another --model.name", model={"name": "tiny"})
    refused(given, "mine is a run with another --runtime.seed", runtime={"seed": 1})
    (run_directory.RunDirectory(given.run_directory).config).write_text("{")
    refused(given, "config.json is damaged")
