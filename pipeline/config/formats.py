"""Strings with a fixed format: durations, amounts of memory, GPUs, file names."""

import re
import unicodedata

from pipeline.utils.tf_paths import PATTERN

# A colon separates the name from the method in the URL of a request.
_UNSERVABLE = PATTERN | {":"}
_UNITS = {"MIB": 2**20, "GIB": 2**30, "MB": 10**6, "GB": 10**9}
_DURATION = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII
)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?(%|[MG]i?B)", re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Converts `90s`, `10m` or `10min`, `1h30m`, `2d` to seconds.

    Raises ValueError for anything else.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    total = days * 86400 + hours * 3600 + minutes * 60 + seconds
    if total == 0:
        raise ValueError(text)
    return total


def parse_memory(text: str) -> tuple[float, bool]:
    """Converts an amount of memory, and says whether it is a share of the GPU.

    `8GiB` -> (8589934592, False), bytes; `80%` -> (0.8, True). Raises ValueError for
    anything else.
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    number = float(match[1])
    unit = match[2].upper()
    if unit == "%":
        share = number / 100
        if 0 < share <= 1:
            return share, True
        raise ValueError(text)
    size = number * _UNITS[unit]
    if 2**20 <= size < 2**50:
        return size, False
    raise ValueError(text)


def parse_devices(text: str) -> tuple[int, ...] | None:
    """`0,2` -> (0, 2); None for `auto` and `cpu`.

    Raises ValueError for anything else.
    """
    if text in ("auto", "cpu"):
        return None
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", text):
        raise ValueError(text)
    numbers = tuple(map(int, text.split(",")))
    if len(set(numbers)) < len(numbers):
        raise ValueError(text)
    return numbers


def is_printable(text: str) -> bool:
    """Whether a path can be encoded as UTF-8 and printed on one line of a terminal."""
    return not {"Cc", "Cs", "Zl", "Zp"}.intersection(map(unicodedata.category, text))


def is_file_name(name: str) -> bool:
    """Whether the string can be a plain file name on any file system."""
    plain = name not in ("", ".", "..") and not set(name) & set("/\\")
    return plain and is_printable(name) and len(name.encode()) <= 200


def is_model_name(name: str) -> bool:
    """Whether TensorFlow Serving can serve a model under this name.

    The server loads the model from /models/NAME: see `tf_paths`.
    """
    return is_file_name(name) and not _UNSERVABLE.intersection(name) and name[0] != "."


def model_name(text: str) -> str | None:
    """The closest model name to a text, such as `photos-2024` for `photos [2024]`."""
    if is_model_name(text):
        return text
    characters = re.escape("".join(sorted(_UNSERVABLE)))
    name = re.sub(rf"\s*[{characters}]+\s*", "-", text).strip("-. ")
    return name if is_model_name(name) else None
