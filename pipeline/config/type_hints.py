"""Reads, checks and describes values by their type hints, for sections and registered
functions.

Supports int, float, bool, str, Path, None, Any, unions, `Literal`, `tuple[...]`, `dict`
and `Mapping`, and `Annotated` with limits: `Annotated[int, (1, None)]` is an int of at
least 1, and `Annotated[Path, "directory"]` is the path of an existing directory (see
`_LIMITS`). Limits of a tuple apply to each of its values.
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


def read(hint: Any, words: Sequence[str]) -> Any:
    """The value that the words of a command line stand for.

    Raises:
        ValueError: The words do not fit the hint; OverflowError for a number that is
            too large.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _require(hint, read(arguments[0], words))
    if origin in (Union, types.UnionType):
        return _first(arguments, words)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        return _dict((arguments or (str, Any))[1], words)
    if origin is tuple:
        return _tuple(arguments, words)
    if hint is Any:
        return _literal(" ".join(words))
    if hint is bool and not words:
        return True
    (word,) = words
    if origin is Literal:
        return arguments[list(map(str, arguments)).index(word)]
    if (
        hint is Path and not word
    ):  # an empty shell variable would be the current directory
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
    """`padding=4 fill=zero`, or, if the values are dictionaries, `flip
    crop padding=4`.
    """
    found: dict[str, Any] = {}
    options, nested = found, typing.get_origin(kind) is dict
    for word in words:
        # A number contains no `=`, but the name before it may.
        name, equals, text = (
            word.rpartition("=") if _is_number(kind) else word.partition("=")
        )
        if nested and not equals:
            options = found[name] = {}
        elif not equals or (nested and not found):
            raise ValueError(word)
        else:
            options[name] = text if nested or kind is Any else read(kind, [text])
    return found


def _is_number(kind: Any) -> bool:
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    return kind in (int, float)


def _first(kinds: Sequence[Any], words: Sequence[str]) -> Any:
    """Reads the words by the first of several hints that they fit; None is
    tried first.
    """
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
    if not isinstance(value, Mapping):
        return (
            list(map(str, value)) if isinstance(value, tuple | list) else [str(value)]
        )
    found = []
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            found += [name, *words(inner)]
        elif isinstance(inner, tuple | list):
            found.append(
                f"{name}={','.join(map(str, inner))}" + "," * (len(inner) == 1)
            )
        else:
            found.append(f"{name}={inner}")
    return found


def from_json(hint: Any, value: Any) -> Any:
    """Converts a value of a JSON file or of Python to the type of the hint.

    A list becomes a tuple, for example; in a dictionary from strings to numbers, such
    as `class_weight`, whole numbers as keys become strings, and numbers of NumPy become
    Python's.
    """
    if isinstance(value, str) and is_path(hint):
        return Path(value)
    if isinstance(value, Mapping) and typing.get_origin(hint) is dict:
        key_hint, value_hint = typing.get_args(hint)
        if key_hint is str and _is_number(value_hint):
            return {_key(key): _plain(number) for key, number in value.items()}
    if hint is float and type(value) is int:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def _key(key: Any) -> Any:
    """A whole number as a string; the string of a NumPy string."""
    if isinstance(key, Real) and float(key).is_integer():
        return str(int(float(key)))
    return str(key) if isinstance(key, str) else key


def _plain(number: Any) -> Any:
    """A number of NumPy as one of Python."""
    is_other = isinstance(number, Real) and type(number) not in (bool, int, float)
    return number.item() if is_other and hasattr(number, "item") else number


def is_path(hint: Any) -> bool:
    """Whether values of this type are, or contain, paths."""
    return hint is Path or any(map(is_path, typing.get_args(hint)))


def fits(hint: Any, value: Any) -> bool:
    """Whether a value has the type. True and False are not numbers; an int is also a
    float.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return fits(arguments[0], value) and all(
            _meets(limit, value) for limit in _limits(hint)
        )
    if origin in (Union, types.UnionType):
        return any(fits(kind, value) for kind in arguments)
    if origin is Literal:
        return any(
            type(value) is type(choice) and value == choice for choice in arguments
        )
    if origin is tuple:
        if not isinstance(value, tuple | list):  # a JSON file has lists
            return False
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return len(kinds) == len(value) and all(map(fits, kinds, value))
    if origin in (dict, Mapping):
        pairs = value.items() if isinstance(value, Mapping) else [(None, None)]
        return all(
            fits(arguments[0], key) and fits(arguments[1], item) for key, item in pairs
        )
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, Path | str)
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


_MODEL_NAME = "a plain file name without any of * ? [ ] \\ : and without a leading dot"
_Limit = tuple[Callable[[Any], Any], str]
# Name of a limit -> a condition, which is not met if it returns False or raises
# ValueError, and a description, which replaces that of the type for paths and strings.
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
    limits = [limit for limit in hint.__metadata__ if isinstance(limit, tuple | str)]
    return [
        _LIMITS[limit] if isinstance(limit, str) else _range(*limit) for limit in limits
    ]


def _range(low: Any, high: Any) -> _Limit:
    def within(value: Any) -> bool:
        values = value if isinstance(value, tuple | list) else (value,)
        return all(low <= one and (high is None or one <= high) for one in values)

    return (
        within,
        f"of at least {low:,}" if high is None else f"from {low:,} to {high:,}",
    )


def _meets(limit: _Limit, value: Any) -> bool:
    try:
        return limit[0](value) is not False
    except ValueError:
        return False


_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "one word",
    Path: "a path",
    bool: "True or False",
    types.NoneType: "None",
    dict: "words of the form name=value, or in Python a dictionary",
}


def describe(hint: Any) -> str:
    """The values that fit a hint, in words: `a whole number of at least 1`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        for choices in filter(callable, hint.__metadata__):
            return str(choices())
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
        if arguments[-1] is Ellipsis:
            return (
                "words"
                if arguments[0] is str
                else f"values separated by commas, each {kind}"
            )
        return f"{len(arguments)} values, each {kind}"
    if dataclasses.is_dataclass(hint):
        return "a section"
    if origin in (dict, Mapping):
        numbers = typing.get_origin(arguments[1]) is Annotated
        return _NAMES[dict] + (
            f", each value {describe(arguments[1])}" if numbers else ""
        )
    return _NAMES.get(hint, "a value")
