"""The image formats that are read: file name suffixes, first bytes, and a limit on their size."""

NAMES = "JPEG, PNG, GIF, BMP or WebP"
SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
HIDDEN = (".", "__MACOSX")
"""What the names of ignored files and folders begin with."""
SIGNATURES = {
    "JPEG": b"\xff\xd8\xff",
    "PNG": b"\x89PNG\r\n\x1a\n",
    "GIF": b"GIF8",
    "BMP": b"BM",
    "WebP": b"RIFF\0\0\0\0WEBP",
}
"""The first bytes of each format; a zero stands for any byte."""
MOST_PIXELS = 2**28 // 3
"""Largest image that is decoded, which is Pillow's limit too: a quarter of a GiB in RGB."""


def is_image(contents: bytes) -> bool:
    """Whether the bytes begin as one of the formats does."""
    return any(
        len(contents) >= len(start)
        and all(wanted in (0, byte) for wanted, byte in zip(start, contents, strict=False))
        for start in SIGNATURES.values()
    )
