"""Type hints: values read from words, checked, and described, for sections and siblings alike.

Understood are int, float, bool, str, Path, None, Any, unions, `Literal`, `tuple[...]`, `dict` and
`Mapping`, and `Annotated` with limits: `Annotated[int, (1, None)]` is an int of at least 1, and
`Annotated[Path, "directory"]` the path of an existing directory (see `_LIMITS`).
"""

import ast
import dataclasses
import glob
import os
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union

_LONGEST = 10_000  # characters of a value; Python's parser takes a second for ten million


def read(hint: Any, words: Sequence[str]) -> Any:
    """The value that the words of a command line stand for.

    Raises:
        ValueError: They do not fit the hint; the message says what does.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        own = [m.instance_from_str for m in hint.__metadata__ if hasattr(m, "instance_from_str")]
        if own:
            return own[0](words)
        try:
            return _require(hint, read(arguments[0], words))
        except ValueError:
            raise ValueError(describe(hint)) from None
    if origin in (Union, types.UnionType):
        return _first(arguments, words)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        return options(words)
    if origin is tuple:
        return _tuple(hint, arguments, words)
    if hint is Any:
        return value_of(" ".join(words))
    if hint is bool and not words:
        return True
    if len(words) != 1:
        raise ValueError(describe(hint))
    if origin is Literal:
        return _choice(arguments, words[0])
    return _scalar(hint, words[0])


_WORDS: dict[Any, dict[str, Any]] = {
    types.NoneType: {"None": None},
    bool: {"True": True, "False": False},
}


def _scalar(hint: Any, word: str) -> Any:
    try:
        if hint in _WORDS:
            return _WORDS[hint][word]
        if hint is Path and not word:  # an empty shell variable would be the current directory
            raise ValueError
        return hint(word)
    except (ValueError, KeyError):
        raise ValueError(describe(hint)) from None


def _tuple(hint: Any, kinds: tuple[Any, ...], words: Sequence[str]) -> tuple[Any, ...]:
    if len(words) == 1 and kinds[0] is not str and not fits(kinds[0], value_of(words[0])):
        value = value_of(words[0])  # `0.5,0.75` and `(0.5, 0.75)`
        value = value if isinstance(value, tuple | list) else (value,)
        return tuple(_require(hint, tuple(value)))
    several = kinds[-1] is Ellipsis
    if len(words) != len(kinds) and not several:
        raise ValueError(describe(hint))
    items = [kinds[0]] * len(words) if several else kinds
    try:
        return tuple(read(kind, [word]) for kind, word in zip(items, words, strict=True))
    except ValueError:
        raise ValueError(describe(hint)) from None


def _first(kinds: Sequence[Any], words: Sequence[str]) -> Any:
    """The value by the first of several hints that it fits; None comes first."""
    said = []
    for kind in sorted(kinds, key=lambda kind: kind is not types.NoneType):
        try:
            return read(kind, words)
        except ValueError as error:
            said.append(str(error))
    raise ValueError(" or ".join([*said[1:], said[0]] if said[0] == "None" else said))


def _choice(choices: Sequence[Any], word: str) -> Any:
    for choice in choices:
        if word == str(choice):
            return choice
    raise ValueError(_one_of(choices))


def _require(hint: Any, value: Any) -> Any:
    if not fits(hint, value):
        raise ValueError(describe(hint))
    return value


def fits(hint: Any, value: Any) -> bool:
    """Whether a value has the type; True and False are not numbers, an int is a float."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        limits = [limit for limit in hint.__metadata__ if isinstance(limit, tuple | str)]
        return fits(arguments[0], value) and all(_within(limit, value) for limit in limits)
    if origin in (Union, types.UnionType):
        return any(fits(kind, value) for kind in arguments)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin is tuple:
        if not isinstance(value, tuple | list):  # a JSON file holds lists
            return False
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return len(kinds) == len(value) and all(map(fits, kinds, value))
    if origin in (dict, Mapping):
        pairs = value.items() if isinstance(value, Mapping) else [(None, None)]
        return all(fits(arguments[0], key) and fits(arguments[1], item) for key, item in pairs)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, Path | str)
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


# Limits by name: what holds, and how a message says it.
_LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "directory": (os.path.isdir, "an existing directory"),
    "exists": (lambda path: glob.has_magic(str(path)) or os.path.exists(path), "an existing path"),
    "positive": (lambda value: 0 < value < 3e38, "above 0 and finite in float32"),
    "not negative": (lambda value: 0 <= value < 3e38, "at least 0 and finite in float32"),
    "share": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "seed": (lambda value: 0 <= value < 2**31, "at least 0 and below 2**31"),
}


def _within(limit: tuple[Any, Any] | str, value: Any) -> bool:
    if isinstance(limit, str):
        return _LIMITS[limit][0](value)
    low, high = limit
    return (low is None or low <= value) and (high is None or value <= high)


_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "one word",
    Path: "a path",
    bool: "True or False",
    types.NoneType: "None",
    dict: "words of the form name=value",
}


def describe(hint: Any) -> str:
    """What a hint asks for, in words: `a whole number, at least 1`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        limits = [limit for limit in hint.__metadata__ if isinstance(limit, tuple | str)]
        if arguments[0] is Path and limits:
            return _LIMITS[limits[0]][1]
        return ", ".join([describe(arguments[0]), *map(_limit, limits)])
    if origin in (Union, types.UnionType):
        return " or ".join(map(describe, arguments))
    if origin is Literal:
        return _one_of(arguments)
    if origin is tuple:
        kind = describe(arguments[0])
        if arguments[-1] is Ellipsis:
            return f"values with commas (a single one: `value,`), each {kind}"
        return f"{len(arguments)} values, each {kind}"
    if dataclasses.is_dataclass(hint):
        return "a section"
    return _NAMES.get(origin or hint, _NAMES[dict] if origin is Mapping else "a value")


def _one_of(choices: Sequence[Any]) -> str:
    texts = [str(choice) for choice in choices]
    return f"one of {', '.join(texts)}" if len(texts) > 1 else texts[0]


def _limit(limit: tuple[Any, Any] | str) -> str:
    if isinstance(limit, str):
        return _LIMITS[limit][1]
    low, high = limit
    return f"at least {low:,}" if high is None else f"from {low:,} to {high:,}"


def options(words: Sequence[str]) -> dict[str, str]:
    """`padding=4 fill=zero`: names and texts; a later word replaces an earlier one."""
    for word in words:
        if "=" not in word:
            raise ValueError(f"words of the form name=value; {word[:100]!r} is not")
    return {name: text for name, _, text in (word.partition("=") for word in words)}


def value_of(text: str) -> Any:
    """`3`, `0.5`, `True`, `(1, 2)` as Python writes them; anything else is a string."""
    if len(text) > _LONGEST:
        return text
    try:
        with warnings.catch_warnings(action="ignore"):  # of numbers and escapes that look wrong
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
