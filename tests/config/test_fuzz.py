"""Random command lines and config files: exit code 0, or 2 with one line and no traceback."""

import json
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from grammar import NASTY, SEEDED, arguments, grammar, options_of_functions, require_plain
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import clean, inspect, predict, shards, verify
from pipeline.config import command_line
from pipeline.config.config import Config
from pipeline.export import __main__ as export
from pipeline.training import preflight
from pipeline.utils.errors import UsageError


def run_fit(words):
    preflight.check(command_line.configure(words))


def run_clean(words):
    clean._check(clean._configure(words)[0])


def run_inspect(words):
    command_line.configure(words, inspect.PROGRAM, inspect.PURPOSE)


def run_verify(words):
    with mock.patch.object(verify, "verify", mock.Mock(side_effect=UsageError("not verified"))):
        verify.main(words)


def run_predict(words):
    with mock.patch.object(predict, "Client", mock.Mock(side_effect=UsageError("no such model"))):
        predict.main(words)


def run_export(words):
    with mock.patch.object(export, "export_again", lambda config: 0):
        export.main(words)


def one_of(words, size):
    return st.lists(st.sampled_from([*NASTY, *words.split()]), max_size=size)


CONFIG = grammar(Config) | options_of_functions(
    {"--source.": "sources", "--task.": "tasks", "--model.": "models"}
)
RECIPES = ["digits", "digits_tiny", "cifar10_convnet", *NASTY[:40]]
COMMANDS = {
    **dict.fromkeys((run_fit, run_clean, run_inspect), arguments(CONFIG, RECIPES)),
    run_verify: one_of("--json there --no-json --fuzz --python --runtime-version", 3),
    shards.main: one_of("there", 3),
    run_predict: one_of(
        "there there/file --top 3 --format csv --batch-size=4 --timeout --output "
        "http://localhost:8501/v1/models/digits grpc://localhost:8500/digits",
        5,
    ),
    run_export: one_of(
        "there --pin --unpin 1 --export.keep --export.tolerance=0.1 --export.directory "
        "--export.precision float16",
        4,
    ),
}
DRAWN = st.sampled_from([run_fit, *COMMANDS]).flatmap(lambda c: st.tuples(st.just(c), COMMANDS[c]))
COUNTS = [300, pytest.param(10_000, marks=pytest.mark.long)]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A current directory with a file, which no command may change."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    yield tmp_path
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("count", COUNTS)
def test_random_arguments_end_plainly(directory, count):
    seen, accepted = set(), [0]

    @settings(max_examples=count, **SEEDED)
    @given(drawn=DRAWN)
    def check(drawn):
        seen.update(word.partition("=")[0] for word in drawn[1])
        accepted[0] += not require_plain(*drawn)

    check()
    assert 5 < accepted[0] < 0.9 * count and len(seen & set(CONFIG)) > 0.3 * len(CONFIG)


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
PLACES = [(section,) for section in VALUES]
PLACES += [(s, name) for s, part in VALUES.items() if isinstance(part, dict) for name in part]
TEXTS = [b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe{\0}\0", b"\xef\xbb\xbf{}", b"[" * 10**6]
TEXTS += [b'{"source": {"name": "tfds"}} x', b'{"source": {}, "source": 5}', b"9" * 9999]


@st.composite
def config_files(draw):
    """Bytes of a saved config with values changed, added or removed, or of something else."""
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


@pytest.mark.parametrize("count", COUNTS)
def test_random_config_files_end_plainly(directory, count):
    """As `--config`, and as the config of a run that is resumed."""

    @settings(max_examples=count, **SEEDED)
    @given(content=config_files())
    def check(content):
        with tempfile.TemporaryDirectory(dir=".") as name:
            (Path(name) / "config.json").write_bytes(content)
            require_plain(run_fit, ["--config", f"{name}/config.json"])
            # Changed options are listed, one a line.
            require_plain(run_fit, ["--run-directory", name], lines=100)

    check()
