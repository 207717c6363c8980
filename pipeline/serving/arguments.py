"""Requests of numbers that a user gives, for models that take no files."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.utils.errors import UsageError, suggest


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument that is one number for each example."""

    default: float
    dtype: np.dtype
    counts_up: bool = False
    """Whether it grows by 1 from example to example, such as a seed."""
    names: tuple[str, ...] = ()
    """Names of the values 0, 1, ..., such as those of classes."""

    def values(self, flag: str, word: str | None, count: int) -> np.ndarray:
        """The values of `count` examples, (count,), from the word of the user.

        Without a word, it is the default or, of an argument with names, all of its
        values in turn. Raises UsageError if the word is not such a value.
        """
        steps = np.arange(count)
        if word is None and self.names:
            return (steps % len(self.names)).astype(self.dtype)
        start = self.default if word is None else self._read(flag, word)
        try:
            first = np.array(start, self.dtype)
        except (OverflowError, ValueError):
            raise UsageError(f"{flag} must fit {self.dtype.name}; got {word}") from None
        return first + steps.astype(self.dtype) * self.counts_up

    def _read(self, flag: str, word: str) -> float:
        if word in self.names:
            return self.names.index(word)
        lower = [name.casefold() for name in self.names]
        if lower.count(word.casefold()) == 1:
            return lower.index(word.casefold())
        is_whole = self.dtype.kind in "iu"
        try:
            value = int(word) if is_whole else float(word)
        except ValueError:
            kind = "a whole number" if is_whole else "a number"
            if self.names:
                raise UsageError(
                    f"{flag}: unknown {word!r}; {suggest(word, self.names)}"
                ) from None
            raise UsageError(f"{flag} must be {kind}; got {word!r}") from None
        if self.names and not 0 <= value < len(self.names):
            last = len(self.names) - 1
            raise UsageError(f"{flag} must be a name, or from 0 to {last}; got {word}")
        return value


def arguments_of(signature: Mapping[str, Any]) -> dict[str, Argument]:
    """The arguments of a signature as the manifest of a version describes it; empty
    unless all have defaults.
    """
    defaults = signature.get("defaults", {})
    arguments = {}
    for name, default in defaults.items():
        arguments[name] = Argument(
            default,
            np.dtype(signature["inputs"][name]["dtype"]),
            name in signature.get("counts_up", ()),
            tuple(signature.get("names", {}).get(name, ())),
        )
    return arguments


def request(
    arguments: Mapping[str, Argument], words: Mapping[str, str], count: int
) -> dict[str, np.ndarray]:
    """The values of all arguments for `count` examples, from words by name of an
    argument; `class` stands for `class_id`.

    Raises UsageError for an unknown name, or a word that is not a value of it.
    """
    short_names = {name.removesuffix("_id"): name for name in arguments}
    for name in words:
        if name not in short_names and name not in arguments:
            raise UsageError(
                f"unknown option --{name}; {suggest(name, [*short_names, 'count'])}"
            )
    values = {}
    for short, name in short_names.items():
        word = words.get(name, words.get(short))
        values[name] = arguments[name].values(f"--{short}", word, count)
    return values
