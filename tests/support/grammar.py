"""Strategies for command lines, right, misspelt or random, and how a command may end on them."""

import contextlib
import dataclasses
import io
import sys
import types
import typing
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st

from pipeline.config import registry
from pipeline.utils import errors

NASTY = [
    *("", " ", "-", "--", "---", "=", "--=", "None", "nan", "-inf", "-NaN", "1e400", "1e-400"),
    *("9" * 5000, "-0", "-1", "0x10", "1_0", "٣", "é", "名前", "\ud800", "\udcff", "\x1b[2J"),
    *("a\nb", "../..", "/dev/null", "/dev/zero", "/proc/self/mem", "x" * 300, "x" * 5000),
    *("~", "\0", "{[]: 1}", "a={[]: 1}", "a=b=c", "=x", "'\\d'", "a=" + "[" * 300, "padding=1e400"),
    *("flip", "crop", "padding=2", "digits", "json.dumps", "os.path", "...", "a..b", "True"),
    *("--config", "(" * 500, "bash", "[1, 2", "%s", "{0}", "*", "tensorflow.x"),
]
SEEDED = {"deadline": None, "derandomize": True, "database": None}
SEEDED["suppress_health_check"] = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def grammar(kind, prefix="--"):
    """Every flag of a dataclass, with a strategy for words of its own type."""
    found = {}
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], f"{prefix}{field.name}".replace("_", "-")
        if dataclasses.is_dataclass(hint):
            found |= grammar(hint, f"{name}.")
        elif hint is bool:
            found[name] = st.just([])
            found[f"{prefix}no-{field.name}".replace("_", "-")] = st.just([])
        else:
            found[name] = own(hint)
    return found


def options_of_functions(places):
    """Flags of the options of registered functions: `{"--source.": "sources"}`."""
    return {
        f"{prefix}{option}".replace("_", "-"): own(about.hint)
        for prefix, kind in places.items()
        for name in registry.names(kind)
        for option, about in registry.find(kind, name).options.items()
    }


def joined(parts):
    return [word for part in parts for word in part]


def own(hint):
    """Words that have the type of a hint, in range or not."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(own, arguments))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*map(own, arguments)).map(joined)
    if origin is tuple:
        return st.lists(own(arguments[0]), max_size=3).map(joined)
    if origin is typing.Literal:
        return st.sampled_from([[str(choice)] for choice in arguments])
    if origin is typing.Annotated and typing.get_origin(arguments[0]) is not dict:
        return own(arguments[0])
    if origin is typing.Annotated or hint is dict or origin in (dict, Mapping):
        # Words of options, and of operations with their options.
        names = st.sampled_from(["momentum", "filters", "padding", "warmup", "fill", "a"])
        values = st.sampled_from(["0.5", "2", "zero", "None", "nan", "(1, 2)", "[[[1]]]", "1e400"])
        pairs = st.tuples(names, values).map("=".join)
        operations = st.sampled_from(registry.names("augment"))
        return st.lists(pairs | operations, max_size=3)
    words = {
        int: st.integers(-3, 70) | st.integers(),
        float: st.floats(0, 1) | st.floats(),
        str: st.sampled_from(["adam", "sgd", "tiny", "linear", "folder", "arrays", "regression"])
        | st.text(max_size=6),
        Path: st.sampled_from([".", "here", "there/file", "there", "/proc/x"]),
        types.NoneType: st.none(),
    }
    return words[hint].map(lambda value: [str(value)])


def one_flag(flags):
    """A flag and its words: right, of a wrong type, missing, or a near miss of a flag."""
    nasty = st.lists(st.sampled_from(NASTY), max_size=3)
    names = st.sampled_from(sorted(flags))
    right = names.flatmap(lambda name: st.tuples(st.just(name), flags[name]))
    wrong = st.tuples(names, nasty)
    swapped = st.tuples(names, st.sampled_from([*flags.values()]).flatmap(lambda words: words))
    missed = st.tuples(st.tuples(names, st.integers(2, 9)).map(near_miss), nasty)
    return st.tuples(right | wrong | swapped | missed, st.booleans()).map(spelt)


def near_miss(drawn):
    name, at = drawn
    changes = (name[:at] + name[at + 1 :], name.upper(), name[1:], f"{name}.x", f"{name}é")
    return changes[at % len(changes)]


def spelt(drawn):
    """With a space or with `=`."""
    (name, words), equals = drawn
    return [f"{name}={words[0]}", *words[1:]] if words and equals else [name, *words]


def arguments(flags, first):
    """Whole argument lists."""
    start = st.sampled_from([[], [], *([word] for word in first)])
    parts = st.lists(one_flag(flags), max_size=4).map(joined)
    return st.tuples(start, parts).map(lambda parts: parts[0] + parts[1])


def require_plain(command, words, lines=1):
    """Asserts that a command accepts the words silently, or refuses them in that many lines.

    Returns its exit code.
    """
    error = io.TextIOWrapper(io.BytesIO(), "utf-8")
    output = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with (
        mock.patch.object(sys, "argv", ["program", *words]),
        contextlib.redirect_stderr(error),
        contextlib.redirect_stdout(output),
        mock.patch.object(errors.signal, "signal"),  # else this process would keep the handler
        pytest.raises(SystemExit) as caught,
    ):
        errors.run_command(command)
    error.flush()
    code, message = caught.value.code or 0, error.buffer.getvalue().decode()
    if code == 0:
        assert message == ""
        return code
    assert code == 2 and message.startswith("error: ") and message.endswith("\n"), message
    assert message.count("\n") <= lines and 10 < len(message) < 9000 * lines, message[:3000]
    assert not any(unicodedata.category(c) == "Cc" for c in message.replace("\n", "", lines))
    return code
