"""Images, as files or as pixels."""

from typing import Any

from pipeline.contracts import Info


def image(
    info: Info,
    *,
    field: str = "image",
    suffixes: tuple[str, ...] = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"),
) -> Any:
    """Images.

    Args:
        info: The source.
        field: Name of the raw field.
        suffixes: Suffixes of the files that are images.
    """
    raise NotImplementedError
