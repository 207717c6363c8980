"""Whatever is typed or stands in a config file: exit code 0, or 2 with one line; no traceback."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
from conftest import REPOSITORY
from grammar import (
    NASTY,
    SEEDED,
    arguments,
    grammar,
    options_of_functions,
    outcome,
    require_plain,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import clean, doctor, inspect
from pipeline.config import command_line
from pipeline.config.config import Config
from pipeline.export import __main__
from pipeline.training import preflight
from pipeline.utils import errors


def fitted(words):
    preflight.check(command_line.configure(words))


def cleaned(words):
    clean._check(clean._configure(words)[0])


def inspected(words):
    command_line.configure(words, inspect.PROGRAM, inspect.PURPOSE)


def proved(words):
    refused = mock.Mock(side_effect=errors.UsageError("no case is measured here"))
    with (
        mock.patch.object(doctor, "check_environment", lambda: 0),
        mock.patch("pipeline.runtime.environment.start", refused),
    ):
        doctor.main(words)


def verified(words):
    from pipeline import verify as verification  # which takes NumPy along

    with mock.patch.object(verification, "verify", mock.Mock(side_effect=errors.UsageError("-"))):
        verification.main(words)


def counted(words):
    from pipeline import shards

    shards.main(words)


def predicted(words):
    from pipeline import predict  # which takes NumPy along

    refused = mock.Mock(side_effect=errors.UsageError("no model is asked here"))
    with mock.patch.object(predict, "Client", refused):
        predict.main(words)


def exported(words):
    with mock.patch.object(__main__, "export_again", lambda config: 0):
        __main__.main(words)


ASKING = ["there", "there/file", "--top", "3", "--format", "csv", "--batch-size=4", "--timeout"]
ASKING += ["--output", "http://localhost:8501/v1/models/digits", "grpc://localhost:8500/digits"]
EXPORTING = ["there", "--pin", "--unpin", "1", "--export.keep", "--export.tolerance=0.1"]
EXPORTING += ["--export.directory", "--export.precision", "float16"]
CONFIG = grammar(Config) | options_of_functions(
    {"--source.": "sources", "--task.": "tasks", "--model.": "models"}
)
RECIPES = ["digits", "digits_tiny", "cifar10_convnet", *NASTY[:40]]
DOORS = {
    **dict.fromkeys((fitted, cleaned, inspected), arguments(CONFIG, RECIPES)),
    proved: arguments(grammar(doctor.Options), [*RECIPES, "--parity"]),
    verified: st.lists(
        st.sampled_from(
            [*NASTY, "--json", "there", "--no-json", "--fuzz", "--python", "--runtime-version"]
        ),
        max_size=3,
    ),
    counted: st.lists(st.sampled_from([*NASTY, "there"]), max_size=3),
    predicted: st.lists(st.sampled_from([*NASTY, *ASKING]), max_size=5),
    exported: st.lists(st.sampled_from([*NASTY, *EXPORTING]), max_size=4),
}
ARGUMENTS = st.sampled_from([fitted, *DOORS]).flatmap(lambda d: st.tuples(st.just(d), DOORS[d]))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with a run, a file and a folder, that no door may change."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    yield tmp_path
    assert sorted(tmp_path.rglob("*")) == before


@settings(max_examples=1000, **SEEDED)
@given(drawn=ARGUMENTS)
def test_1000_argument_lists_end_plainly(folder, drawn):
    require_plain(*drawn)


@pytest.mark.long
@settings(max_examples=10_000, **SEEDED)
@given(drawn=ARGUMENTS)
def test_10000_argument_lists_end_plainly(folder, drawn):
    require_plain(*drawn)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*NASTY, 10**400, -1e308, [], {}, "tiny", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NASTY), inner, max_size=3)
    ),
    max_leaves=6,
)
VALUES = command_line.configure([]).as_json()
PLACES = [(s,) for s in VALUES] + [
    (section, name) for section in VALUES if isinstance(VALUES[section], dict)
    for name in VALUES[section]
]  # fmt: skip
TEXTS = [
    *(
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe{\0}\0",
        b"\xef\xbb\xbf{}",
        b"\0" * 99,
        b"{" * 999,
    ),
    *(b"[" * 10**6, b'{"a":' * 10**5, b'{"source": ' + b"[" * 300 + b"]" * 300 + b"}"),
    *(b'{"source": {"name": "tfds"}} x', b'{"source": {}, "source": 5}', b"-Infinity", b"9" * 9999),
]


@st.composite
def config_files(draw):
    """Bytes of a saved config of which values were changed, added or lost, or the text itself."""
    if draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from(TEXTS))
    values = json.loads(json.dumps(VALUES))
    for _ in range(draw(st.integers(1, 3))):
        *above, name = draw(st.sampled_from(PLACES))
        part = values
        for section in above:
            part = part.get(section)
        if isinstance(part, dict):
            kind = draw(st.integers(0, 7))
            part.pop(name, None)
            if kind < 6:
                part[name] = draw(JUNK)
            elif kind == 6:
                part[draw(st.sampled_from([*NASTY, name + "s"]))] = draw(JUNK)
    text = json.dumps(values).encode()
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(text) - 1))
        text = draw(st.sampled_from([text[:at], text[:at] + b"\x80" + text[at + 1 :], text + text]))
    return text


def both_ways(content):
    """The file as `--config`, and as that of a run that is resumed."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        (Path(name) / "config.json").write_bytes(content)
        require_plain(fitted, ["--config", f"{name}/config.json"])
        # What differs is told in a line for each option.
        require_plain(fitted, ["--run-directory", name], lines=100)


@settings(max_examples=500, **SEEDED)
@given(content=config_files())
def test_500_config_files_end_plainly(folder, content):
    both_ways(content)


@pytest.mark.long
@settings(max_examples=5000, **SEEDED)
@given(content=config_files())
def test_5000_config_files_end_plainly(folder, content):
    both_ways(content)


def test_what_is_drawn_is_of_all_kinds(folder):
    """Words that are let in and words that are refused, of every flag: else nothing is proved."""
    let_in, seen = 0, set()

    @settings(max_examples=300, **SEEDED)
    @given(drawn=arguments(CONFIG, ["digits"]))
    def count(drawn):
        nonlocal let_in
        seen.update(word.partition("=")[0] for word in drawn)
        let_in += outcome(fitted, drawn)[0] != 2

    count()
    assert 30 < let_in < 270
    assert len(seen & set(CONFIG)) > 0.75 * len(CONFIG)
    assert {
        "--train.epochs",
        "--runtime.no-deterministic",
        "--data.augment",
        "--source.path",
    } < set(CONFIG)


def test_refusals_are_fast_and_come_before_tensorflow():
    """In a process of its own; an argument list takes some milliseconds of the processor."""
    program = (
        "import sys; sys.path[:0] = FOLDERS; import test_fuzz; print(test_fuzz.timed());"
        "heavy = {'tensorflow', 'keras', 'sklearn', 'matplotlib'} & set(sys.modules);"
        "sys.exit(', '.join(heavy) or 0)"
    )
    folders = [str(REPOSITORY / name) for name in ("tests", "tests/support", "tests/config")]
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program.replace("FOLDERS", str(folders))],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-500:]
    assert float(result.stdout) < 20


def timed() -> float:
    """Milliseconds of processor time for an argument list, of 200; help is drawn by tyro."""
    taken = []

    @settings(max_examples=200, **SEEDED)
    @given(drawn=arguments(CONFIG, ["digits"]))
    def each(drawn):
        if not {"-h", "--help"} & set(drawn):
            start = time.process_time()
            outcome(fitted, drawn)
            taken.append(time.process_time() - start)

    each()
    return 1000 * sum(taken) / len(taken)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "long"])
def test_a_config_that_is_no_plain_file_is_refused(tmp_path, kind):
    path = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(2**40)  # a hole: takes no room
    code, said = outcome(fitted, ["--config", str(path)])
    assert code == 2
    wanted = {"folder": "Is a directory", "long": "it is longer than 67,108,864 bytes"}
    assert wanted.get(kind, "it is no regular file") in said
    shutil.rmtree(tmp_path)
