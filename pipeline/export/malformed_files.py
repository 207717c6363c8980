"""Bytes that a careless or a hostile client sends in place of an image or of a tf.Example."""

import base64
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence

from pipeline.utils import wire

_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"RIFF")
# Of features of a tf.Example: Example.features, Features.feature, key and value of an entry; a
# Feature holds a list of bytes, of floats or of whole numbers, and that its values.
_FEATURES, _FEATURE, _KEY, _VALUE, _BYTES, _FLOATS, _INTEGERS, _VALUES = 1, 1, 1, 2, 1, 2, 3, 1
_JPEG = base64.b85decode(  # 8x8, grey
    "|JeWF01!$>Nk#wx0RR9200961|JwjV02>k%7Zed27Zw*D92+1gLMtdGB`8rkJupIGRb^yfRb5+Zc$tA}agcLcU4^xVk"
    "e;Kft*d8%yve$z$C;?Br2oJG3kU!R00;pA5di<h02BZL00000000000000000001|HJ?n5C8)K000000000000000000"
    "98V*lCz2mt{A06zd13kUz%"
)
_WEBP = base64.b85decode("Qb|Te9smFUS4BclR!}%h5dZ)HF9*N@00&UyCe)+<fr#jT000")
_GIF = (
    b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00;"
)


def is_image(contents: bytes) -> bool:
    """Whether bytes begin as a JPEG, PNG, GIF, BMP or WebP does."""
    return contents.startswith(_STARTS)


def broken_images(good: bytes) -> dict[str, bytes]:
    """Name -> bytes that are no image, or one that no server should unfold: all to be refused."""
    frame = _JPEG.index(b"\xff\xc0") + 5  # height and width follow
    return {
        "empty bytes": b"",
        "other bytes": b"no image",
        "half a file": good[: len(good) // 2],
        "a script in SVG": b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>",
        "a megabyte of zeros": bytes(2**20),
        "PNG without pixels": _png(8, 8, b"")[:33],
        "PNG of 20,000 x 20,000 pixels in 400 kB": _bomb(20_000),
        "PNG that announces 2**31 - 1 pixels a side": _png(2**31 - 1, 2**31 - 1, bytes(9)),
        "PNG that announces no pixels": _png(0, 8, bytes(8)),
        "PNG with fewer rows than it announces": _png(8, 8, bytes(9)),
        "JPEG without pixels": _JPEG[: _JPEG.index(b"\xff\xda")],
        "PNG with 17 texts of 8 MB each": _png(8, 8, bytes(72), _text(7_900_000) * 17),
        "JPEG of 88,360,000 pixels in 100 scans": _scans(9400, 100),
        "JPEG that announces 65,535 x 65,535": _JPEG[:frame] + b"\xff" * 4 + _JPEG[frame + 4 :],
        "GIF without a frame": _GIF[: _GIF.index(b",")] + b";",
        "GIF that ends within its frame": _GIF[:-4],
        "GIF whose frame has 65,535 x 65,535 pixels": _gif_frame(65535, 65535),
        "BMP of 30,000 x 30,000 without pixels": _bmp(30_000, 30_000, b""),
        "BMP with fewer rows than it announces": _bmp(8, 8, bytes(24)),
        "BMP of a negative height": _bmp(8, -(2**31), bytes(24)),
        "WebP that announces 2**24 pixels a side": _riff(
            _webp_chunk(b"VP8X", bytes(4) + b"\xff" * 6), _WEBP[12:]
        ),
        "WebP that ends within its frame": _WEBP[:-12],
    }


def odd_images() -> dict[str, bytes]:
    """Name -> files that may be answered or refused, but must not harm."""
    head = b"\x02" + bytes(3) + b"\x07\0\0" * 2  # animated, 8 x 8
    moving = bytes(6) + b"\x07\0\0" * 2 + b"\x64\0\0\0" + _WEBP[12:]
    return {
        "GIF of 1 pixel on a canvas of 65,535 x 65,535": _GIF[:6] + b"\xff" * 4 + _GIF[10:],
        "animated WebP": _riff(
            _webp_chunk(b"VP8X", head),
            _webp_chunk(b"ANIM", bytes(6)),
            _webp_chunk(b"ANMF", moving),
            _webp_chunk(b"ANMF", moving),
        ),
        "PNG of 1 pixel": _png(1, 1, bytes(2)),
        "PNG of 1 x 100,000 pixels": _png(1, 100_000, bytes(200_000)),
        "JPEG": _JPEG,
        "GIF": _GIF,
        "BMP": _bmp(8, 8, bytes(192)),
        "WebP": _WEBP,
    }


def _png(width: int, height: int, rows: bytes, more: bytes = b"") -> bytes:
    """8 bits, grey; each row begins with the number of its filter; more chunks before them."""
    return _png_of(width, height, zlib.compress(rows), more)


def _png_of(width: int, height: int, compressed: bytes, more: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = _chunk(b"IHDR", header) + more + _chunk(b"IDAT", compressed) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def _text(length: int) -> bytes:
    """A compressed text of a PNG, which is unfolded with the header."""
    return _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(length), 9))


def _scans(side: int, count: int) -> bytes:
    """A JPEG that goes over all of its pixels so many times."""
    frame, scan = _JPEG.index(b"\xff\xc0") + 5, _JPEG.index(b"\xff\xda")
    end = _JPEG.rindex(b"\xff\xd9")
    head = _JPEG[:frame] + struct.pack(">HH", side, side) + _JPEG[frame + 4 : scan]
    return head + _JPEG[scan:end] * count + _JPEG[end:]


def _bomb(side: int) -> bytes:
    """A true PNG of side x side black pixels, made without unfolding it (RFC 1950, 1951)."""
    count, piece = side * (side + 1), 2**20

    def block(length: int) -> bytes:  # raw; a full flush forgets all, so that it can be repeated
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        return packer.compress(bytes(length)) + packer.flush(zlib.Z_FULL_FLUSH)

    raw = block(piece) * (count // piece) + block(count % piece) + b"\x03\x00"  # an empty last one
    adler = count % 65521 << 16 | 1
    return _png_of(side, side, b"\x78\xda" + raw + struct.pack(">I", adler))


def _gif_frame(width: int, height: int) -> bytes:
    at = _GIF.index(b",") + 5
    return _GIF[:at] + struct.pack("<HH", width, height) + _GIF[at + 4 :]


def _bmp(width: int, height: int, rows: bytes) -> bytes:
    """24 bits, uncompressed."""
    information = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(rows), 0, 0, 54) + information + rows


def _webp_chunk(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def _riff(*chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + sum(map(len, chunks))) + b"WEBP" + b"".join(chunks)


def example_image(example: bytes) -> tuple[bytes, Callable[[bytes], bytes]] | None:
    """(the image in a tf.Example, how another takes its place); None if there is none."""
    for key, value in features(example).items():
        held = wire.messages(wire.read(wire.message(value, _BYTES)), _VALUES)
        if len(held) == 1 and is_image(held[0]):
            return held[0], lambda image, key=key: _example(key, _BYTES, [image])
    return None


def broken_examples(good: bytes) -> dict[str, bytes]:
    """Name -> bytes that are no tf.Example, or not one with the features of a good one."""
    bad = {
        "empty example": b"",
        "no example": b"no example",
        "half an example": good[: len(good) // 2],
        # Ends a process of TensorFlow 2.21 that parses it.
        "a length of 2**31": _example_of(b"k", _BYTES, b"\n\x80\x80\x80\x80\x08"),
    }
    for key, value in features(good).items():
        name = key.decode(errors="replace")
        if _BYTES in value:
            held = wire.messages(wire.read(wire.message(value, _BYTES)), _VALUES)
            bad[f"{name} of numbers"] = _example(key, _INTEGERS, [1])
            bad[f"{name} twice"] = _example(key, _BYTES, held * 2)
        if _FLOATS in value:
            packed = wire.message(wire.read(wire.message(value, _FLOATS)), _VALUES)
            bad[f"{name} of texts"] = _example(key, _BYTES, [b"1.0"])
            bad[f"{name} too few"] = _example(key, _FLOATS, [packed[4:]])
            bad[f"{name} too many"] = _example(key, _FLOATS, [packed + packed[:4]])
            for wrong in ("nan", "inf", "-inf"):
                number = struct.pack("<f", float(wrong))
                bad[f"{name} {wrong}"] = _example(key, _FLOATS, [number + packed[4:]])
    return bad


def features(example: bytes) -> dict[bytes, wire.Fields]:
    """Name -> Feature of a tf.Example; raises ValueError if it is none."""
    entries = wire.messages(wire.read(wire.message(wire.read(example), _FEATURES)), _FEATURE)
    read = [wire.read(entry) for entry in entries]
    return {wire.message(e, _KEY): wire.read(wire.message(e, _VALUE)) for e in read}


def _example(key: bytes, kind: int, values: Sequence[int | bytes]) -> bytes:
    return _example_of(key, kind, wire.write([(_VALUES, value) for value in values]))


def _example_of(key: bytes, kind: int, held: bytes) -> bytes:
    entry = wire.write([(_KEY, key), (_VALUE, wire.write([(kind, held)]))])
    return wire.write([(_FEATURES, wire.write([(_FEATURE, entry)]))])


def fuzzed(originals: Sequence[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """So many strings, each an original with one to eight changes; the same ones for a seed.

    Every other one gets the checksums that a PNG would be refused by set right again.
    """
    chance = random.Random(seed)
    for number in range(count):
        text = bytearray(chance.choice(originals))
        for _ in range(chance.choice((1, 1, 2, 4, 8))):
            text = _changed(text, chance, originals)
        if number % 2:
            _set_right(text)
        yield bytes(text)


def _set_right(text: bytearray) -> None:
    """The checksums of a PNG's chunks, wherever in the bytes it begins."""
    at = text.find(_STARTS[1]) + 8
    while 8 <= at <= len(text) - 12:
        (size,) = struct.unpack_from(">I", text, at)
        end = at + 8 + size
        if end + 4 > len(text):
            return
        struct.pack_into(">I", text, end, zlib.crc32(text[at + 4 : end]))
        at = end + 4


def _changed(text: bytearray, chance: random.Random, originals: Sequence[bytes]) -> bytearray:
    # Headers and the lengths in them do most, and stand in front.
    last = min(len(text), chance.choice((32, 256, len(text) + 1)))
    at = chance.randint(0, last)
    size = chance.choice((1, 1, 2, 4, chance.randint(0, 64)))
    kind = chance.randrange(6)
    if kind == 0:
        text[at : at + size] = chance.randbytes(size)
    elif kind == 1:  # a bit
        text[at : at + 1] = bytes(byte ^ 1 << chance.randrange(8) for byte in text[at : at + 1])
    elif kind == 2:  # the ends of what a number can be
        text[at : at + size] = chance.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * size
    elif kind == 3:
        del text[at : at + size]
    elif kind == 4:  # a piece once more
        text[at:at] = text[at : at + size]
    else:  # the end of another one
        other = chance.choice(originals)
        text[at:] = other[chance.randint(0, len(other)) :]
    return text
