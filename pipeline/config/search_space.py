"""The options that a sweep varies: `train.learning-rate=1e-4..0.1:log`."""

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipeline.config import cli_parser, registry, type_hints
from pipeline.config.config import Config
from pipeline.utils.errors import UsageError

_RANGE = re.compile(r"(?P<low>[^,;]+?)\.\.(?P<high>[^,;:]+)(?P<log>:.*)?")
_EXAMPLE = "such as train.learning-rate=1e-4..0.1:log or model.filters=32,64"


@dataclasses.dataclass(frozen=True)
class Dimension:
    """An option, with a list of values or a range of numbers."""

    option: str
    """Such as `train.learning-rate`."""
    choices: tuple[str, ...] = ()
    """The values; empty for a range."""
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    """Whether the logarithm of the number is drawn uniformly."""
    is_whole: bool = False

    @property
    def ends(self) -> tuple[str, ...]:
        """All values of a list; the ends of a range."""
        return self.choices or (self.word(self.low), self.word(self.high))

    def word(self, value: float | str) -> str:
        """A value as on a command line."""
        if isinstance(value, str):
            return value
        return str(int(value)) if self.is_whole else repr(float(value))

    def flags(self, value: float | str) -> list[str]:
        """The option with a value, as on a command line."""
        if value in ("true", "false") and self._is_switch:
            section, dot, name = self.option.rpartition(".")
            no = "no-" if value == "false" else ""
            return [f"--{section}{dot}{no}{name}"]
        return [f"--{self.option}", self.word(value)]

    def default(self, config: Config) -> float | str | None:
        """The value in a config, or else that of the function that has the option; None
        if it is unknown, or not among the values.
        """
        text = self._default_text(config)
        if self.choices:
            return text if text in self.choices else None
        try:
            number = float(text or "nan")
        except ValueError:
            return None
        if not self.low <= number <= self.high:
            return None
        return int(number) if self.is_whole else number

    def sets_any(self, options: Collection[str]) -> bool:
        """Whether it varies one of these options, such as `train.learning_rate`."""
        flags = cli_parser.matching_flags(f"--{self.option}", Config)
        names = {flag.removeprefix("--").replace("-", "_") for flag in flags}
        return not names.isdisjoint(options)

    def _default_text(self, config: Config) -> str | None:
        flags = cli_parser.flags(Config)
        for flag in cli_parser.matching_flags(f"--{self.option}", Config):
            if flag in flags:
                value: Any = config
                for name in flags[flag].path:
                    value = getattr(value, name)
                return _text(value)
            section, _, option = flag.removeprefix("--").partition(".")
            for choice in registry.choices(Config):
                if (choice.section, choice.options) != (section, "options"):
                    continue
                chosen = getattr(config, section)
                if option in chosen.options:
                    return _text(chosen.options[option])
                function = registry.find(choice.registry, getattr(chosen, choice.field))
                if option in function.options:
                    return (function.options[option].default or "").strip("'")
        return None

    @property
    def _is_switch(self) -> bool:
        flags = cli_parser.flags(Config)
        matches = cli_parser.matching_flags(f"--{self.option}", Config)
        return any(flags[flag].switch is not None for flag in matches if flag in flags)


def _text(value: Any) -> str:
    """A value as in a list of `--over`."""
    text = ",".join(type_hints.words(value))
    return text.lower() if isinstance(value, bool) else text


def describe(values: Mapping[str, float | str]) -> str:
    """The values of options, with six digits: "train.learning-rate 0.0125207"."""
    parts = []
    for option, value in values.items():
        shown = f"{value:.6g}" if isinstance(value, float) else value
        parts.append(f"{option} {shown}")
    return ", ".join(parts)


def parse(words: Sequence[str]) -> list[Dimension]:
    """Reads `OPTION=LOW..HIGH[:log]` and `OPTION=VALUE,VALUE,...`, or
    `OPTION=VALUE;VALUE;...` if values contain commas.

    Raises UsageError if a word is none of them, or a range is empty.
    """
    dimensions: dict[str, Dimension] = {}
    for word in words:
        option, equals, values = word.removeprefix("--").partition("=")
        option = option.replace("_", "-")
        if not option or not equals or not values:
            raise UsageError(f"--over needs OPTION=VALUES, {_EXAMPLE}; got {word!r}")
        if option in dimensions:
            raise UsageError(f"--over: {option} is repeated")
        match = _RANGE.fullmatch(values)
        dimensions[option] = (
            _range(option, match) if match else _choices(option, values)
        )
    if not dimensions:
        raise UsageError(f"--over needs at least one option, {_EXAMPLE}")
    return list(dimensions.values())


def _range(option: str, match: re.Match[str]) -> Dimension:
    ends = match["low"], match["high"]
    try:
        low, high = map(float, ends)
    except ValueError:
        raise UsageError(
            f"--over {option}: a range has two numbers; got {ends[0]}..{ends[1]}"
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(
            f"--over {option}: the range {ends[0]}..{ends[1]} is empty; its first"
            " number must be smaller"
        )
    is_log = match["log"] == ":log"
    if match["log"] and not is_log:
        raise UsageError(
            f"--over {option}: only :log may follow a range; got {match['log']}"
        )
    if is_log and low <= 0:
        raise UsageError(
            f"--over {option}: a logarithmic range begins above 0; got {ends[0]}"
        )
    is_whole = all(re.fullmatch(r"-?\d+", end) for end in ends)
    return Dimension(option, (), low, high, is_log, is_whole)


def _choices(option: str, values: str) -> Dimension:
    choices = tuple(values.split(";" if ";" in values else ","))
    if "" in choices or len(set(choices)) < len(choices):
        raise UsageError(
            f"--over {option}: the values must differ and not be empty; got {values}"
        )
    if len(choices) == 1:
        raise UsageError(
            f"--over {option}: one value leaves nothing to vary; set it with --{option}"
            f" {choices[0]}, or give more, {_EXAMPLE}"
        )
    return Dimension(option, choices)
