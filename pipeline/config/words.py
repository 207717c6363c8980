"""Dictionaries of options as words of a command line: `padding=4`, `flip crop padding=4`."""

import ast
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from tyro.constructors import PrimitiveConstructorSpec

_LONGEST = 10_000  # characters of a value; Python's parser takes a second for ten million


def value_of(text: str) -> Any:
    """`3`, `0.5`, `True`, `(1, 2)` as Python writes them; anything else is a string."""
    if len(text) > _LONGEST:
        return text
    try:
        with warnings.catch_warnings(action="ignore"):  # of numbers and escapes that look wrong
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """`padding=4 fill=zero`: names and values; a later word replaces an earlier one."""
    for word in words:
        if "=" not in word:
            raise ValueError(f"words of the form name=value; {word[:100]!r} is not")
    return {name: value_of(text) for name, _, text in (word.partition("=") for word in words)}


def parse_operations(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`flip crop padding=4`: a bare word names an operation, name=value is an option of it."""
    operations: dict[str, dict[str, Any]] = {}
    for word in words:
        if "=" not in word:
            operations[word] = {}
        elif operations:
            operations[list(operations)[-1]].update(parse_options([word]))
        else:
            raise ValueError(f"names with their options; {word!r} stands before any operation")
    return operations


def option_words(options: Mapping[str, Any]) -> list[str]:
    """The words that `parse_options` reads back as these very values."""
    texts = {name: str(value) for name, value in options.items()}
    return [
        f"{name}={text}" if value_of(text) == options[name] else f"{name}={options[name]!r}"
        for name, text in texts.items()
    ]


def operation_words(operations: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The words that `parse_operations` reads back as these very values."""
    return [word for name in operations for word in (name, *option_words(operations[name]))]


def _words_type(metavar: str, parse: Any, words: Any) -> PrimitiveConstructorSpec:
    """How tyro reads and shows a dictionary written as several words."""
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"[{metavar} ...]",
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=words,
    )


Options = Annotated[dict[str, Any], _words_type("NAME=VALUE", parse_options, option_words)]
Operations = Annotated[
    dict[str, dict[str, Any]],
    _words_type("NAME [OPTION=VALUE]", parse_operations, operation_words),
]
