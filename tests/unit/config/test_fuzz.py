"""Random command lines and config files: exit code 0, or 2 with one line and no
traceback.
"""

import contextlib
import io
import json
import sys
import tempfile
import unicodedata
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import clean, inspect, predict, verify
from pipeline.config import cli_parser, command_line, registry
from pipeline.config.config import Config
from pipeline.export import __main__ as export
from pipeline.training import preflight
from pipeline.utils import errors
from pipeline.utils.errors import UsageError

NASTY = [
    *(
        "",
        " ",
        "-",
        "--",
        "---",
        "=",
        "--=",
        "None",
        "nan",
        "-inf",
        "-NaN",
        "1e400",
        "1e-400",
    ),
    *(
        "9" * 5000,
        "-0",
        "-1",
        "0x10",
        "1_0",
        "٣",
        "é",
        "名前",
        "\ud800",
        "\udcff",
        "\x1b[2J",
    ),
    *(
        "a\nb",
        "../..",
        "/dev/null",
        "/dev/zero",
        "/proc/self/mem",
        "x" * 300,
        "x" * 5000,
    ),
    *(
        "~",
        "\0",
        "{[]: 1}",
        "a={[]: 1}",
        "a=b=c",
        "=x",
        "'\\d'",
        "a=" + "[" * 300,
        "padding=1e400",
    ),
    *(
        "flip",
        "crop",
        "padding=2",
        "digits",
        "json.dumps",
        "os.path",
        "...",
        "a..b",
        "True",
    ),
    *(
        "--config",
        "--resume",
        "--gpus",
        "(" * 500,
        "bash",
        "[1, 2",
        "%s",
        "{0}",
        "*",
        "tensorflow.x",
    ),
]
SEEDED = {"deadline": None, "derandomize": True, "database": None}
SEEDED["suppress_health_check"] = [
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
]


def run_fit(words):
    preflight.check(command_line.configure(words))


def run_clean(words):
    clean._check(clean._configure(words)[0])


def run_inspect(words):
    command_line.configure(words, inspect.PROGRAM, inspect.PURPOSE)


def run_verify(words):
    with mock.patch.object(
        verify, "verify", mock.Mock(side_effect=UsageError("not verified"))
    ):
        verify.main(words)


def run_predict(words):
    with mock.patch.object(
        predict, "Client", mock.Mock(side_effect=UsageError("no such model"))
    ):
        predict.main(words)


def run_export(words):
    with mock.patch.object(export, "export_again", lambda config: 0):
        export.main(words)


def one_of(words, size):
    return st.lists(st.sampled_from([*NASTY, *words.split()]), max_size=size)


CONFIG = [
    *cli_parser.flags(Config),
    *cli_parser.short_flags(Config),
    *(
        f"{prefix}{option}".replace("_", "-")
        for prefix, kind in {"--source.": "sources", "--model.": "models"}.items()
        for name in registry.names(kind)
        for option in registry.find(kind, name).options
    ),
]
WORDS = [
    *(
        "0",
        "1",
        "2",
        "16",
        "0.5",
        "0.1 0.2",
        "5 8",
        "auto",
        "None",
        "there",
        "here",
        "there/file",
    ),
    *(
        "adam",
        "sgd",
        "tiny",
        "linear",
        "folder",
        "arrays",
        "regression",
        "momentum=0.5",
        "flip",
    ),
]


@st.composite
def config_words(draw):
    """A recipe, flags and words: right, of a wrong type, missing, or a near miss of a
    flag.
    """
    words = [draw(st.sampled_from(["digits", "digits_tiny"]) | st.sampled_from(NASTY))]
    for _ in range(draw(st.integers(0, 4))):
        flag, kind = draw(st.sampled_from(CONFIG)), draw(st.integers(0, 9))
        if kind == 0:
            at = draw(st.integers(2, len(flag) - 1))
            flag = draw(
                st.sampled_from([flag[:at], flag[:at] + flag[at + 1 :], f"{flag}.x"])
            )
        if kind < 3:
            values = draw(st.lists(st.sampled_from(NASTY), max_size=3))
        else:
            values = draw(st.sampled_from(WORDS)).split()
        words += (
            [f"{flag}={values[0]}", *values[1:]]
            if kind % 2 and values
            else [flag, *values]
        )
    return words


COMMANDS = {
    **dict.fromkeys((run_fit, run_clean, run_inspect), config_words()),
    run_verify: one_of("--json there --no-json --python", 3),
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
DRAWN = st.sampled_from([run_fit, *COMMANDS]).flatmap(
    lambda c: st.tuples(st.just(c), COMMANDS[c])
)
COUNTS = [40, pytest.param(10_000, marks=pytest.mark.long)]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A current directory with a file, which no command may change."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    yield tmp_path
    assert sorted(tmp_path.rglob("*")) == before


def require_plain(command, words, lines=1):
    """Asserts that a command accepts the words silently, or refuses them in that many
    lines.

    Returns its exit code.
    """
    error = io.TextIOWrapper(io.BytesIO(), "utf-8")
    output = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with (
        mock.patch.object(sys, "argv", ["program", *words]),
        contextlib.redirect_stderr(error),
        contextlib.redirect_stdout(output),
        mock.patch.object(
            errors.signal, "signal"
        ),  # else this process would keep the handler
        pytest.raises(SystemExit) as caught,
    ):
        errors.run_command(command)
    error.flush()
    output.flush()
    code, message = caught.value.code or 0, error.buffer.getvalue().decode()
    if code and {"--log.json", "--json"} & set(words):
        assert message == ""
        (line,) = output.buffer.getvalue().decode().splitlines()
        message = f"error: {json.loads(line)['text']}\n"
    if code == 0:
        assert message == ""
        return code
    assert code == 2 and message.startswith("error: ") and message.endswith("\n"), (
        message
    )
    assert message.count("\n") <= lines and 10 < len(message) < 9000 * lines, message[
        :3000
    ]
    assert not any(
        unicodedata.category(c) == "Cc" for c in message.replace("\n", "", lines)
    )
    return code


@pytest.mark.parametrize("count", COUNTS)
def test_random_arguments_end_plainly(directory, count):
    seen, accepted = set(), [0]

    @settings(max_examples=count, **SEEDED)
    @given(drawn=DRAWN)
    def check(drawn):
        seen.update(word.partition("=")[0] for word in drawn[1])
        accepted[0] += not require_plain(*drawn)

    check()
    assert 0 < accepted[0] < 0.9 * count
    if count > 1000:
        assert len(seen & set(CONFIG)) > 0.2 * len(CONFIG)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*NASTY, 10**400, -1e308, [], {}, "tiny", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NASTY), inner, max_size=3)
    ),
    max_leaves=6,
)
VALUES = command_line.configure([]).as_json()
PLACES = [(section,) for section in VALUES]
PLACES += [
    (s, name) for s, part in VALUES.items() if isinstance(part, dict) for name in part
]
TEXTS = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b"\xff\xfe{\0}\0",
    b"\xef\xbb\xbf{}",
    b"[" * 10**6,
]
TEXTS += [
    b'{"source": {"name": "tfds"}} x',
    b'{"source": {}, "source": 5}',
    b"9" * 9999,
]


@st.composite
def config_files(draw):
    """Bytes of a saved config with values changed, added or removed, or of something
    else.
    """
    if draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from(TEXTS))
    values = json.loads(json.dumps(VALUES))
    for _ in range(draw(st.integers(1, 3))):
        *above, name = draw(st.sampled_from(PLACES))
        part = values
        for section in above:
            part = part.get(section)
        if isinstance(part, dict):
            part.pop(name, None)
            if draw(st.booleans()):
                part[draw(st.sampled_from([name, name, f"{name}s", *NASTY]))] = draw(
                    JUNK
                )
    return json.dumps(values).encode()


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
