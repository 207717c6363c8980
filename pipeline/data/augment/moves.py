"""Declares which fields an augmentation moves."""

from collections.abc import Callable
from typing import TypeVar

_Operation = TypeVar("_Operation", bound=Callable)

OUTSIDE = 255
"""Value of a mask outside the original image: pixels that do not count."""


def moves(*fields: str) -> Callable[[_Operation], _Operation]:
    """Declares the fields whose positions an augmentation moves, such as `image`.

    It is refused for examples with positions in other fields, such as boxes, which it
    would leave behind. An augmentation of this package without the declaration moves
    nothing.
    """

    def declare(operation: _Operation) -> _Operation:
        operation.moves = fields  # type: ignore[attr-defined]
        return operation

    return declare
