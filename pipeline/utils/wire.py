"""Protocol buffers on the wire: messages read and written by field number, without their classes.

The classes of TensorFlow Serving's messages are in no wheel that this package needs
(https://protobuf.dev/programming-guides/encoding/).
"""

from collections.abc import Iterable

Fields = dict[int, list[int | bytes]]
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5


def read(message: bytes) -> Fields:
    """Field number -> its values in their order: whole numbers (unsigned), or bytes.

    What is bytes may be text, a message, or packed numbers: only its reader knows.

    Raises:
        ValueError: It is no message, or one with groups, which nobody writes any more.
    """
    found: Fields = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(message, at)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
            value, at = int.from_bytes(_piece(message, at, size), "little"), at + size
        elif kind == _LENGTH:
            size, at = _varint(message, at)
            value, at = _piece(message, at, size), at + size
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if not number:
            raise ValueError("a field of the number 0")
        found.setdefault(number, []).append(value)
    return found


def write(fields: Iterable[tuple[int, int | bytes]]) -> bytes:
    """A message of (number, value): whole numbers of at least 0, or bytes."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(_as_varint(number << 3 | _VARINT) + _as_varint(value))
        else:
            parts.append(_as_varint(number << 3 | _LENGTH) + _as_varint(len(value)) + value)
    return b"".join(parts)


def message(fields: Fields, number: int) -> bytes:
    """The bytes of a field that stands there once; an empty message where it does not.

    Of several, the last counts, as for every reader. Raises ValueError if it is a number.
    """
    return (messages(fields, number) or [b""])[-1]


def messages(fields: Fields, number: int) -> list[bytes]:
    """All values of a repeated field of bytes; raises ValueError if one is a number."""
    values = fields.get(number, [])
    if not all(isinstance(value, bytes) for value in values):
        raise ValueError(f"field {number} is a number and not a message")
    return values


def numbers(fields: Fields, number: int) -> list[int]:
    """All whole numbers of a repeated field of varints, packed or not."""
    found: list[int] = []
    for value in fields.get(number, ()):
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            found.append(one)
    return found


def _piece(message: bytes, at: int, size: int) -> bytes:
    if at + size > len(message):
        raise ValueError("it ends within a field")
    return message[at : at + size]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """(the number, the place behind it)."""
    value = 0
    for place in range(10):
        (byte,) = _piece(message, at + place, 1)
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & 2**64 - 1, at + place + 1
    raise ValueError("a number longer than 64 bits")


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
