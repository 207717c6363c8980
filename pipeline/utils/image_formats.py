"""Supported image formats: file name suffixes, first bytes, and the largest size."""

import os
from collections.abc import Iterator
from typing import Any

NAMES = "JPEG, PNG, GIF, BMP or WebP"
SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
_TOOLS = {
    "__macosx",
    "__pycache__",
    "lost+found",
    "lost.dir",
    "found.000",
    "$recycle.bin",
    "recycler",
    "system volume information",
    "network trash folder",
    "temporary items",
    # Network-attached storage: Synology, QNAP, NetApp.
    "@eadir",
    "@tmp",
    "@sharebin",
    "#recycle",
    "#snapshot",
    "~snapshot",
    "@recycle",
    "@recently-snapshot",
    "@__thumb",
}
"""Files and folders of operating systems and tools, in lower case."""
SIGNATURES = {
    "JPEG": b"\xff\xd8\xff",
    "PNG": b"\x89PNG\r\n\x1a\n",
    "GIF": b"GIF8",
    "BMP": b"BM",
    "WebP": b"RIFF\0\0\0\0WEBP",
}
"""The first bytes of each format; a zero stands for any byte."""
MAX_PIXELS = 2**28 // 3
"""Largest image that is decoded, which is Pillow's limit too: a quarter of a GiB in
RGB.
"""


def is_ignored(name: str) -> bool:
    """Whether a file or folder is hidden, or belongs to a system or tool."""
    return name.startswith((".", "__MACOSX")) or name.lower() in _TOOLS


def walk(
    folder: str | os.PathLike[str], **options: Any
) -> Iterator[tuple[str, list, list]]:
    """Like `os.walk`, without the files and folders that are ignored."""
    for inside, folders, names in os.walk(folder, **options):
        folders[:] = [name for name in folders if not is_ignored(name)]
        yield inside, folders, [name for name in names if not is_ignored(name)]


def is_image(contents: bytes) -> bool:
    """Whether the bytes begin like one of the formats."""
    return any(_begins_with(contents, start) for start in SIGNATURES.values())


def _begins_with(contents: bytes, start: bytes) -> bool:
    """Whether the contents begin with these bytes; a zero stands for any byte."""
    if len(contents) < len(start):
        return False
    pairs = zip(start, contents, strict=False)
    return all(expected in (0, byte) for expected, byte in pairs)


def is_deep(contents: bytes) -> bool:
    """Whether the bytes begin as a PNG with 16 bits for each value."""
    header = 25  # signature, length, IHDR, width, height, bits
    return (
        len(contents) >= header
        and contents.startswith(SIGNATURES["PNG"])
        and contents[24] == 16
    )
