"""Checks of config values: types and limits first, then what each section adds."""

import functools
import re
import typing
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.constructors import PrimitiveConstructorSpec

from pipeline.config import type_hints
from pipeline.utils.errors import UsageError


def require(condition: bool, flag: str, received: Any, meant: str) -> None:
    """Raises UsageError naming the flag and what it must be, unless the condition holds."""
    if not condition:
        raise UsageError(f"{flag} must be {meant}, received {received}")


def require_range(given: Sequence[float], flag: str, low: float, high: float | None) -> None:
    """Raises UsageError unless `given` is two numbers, the smaller first, from `low` to `high`."""
    good = len(given) == 2 and low <= given[0] <= given[1] and (high is None or given[1] <= high)
    limits = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"
    received = ",".join(f"{number:g}" for number in given)
    require(good, flag, received, f"two numbers with a comma, the smaller first, {limits}")


def require_file_name(name: str, flag: str) -> None:
    """Raises UsageError unless `name` can be one plain file name on any file system."""
    plain = name not in ("", ".", "..") and not set(name) & set("/\\")
    require(
        plain and _storable(name) and len(name.encode()) <= 200,
        flag,
        repr(name),
        "a plain file name",
    )


def require_path(path: Path, flag: str) -> None:
    """Raises UsageError unless TensorFlow can use the path, and a message show it on a line.

    Nor for `~`, which a shell leaves as it is after `=` or in quotes: a folder of that name would
    be made, and a saved config would mean the home folder by it.
    """
    require(_storable(str(path)), flag, repr(str(path)), _PATH)
    if path.parts[:1] and path.parts[0].startswith("~"):
        raise UsageError(
            f"{flag}: the ~ of {path} is not expanded here; give the whole path, "
            "such as one that begins with $HOME"
        )


def _storable(text: str) -> bool:
    """Whether TensorFlow, which writes UTF-8, can use it in a path, and a message show it."""
    # A line break would part a message in two, an escape would rule the terminal.
    return not {"Cc", "Cs", "Zl", "Zp"}.intersection(map(unicodedata.category, text))


_PATH = "a path in UTF-8 without control characters"
_hints = functools.cache(functools.partial(typing.get_type_hints, include_extras=True))


class Checked:
    """A section whose values have the types of its fields and pass its own `_check`."""

    def __post_init__(self) -> None:
        section = type(self).__name__.lower()
        prefix = "--" if section == "config" else f"--{section}."
        for name, hint in _hints(type(self)).items():
            value, flag = getattr(self, name), prefix + name.replace("_", "-")
            require(type_hints.fits(hint, value), flag, repr(value), type_hints.describe(hint))
            if isinstance(value, Path):
                require_path(value, flag)
        self._check()

    def _check(self) -> None:
        """Raises UsageError for values that their types allow and the run does not."""


def parse_operations(words: Sequence[str]) -> dict[str, dict[str, str]]:
    """`flip crop padding=4`: a bare word names an operation, name=value is an option of it."""
    operations: dict[str, dict[str, str]] = {}
    for word in words:
        if "=" not in word:
            operations[word] = {}
        elif operations:
            operations[list(operations)[-1]].update(type_hints.options([word]))
        else:
            raise ValueError(f"names with their options; {word!r} comes before any operation")
    return operations


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Options as the words of a command line: `padding=4`."""
    return [f"{name}={_text(value)}" for name, value in options.items()]


def operation_words(operations: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Operations with their options as the words of a command line: `flip crop padding=4`."""
    return [word for name in operations for word in (name, *option_words(operations[name]))]


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) + "," * (len(value) == 1)
    return str(value)


def _written_as_words(metavar: str, parse: Any, words: Any) -> PrimitiveConstructorSpec:
    """How a dictionary is read from several words, and shown in help."""
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"[{metavar} ...]",
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=words,
    )


Options = Annotated[
    dict[str, Any], _written_as_words("NAME=VALUE", type_hints.options, option_words)
]
Operations = Annotated[
    dict[str, dict[str, Any]],
    _written_as_words("NAME [OPTION=VALUE]", parse_operations, operation_words),
]


def parse_duration(text: str) -> float:
    """`90s`, `10m`, `1h30m`, `2d` to seconds. Raises ValueError for anything else."""
    found = re.fullmatch(
        r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip(), re.ASCII
    )
    parts = [float(part or 0) for part in found.groups()] if found else []
    if not any(parts):
        raise ValueError(f"{text!r} is not a duration such as 90s, 10m, 1h30m or 2d")
    return sum(part * unit for part, unit in zip(parts, (86400, 3600, 60, 1), strict=True))


_UNITS = {"MIB": 2**20, "GIB": 2**30, "MB": 10**6, "GB": 10**9}


def parse_devices(devices: str) -> tuple[int, ...] | None:
    """`0,2` -> (0, 2); None for `auto` and `cpu`, which name no GPU."""
    if devices in ("auto", "cpu"):
        return None
    return tuple(int(number) for number in devices.split(","))


def parse_memory(text: str) -> tuple[float, bool]:
    """`8GiB` -> (8589934592, False), bytes; `80%` -> (0.8, True), a share of the GPU's memory.

    Raises ValueError for anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(%|[MG]i?B)", text.strip(), flags=re.IGNORECASE)
    if not found:
        raise ValueError(text)
    number, unit = float(found[1]), found[2].upper()
    value = number / 100 if unit == "%" else number * _UNITS[unit]
    if not (0 < value <= 1 if unit == "%" else 2**20 <= value < 2**50):
        raise ValueError(text)
    return value, unit == "%"


def require_gpu_options(
    devices: str, gpu_memory: str | None, require_gpu: bool, replicas: str | int
) -> None:
    """Raises UsageError for values of these options of `--runtime` that contradict each other."""
    well_formed = re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", devices)
    known = (parse_devices(devices) or ()) if well_formed else ()
    good = devices in ("auto", "cpu") or (bool(known) and len(set(known)) == len(known))
    meant = "auto, cpu, or different numbers such as 0,2"
    require(good, "--runtime.devices", repr(devices), meant)
    if known and replicas != "auto" and replicas > len(known):
        raise UsageError(
            f"--runtime.replicas {replicas} is more than the {len(known)} GPUs of "
            f"--runtime.devices {devices}"
        )
    if gpu_memory is not None:
        try:
            parse_memory(gpu_memory)
        except ValueError:
            meant = "at least 1MiB, such as 8GiB, or a share such as 80%"
            require(False, "--runtime.gpu-memory", repr(gpu_memory), meant)
    for flag, given in (("require-gpu", require_gpu), ("gpu-memory", gpu_memory)):
        if devices == "cpu" and given:
            raise UsageError(f"use only one of --runtime.devices cpu and --runtime.{flag}")
