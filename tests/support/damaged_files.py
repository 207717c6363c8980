"""Damages files."""

from pathlib import Path


def flip(path: Path, at: int) -> None:
    """Changes one bit of the byte at this position of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
