"""Numbers that are given once, a gate before them, old versions that go, and no half ones ever."""

import fcntl
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import REPOSITORY

from pipeline.config.sections import Export
from pipeline.export import manifest_writer
from pipeline.serving import local, models_config, repository, version_manifest
from pipeline.utils import files, locks, temp_files
from pipeline.utils.errors import UsageError
from tests.nightly.fault_injection import harness
from tests.nightly.fault_injection.harness import Strike

ACCURACY, LOSS = ("accuracy", 1), ("loss", -1)


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "digits"
    folder.mkdir()
    return folder


def finished(model, metrics=None):
    """A folder that looks like a proved export; `metrics` are those of one split."""
    folder = temp_files.folder(model)
    (folder / "assets.extra").mkdir()
    for name in ("saved_model.pb", "assets.extra/golden.npz"):
        (folder / name).write_text("whole")
    if metrics is not None:
        ((split, values),) = metrics.items()
        manifest_writer.write(folder, {"judged": split, "metrics": values})
    return folder


def published(model, metrics=None, by=ACCURACY, **options):
    return repository.publish(finished(model, metrics), model, Export(**options), by)


def numbers(model):
    return sorted(files.versions(model))


def test_a_number_is_never_given_twice(model):
    assert [published(model).directory.name for _ in range(3)] == ["1", "2", "3"]
    shutil.rmtree(model / "3")
    assert published(model).directory.name == "4"
    for number in numbers(model):
        shutil.rmtree(model / str(number))
    assert published(model).directory.name == "5"
    (model / "9").mkdir()  # somebody's
    assert published(model).directory.name == "10"
    (model / ".published").unlink()
    assert published(model).directory.name == "11"


def test_a_killed_publisher_leaves_a_gap(model, monkeypatch):
    folder = finished(model)

    def killed(self, target):
        if target.name == "1":
            raise KeyboardInterrupt
        return os.rename(self, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        files.publish(folder, model)
    monkeypatch.undo()
    assert numbers(model) == []
    assert files.publish(folder, model).name == "2"


@pytest.mark.parametrize("text", ["", "x", "-3", "1e5", "²", "9" * 40, "\x00"])
def test_a_damaged_record_counts_for_nothing(model, text):
    published(model), published(model)
    (model / ".published").write_text(text)
    assert published(model).directory.name == "3"
    assert (model / ".published").read_text() == "3\n"


def test_the_last_number_is_not_passed(model):
    (model / ".published").write_text(str(2**63 - 2))
    with pytest.raises(UsageError, match="no version number left"):
        published(model)
    assert numbers(model) == []


def test_what_is_published_can_be_read_by_a_server_of_another_user(model):
    version = published(model).directory
    assert version.stat().st_mode & 0o777 == 0o755


def test_keep_deletes_the_oldest_and_only_what_is_ours(model, tmp_path):
    for _ in range(5):
        published(model)
    (model / "6").mkdir()
    (model / "6/saved_model.pb").write_text("of another program")
    shutil.copytree(model / "1", tmp_path / "elsewhere")
    shutil.rmtree(model / "1")
    (model / "1").symlink_to(tmp_path / "elsewhere")
    models_config.pin(model, 2)
    outcome = published(model, keep=2)
    assert outcome.directory.name == "7"
    assert numbers(model) == [1, 2, 5, 6, 7]
    assert outcome.notes == (
        f"pinned     to 2: python -m pipeline.export {model.name} --unpin --export.directory "
        f"{model.parent} has servers take 7",
        "deleted    version 3, 4 (--export.keep 2)",
    )
    assert (tmp_path / "elsewhere/saved_model.pb").read_text() == "whole"
    assert [p.name for p in model.iterdir() if temp_files.is_ours(p.name)] == []
    models_config.pin(model, None)
    assert published(model, keep=1).notes == ("deleted    version 2, 5, 7 (--export.keep 1)",)
    assert numbers(model) == [1, 6, 8]


def test_what_lies_beside_is_written_for_what_servers_will_take(model):
    """Before it can be seen, and not for a version that is held back, or behind a pinned one."""
    seen = []

    def once_more(metric, **options):
        def ready():
            seen.append(numbers(model))

        folder = finished(model, {"test": {"accuracy": metric}})
        return repository.publish(folder, model, Export(**options), ACCURACY, ready)

    once_more(0.5)
    assert seen == [[]]
    assert once_more(0.1, tolerance=0.1).refused and seen == [[]]
    models_config.pin(model, 1)
    assert once_more(0.9).directory.name == "2" and seen == [[]]
    models_config.pin(model, None)
    assert once_more(0.9).directory.name == "3" and seen == [[], [1, 2]]


def test_nothing_is_deleted_without_being_asked(model):
    for _ in range(4):
        assert published(model).notes == ()
    assert numbers(model) == [1, 2, 3, 4]


def test_live_is_the_pinned_version_else_the_newest(model):
    assert repository.live(model) is None
    for _ in range(3):
        published(model)
    assert repository.live(model) == model / "3"
    repository.pin(model, 1)
    assert repository.live(model) == model / "1"
    with pytest.raises(UsageError, match="--pin 7: .* has no such version; there are: 1, 2, 3"):
        repository.pin(model, 7)
    shutil.rmtree(model / "1")
    assert repository.live(model) is None, (
        "a server that is told to load what is gone serves nothing"
    )
    with pytest.raises(UsageError, match="pins version 1, which is not there: .*--unpin"):
        local.Local(model)


@pytest.mark.parametrize(
    ("by", "old", "new", "tolerance", "good"),
    [
        (ACCURACY, 0.98, 0.97, 0.01, True),
        (ACCURACY, 0.98, 0.9699, 0.01, False),
        (ACCURACY, 0.98, 0.98, 0.0, True),
        (ACCURACY, 0.98, 0.9799, 0.0, False),
        (ACCURACY, 0.98, 0.99, 0.0, True),
        (ACCURACY, 0.98, None, 1.0, False),
        (ACCURACY, None, 0.1, 0.0, True),
        (LOSS, 0.5, 0.6, 0.05, False),
        (LOSS, 0.5, 0.4, 0.0, True),
        (LOSS, 0.5, True, 9.0, False),
    ],
)
def test_the_gate(model, by, old, new, tolerance, good):
    published(model, {"test": {by[0]: old}})
    outcome = published(model, {"test": {by[0]: new}}, by, tolerance=tolerance)
    assert outcome.refused == (not good)
    assert numbers(model) == ([1, 2] if good else [1])
    assert by[0] in outcome.quality
    assert outcome.directory == model / ("2" if good else repository.REFUSED)


def test_a_version_that_is_held_back_stays_beside_until_the_next(model):
    published(model, {"test": {"accuracy": 0.9}})
    worse = {"tolerance": 0.01, "by": ACCURACY}
    first = published(model, {"test": {"accuracy": 0.8}}, **worse)
    assert first.quality == (
        "test accuracy 0.8000; version 1, which is served, has 0.9000: worse by 0.1000, "
        "--export.tolerance is 0.01"
    )
    assert (
        temp_files.sweep(model) == [] and repository.judged(first.directory, "accuracy")[0] == 0.8
    )
    second = published(model, {"test": {"accuracy": 0.7}}, **worse)
    assert repository.judged(second.directory, "accuracy")[0] == 0.7
    assert published(model, {"test": {"accuracy": 0.7}}).directory.name == "2"
    assert sorted(os.listdir(model)) == [".published", ".refused", "1", "2"]


def test_the_gate_compares_with_what_is_served_and_the_same_split(model):
    published(model, {"test": {"accuracy": 0.5}})
    published(model, {"test": {"accuracy": 0.9}})
    new = {"test": {"accuracy": 0.6}}
    assert published(model, new, tolerance=0.1).refused
    repository.pin(model, 1)
    assert published(model, new, tolerance=0.1).directory.name == "3"
    assert published(model, {"validation": {"accuracy": 1.0}}, tolerance=0.1).refused
    assert published(model, None, tolerance=0.1).refused


def test_the_gate_compares_no_models_of_other_classes(model):
    for classes, worse in (("cat", "dog"), False), (("dog", "cat"), True), (("cat", "dog"), False):
        folder = finished(model, {"test": {"accuracy": 0.5}})
        manifest_writer.write(folder, {**version_manifest.about(folder), "class_names": classes})
        outcome = repository.publish(folder, model, Export(tolerance=0.1), ACCURACY)
        assert outcome.refused == worse
        if worse:
            assert outcome.quality == "it has other classes than version 1, which is served"


HUGE = f'{{"metrics": {{"accuracy": {10**400}}}}}'


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"metrics": 5}', '{"metrics": {"test": [1]}}', HUGE]
)
def test_a_damaged_manifest_tells_nothing(model, text):
    folder = finished(model)
    (folder / manifest_writer.MANIFEST).write_text(text)
    assert repository.judged(folder, "accuracy") == (None, "")


def test_nothing_is_published_where_the_pin_cannot_be_read(model):
    published(model)
    (model / models_config.NAME).write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        published(model, keep=1)
    assert numbers(model) == [1]


def test_publishers_take_turns(model):
    with locks.in_turn(model):
        handle = os.open(model, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)


def test_a_disk_without_locks_publishes_all_the_same(model, monkeypatch):
    def refuse(handle, operation):
        raise OSError("no locks here")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    assert published(model).directory.name == "1"


class Talker:
    """A script of these tests in a process of its own, which answers lines with lines."""

    def __init__(self, script, *words):
        self._process = subprocess.Popen(
            [sys.executable, str(REPOSITORY / "tests/support" / script), *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def say(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self):
        line = self._process.stdout.readline()
        assert line, "it has ended"
        return json.loads(line)


class Poller(Talker):
    """Loads each version of a model the moment it appears; see `poller.py`."""

    def __init__(self, model):
        super().__init__("poller.py", model)
        self._model = model
        self.seen = []
        assert self.hear() == "watching"

    def wait(self):
        """Until it has told of all versions that are there."""
        (self._model / ".told").mkdir()
        (self._model / ".told").rmdir()
        while (told := self.hear()) != "told":
            self.seen.append(told)


def judge(seen, expected):
    """No version was half there, changed its content or got a number that was given before."""
    assert [entry["error"] for entry in seen if entry["error"]] == []
    assert [entry["how"] for entry in seen if entry["how"] != "renamed"] == []
    found = [entry["version"] for entry in seen]
    assert all(one < next for one, next in itertools.pairwise(found)), "a number again"
    assert set(expected) <= set(found)


@pytest.mark.parametrize("kills", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_no_half_version_is_seen_whenever_publishers_are_killed(model, swift, kills):
    """Each publishes a real export twice, unless a kill comes at an operation on files."""
    chance, killed, told = random.Random(0), 0, []
    with Talker("publisher.py", swift, model) as publisher, Poller(model) as poller:
        while killed < kills:
            publisher.say(chance.randrange(1, 110))  # two of them are 104 operations
            code, versions = publisher.hear()
            assert code in (0, -signal.SIGKILL)
            killed += code != 0
            told += versions
            poller.wait()
        publisher.say(0)
        assert publisher.hear()[0] == 0
        poller.wait()
    judge(poller.seen, told)
    assert len(poller.seen) > kills / 2, "most were killed before they had published anything"
    assert [path.name for path in model.iterdir() if temp_files.is_ours(path.name)] == []
    assert len(numbers(model)) == 3


RUN = """digits --model.name tiny --data.limit 60 --train.epochs 1 --train.steps-per-call 4
    --runtime.precision float32 --export.no-enabled --log.no-progress --run-directory run"""
EXPORT = ("pipeline.export.__main__", ["run", "--export.keep", "3"])


@pytest.mark.parametrize(
    ("exports", "kills"), [(2, 1), pytest.param(200, 100, marks=pytest.mark.long)]
)
def test_no_server_sees_half_a_version_whenever_exports_are_killed(tmp_path, exports, kills):
    """Whole exports, by the command; the kills come at operations on files and between them."""
    assert harness.run("pipeline.fit", RUN.split(), tmp_path).code == 0
    model = tmp_path / "saved_models/digits"
    model.mkdir(parents=True)
    chance, codes, told = random.Random(0), [], []
    with Poller(model) as poller:
        begin = time.monotonic()
        whole = harness.run(*EXPORT, tmp_path)
        seconds, moments = time.monotonic() - begin, whole.count("export")
        assert whole.code == 0 and moments > 20, whole.said
        while len(codes) < exports or codes.count(137) < kills:
            strike = None
            if codes.count(137) < kills:
                delay = chance.choice((0.0, chance.uniform(0, 0.03), chance.uniform(0, seconds)))
                strike = Strike("SIGKILL", "export", chance.randint(1, moments), delay)
            ended = harness.run(*EXPORT, tmp_path, strike)
            assert ended.code in (0, 137) and "Traceback" not in ended.said, ended.said
            codes.append(ended.code)
            found = re.findall(r"^export +saved_models/digits/(\d+),", ended.said, re.M)
            assert len(found) == 1 or (ended.code == 137 and not found)  # killed after it was told
            told += map(int, found)
            poller.wait()
        whole = harness.run(*EXPORT, tmp_path)
        poller.wait()
    judge(poller.seen, told)
    assert whole.code == 0
    assert [path.name for path in model.iterdir() if temp_files.is_ours(path.name)] == []
    assert len(numbers(model)) == min(3, len(poller.seen))
    print(f"{len(codes)} exports, {codes.count(137)} killed, {len(poller.seen)} versions seen")
