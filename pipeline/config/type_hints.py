"""Reads, checks and describes values by their type hints, for sections and registered
functions.

Supports int, float, bool, str, Path, None, Any, unions, `Literal`, `tuple[...]`, `dict`
and `Mapping`, and `Annotated` with limits: `Annotated[int, (1, None)]` is an int of at
least 1, and `Annotated[Path, "directory"]` is the path of an existing directory (see
`_LIMITS`). Limits of a tuple apply to each of its values. `Annotated[int, CHANGEABLE]`
is an option of a task that does not decide what a run learns.
"""

import ast
import contextlib
import dataclasses
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pipeline.config import formats
from pipeline.utils.console import for_caller

CHANGEABLE = "changeable"


def read(hint: Any, words: Sequence[str]) -> Any:
    """Converts the words of a command line to a value.

    Raises:
        ValueError: The words do not fit the hint.
        OverflowError: A number is too large.
    """
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Annotated:
        return _require(hint, read(arguments[0], words))
    if origin in (Union, types.UnionType):
        return _first(arguments, words)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        return _dict(arguments[1] if arguments else Any, words)
    if origin is tuple:
        return _tuple(arguments, words)
    if hint is Any:
        return _literal(" ".join(words))
    if hint is bool and not words:
        return True
    (word,) = words
    if origin is Literal:
        return arguments[list(map(str, arguments)).index(word)]
    if hint is Path and not word:
        # An empty shell variable would be the current directory.
        raise ValueError(word)
    if hint in (str, Path):
        return hint(word)
    value = _require(hint, _literal(word))
    return float(value) if hint is float else value


def _tuple(kinds: tuple[Any, ...], words: Sequence[str]) -> tuple[Any, ...]:
    if len(words) == 1 and kinds[0] is not str:
        parts = words[0].strip("()[]").split(",")  # `0.5,0.75` and `(0.5, 0.75)`
        words = [part.strip() for part in parts if part]
    items = [kinds[0]] * len(words) if kinds[-1] is Ellipsis else kinds
    return tuple(read(kind, [word]) for kind, word in zip(items, words, strict=True))


def _dict(kind: Any, words: Sequence[str]) -> dict[str, Any]:
    """Reads `padding=4 fill=zero`."""
    if typing.get_origin(kind) is dict:
        return {} if list(words) == ["none"] else _nested_dict(words)
    values: dict[str, Any] = {}
    for word in words:
        # A number contains no `=`, but the name before it may.
        split = str.rpartition if _is_number(kind) else str.partition
        name, equals, text = split(word, "=")
        if not equals:
            raise ValueError(word)
        values[name] = text if kind is Any else read(kind, [text])
    return values


def _nested_dict(words: Sequence[str]) -> dict[str, Any]:
    """Reads `flip crop padding=4`: the options of each name."""
    values: dict[str, dict[str, str]] = {}
    options: dict[str, str] | None = None
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            options = {}
            values[name] = options
        elif options is None:
            raise ValueError(word)
        else:
            options[name] = text
    return values


def _is_number(kind: Any) -> bool:
    if typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    return kind in (int, float)


def _first(kinds: Sequence[Any], words: Sequence[str]) -> Any:
    """Reads the words by the first of several hints that they fit; None comes first."""
    for kind in sorted(kinds, key=lambda kind: kind is not types.NoneType):
        with contextlib.suppress(ValueError, OverflowError):
            return read(kind, words)
    raise ValueError(words)


def _require(hint: Any, value: Any) -> Any:
    if not fits(hint, value):
        raise ValueError(value)
    return value


def _literal(text: str) -> Any:
    """`3`, `0.5`, `True`, `(1, 2)` as Python reads them; anything else is a string.

    `true` and `false` are written so in JSON and YAML.
    """
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def words(value: Any) -> list[str]:
    """A value as the words of a command line: `flip crop padding=4`, `0.5,0.75`."""
    if isinstance(value, tuple | list):
        return list(map(str, value))
    if not isinstance(value, Mapping):
        return [str(value)]
    result = []
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            result += [name, *words(inner)]
            continue
        text = str(inner)
        if isinstance(inner, tuple | list):
            text = ",".join(map(str, inner))
            if len(inner) == 1:
                text += ","
        result.append(f"{name}={text}")
    return result


def from_json(hint: Any, value: Any) -> Any:
    """Converts a value of a JSON file or of Python to the type of the hint.

    A list becomes a tuple, for example. In a dictionary from strings to numbers, such
    as `class_weight`, whole numbers as keys become strings.
    """
    if isinstance(value, str) and is_path(hint):
        return Path(value)
    if isinstance(value, Mapping) and _dict_hint(hint):
        key_hint, value_hint = typing.get_args(_dict_hint(hint))
        if key_hint is str and _is_number(value_hint):
            return {_key(key): number for key, number in value.items()}
    if hint is float and type(value) is int:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def _dict_hint(hint: Any) -> Any:
    """The hint itself, or the part of a union, that is a dictionary; None: no part."""
    parts = [hint]
    if typing.get_origin(hint) in (Union, types.UnionType):
        parts = list(typing.get_args(hint))
    return next((part for part in parts if typing.get_origin(part) is dict), None)


def _key(key: Any) -> Any:
    """A whole number as a string; the string of a NumPy string."""
    if isinstance(key, Real) and float(key).is_integer():
        return str(int(float(key)))
    return str(key) if isinstance(key, str) else key


def plain(value: Any) -> Any:
    """Converts NumPy scalars to Python values, also in dictionaries, lists and
    tuples.
    """
    if type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    is_scalar = type(value).__module__ == "numpy" and getattr(value, "shape", 0) == ()
    return value.item() if is_scalar else value


def is_path(hint: Any) -> bool:
    """Whether values of this type are, or contain, paths."""
    return hint is Path or any(map(is_path, typing.get_args(hint)))


def fits(hint: Any, value: Any) -> bool:
    """Whether a value has the type. True and False are not numbers; an int is also a
    float.
    """
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Annotated:
        if not fits(arguments[0], value):
            return False
        return all(_meets(limit, value) for limit in _limits(hint))
    if origin in (Union, types.UnionType):
        return any(fits(kind, value) for kind in arguments)
    if origin is Literal:
        # 1 == True, but they are of different types.
        literals = [(type(choice), choice) for choice in arguments]
        return (type(value), value) in literals
    if origin is tuple:
        if not isinstance(value, tuple | list):  # a JSON file has lists
            return False
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return len(kinds) == len(value) and all(map(fits, kinds, value))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            return False
        key_hint, value_hint = arguments
        keys_fit = all(fits(key_hint, key) for key in value)
        return keys_fit and all(fits(value_hint, item) for item in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, Path | str)
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def is_changeable(hint: Any) -> bool:
    """Whether a hint, or one of a union, is annotated with `CHANGEABLE`."""
    is_annotated = CHANGEABLE in getattr(hint, "__metadata__", ())
    return is_annotated or any(map(is_changeable, typing.get_args(hint)))


_MODEL_NAME = "a plain file name without any of * ? [ ] \\ : and without a leading dot"
_Limit = tuple[Callable[[Any], Any], str]
# Name of a limit -> a condition, which is not met if it returns False or raises
# ValueError, and a description, which replaces the description of the type for paths
# and strings.
_LIMITS: dict[str, _Limit] = {
    "directory": (os.path.isdir, "an existing directory"),
    "file": (os.path.isfile, "an existing file"),
    "exists": (os.path.exists, "an existing path"),
    "file name": (formats.is_file_name, "a plain file name"),
    "model name": (formats.is_model_name, _MODEL_NAME),
    "duration": (formats.parse_duration, "a duration such as 90s, 10m, 1h30m or 2d"),
    "devices": (
        formats.parse_devices,
        "auto, cpu, or different GPU numbers such as 0,2",
    ),
    "memory": (
        formats.parse_memory,
        "at least 1MiB, such as 8GiB, or a share such as 80%",
    ),
    "positive": (lambda value: 0 < value < 3e38, "above 0 and finite in float32"),
    "not negative": (
        lambda value: 0 <= value < 3e38,
        "of at least 0 and finite in float32",
    ),
    "share": (lambda value: 0 <= value < 1, "of at least 0 and below 1"),
    "seed": (lambda value: 0 <= value < 2**31, "of at least 0 and below 2**31"),
    "ascending": (lambda values: list(values) == sorted(values), "in ascending order"),
    "1 to 100 values": (lambda values: 1 <= len(values) <= 100, "1 to 100 values"),
}


def _limits(hint: Any) -> list[_Limit]:
    limits = []
    for mark in hint.__metadata__:
        if isinstance(mark, str) and mark != CHANGEABLE:
            limits.append(_LIMITS[mark])
        elif isinstance(mark, tuple):
            limits.append(_range(*mark))
    return limits


def _range(low: Any, high: Any) -> _Limit:
    def is_within(value: Any) -> bool:
        values = value if isinstance(value, tuple | list) else (value,)
        if high is None:
            return all(low <= number for number in values)
        return all(low <= number <= high for number in values)

    if high is None:
        return is_within, f"of at least {low:,}"
    return is_within, f"from {low:,} to {high:,}"


def _meets(limit: _Limit, value: Any) -> bool:
    condition, _ = limit
    try:
        return condition(value) is not False
    except ValueError:
        return False


_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "one word",
    Path: "a path",
    bool: "True or False",
    types.NoneType: "None",
}


def describe(hint: Any) -> str:
    """The values that fit a hint, in words: `a whole number of at least 1`."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Annotated:
        for mark in hint.__metadata__:
            if callable(mark):
                return str(mark())
        limits = [description for _, description in _limits(hint)]
        if limits and arguments[0] in (Path, str):
            return limits[0]
        separator = ", " if typing.get_origin(arguments[0]) is tuple else " "
        return separator.join([describe(arguments[0]), *limits])
    if origin in (Union, types.UnionType):
        return " or ".join(map(describe, arguments))
    if origin is Literal:
        texts = list(map(str, arguments))
        return f"one of {', '.join(texts)}" if len(texts) > 1 else texts[0]
    if origin is tuple:
        kind = describe(arguments[0])
        if arguments[-1] is not Ellipsis:
            return f"{len(arguments)} values, each {kind}"
        if arguments[0] is str:
            return "words"
        return f"values separated by commas, each {kind}"
    if dataclasses.is_dataclass(hint):
        return "a section (a dictionary of options)"
    if origin in (dict, Mapping):
        words = for_caller("words of the form name=value", "a dictionary")
        if typing.get_origin(arguments[1]) is Annotated:
            return f"{words}, each value {describe(arguments[1])}"
        return words
    return _NAMES.get(hint, "a value")
