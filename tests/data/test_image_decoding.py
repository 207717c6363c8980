"""Encoded images: the pixels equal Pillow's, and bombs are rejected by
their headers.
"""

import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from pipeline.data import image_decoding, image_sizes

GENERATOR = np.random.default_rng(5)
SMOOTH = np.kron(GENERATOR.integers(0, 256, (6, 5, 3)), np.ones((4, 4, 1))).astype(
    np.uint8
)
RGB = Image.fromarray(SMOOTH)
ALPHA = Image.fromarray(GENERATOR.integers(0, 256, (24, 20), np.uint8))
RGBA = Image.merge("RGBA", (*RGB.split(), ALPHA))


@tf.function(input_signature=[tf.TensorSpec((), tf.string)])
def colors(contents):
    return image_decoding.pixels(contents, 3)


@tf.function(input_signature=[tf.TensorSpec((), tf.string)])
def gray(contents):
    return image_decoding.pixels(contents, 1)


def encode(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pillow(contents, mode="RGB"):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(contents)))
    return np.asarray(image.convert("RGB").convert(mode))


FILES = {
    "jpeg": encode(RGB, "JPEG", quality=80),
    "progressive jpeg": encode(RGB, "JPEG", progressive=True, subsampling=0),
    "gray jpeg": encode(RGB.convert("L"), "JPEG"),
    "cmyk jpeg": encode(RGB.convert("CMYK"), "JPEG"),
    "png": encode(RGB, "PNG"),
    "gray png": encode(RGB.convert("L"), "PNG"),
    "black and white png": encode(RGB.convert("1"), "PNG"),
    "palette png": encode(RGB.quantize(16), "PNG"),
    "alpha png": encode(RGBA, "PNG"),
    "gray alpha png": encode(RGBA.convert("LA"), "PNG"),
    "gif": encode(RGB.quantize(64), "GIF"),
    "animated gif": encode(
        RGB.quantize(64),
        "GIF",
        save_all=True,
        append_images=[RGB.rotate(180)],
        comment=b"x" * 600,
    ),
    "bmp": encode(RGB, "BMP"),
    "gray bmp": encode(RGB.convert("L"), "BMP"),
    "palette bmp": encode(RGB.quantize(200), "BMP"),
    "alpha bmp": encode(RGBA, "BMP"),
    "webp": encode(RGB, "WEBP"),
    "lossless webp": encode(RGB, "WEBP", lossless=True),
    "alpha webp": encode(RGBA, "WEBP", lossless=True, exact=True),
}


@pytest.mark.parametrize("kind", FILES)
def test_pixels_are_those_of_pillow(kind):
    np.testing.assert_array_equal(colors(FILES[kind]), pillow(FILES[kind]))
    np.testing.assert_array_equal(gray(FILES[kind])[..., 0], pillow(FILES[kind], "L"))


def test_16_bits_keep_the_higher_8():
    deep = GENERATOR.integers(0, 65536, (7, 9)).astype(np.uint16)
    image = gray(encode(Image.fromarray(deep), "PNG"))
    np.testing.assert_array_equal(image[..., 0], deep >> 8)


@pytest.mark.parametrize("bits", [1, 4, 8, 10, 12, 15])
def test_16_bits_of_which_fewer_are_used_keep_the_higher_8_of_these(bits):
    deep = GENERATOR.integers(0, 2**bits, (7, 9)).astype(np.uint16)
    deep[0, 0] = 2**bits - 1
    file = encode(Image.fromarray(deep), "PNG")
    assert image_sizes.used_bits([b"", FILES["png"], file])[0] == bits
    image = image_decoding.pixels(file, 1, bits)[..., 0].numpy()
    expected = deep >> (bits - 8) if bits > 8 else deep << (8 - bits)
    np.testing.assert_array_equal(image, expected)
    assert image.max() >= 128
    brighter = encode(Image.fromarray(np.full((2, 2), 2**bits, np.uint16)), "PNG")
    assert np.all(image_decoding.pixels(brighter, 3, bits) == 255)
    shallow = image_decoding.pixels(FILES["png"], 3, bits)
    np.testing.assert_array_equal(shallow, pillow(FILES["png"]))


def test_the_bits_are_those_of_the_deep_images():
    assert image_sizes.used_bits([b"", FILES["png"], FILES["jpeg"]]) == (16, ())
    levels = np.arange(0, 900, 100, dtype=np.uint16).reshape(3, 3)
    deep = encode(Image.fromarray(levels), "PNG")
    bits, (note,) = image_sizes.used_bits([FILES["png"], deep, deep[:60]])
    assert (
        bits == 10
        and "values up to 800, 10 bits, of which the higher 8 are kept" in note
    )
    black = encode(Image.fromarray(levels * 0), "PNG")
    assert image_sizes.used_bits([black])[0] == 16


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(10))
def test_a_jpeg_is_rotated_upright(orientation, order):
    exif = Image.Exif()
    exif.endian = order
    exif[0x010F] = "a maker's name that is too long for the entry"
    exif[0x0112] = orientation
    contents = encode(RGB, "JPEG", exif=exif)
    assert (
        contents[contents.index(b"Exif\0\0") + 6 :][:2]
        == {"<": b"II", ">": b"MM"}[order]
    )
    image = colors(contents).numpy()
    np.testing.assert_array_equal(image, pillow(contents))
    assert image.shape == ((20, 24, 3) if 5 <= orientation <= 8 else (24, 20, 3))


def test_orientation_is_found_after_other_segments():
    exif = Image.Exif()
    exif[0x0112] = 6
    contents = encode(RGB, "JPEG", exif=exif)
    segment = b"\xff\xe2" + struct.pack(">H", 5002) + b"\xff" * 5000
    moved = contents[:2] + segment + b"\xff" + contents[2:]
    np.testing.assert_array_equal(colors(moved), pillow(contents))


def chunk(name, data):
    return (
        struct.pack(">I", len(data))
        + name
        + data
        + struct.pack(">I", zlib.crc32(name + data))
    )


def bombs():
    png = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    yield "png", b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", png) + chunk(b"IDAT", bytes(99))
    frame = FILES["gif"].index(b",\0\0\0\0")
    for name, sides in {"gif": (60_000, 60_000), "empty gif": (0, 24)}.items():
        gif = bytearray(FILES["gif"])
        gif[frame + 5 : frame + 9] = struct.pack("<HH", *sides)
        yield name, bytes(gif)
    for name, sides in {
        "bmp": (2**31 - 1, 2**31 - 1),
        "downward bmp": (20_000, -20_000),
    }.items():
        yield name, FILES["bmp"][:18] + struct.pack("<ii", *sides) + FILES["bmp"][26:]
    jpeg = FILES["jpeg"]
    at = jpeg.index(b"\xff\xc0") + 5
    yield "jpeg", jpeg[:at] + struct.pack(">HH", 65_000, 65_000) + jpeg[at + 4 :]
    lossy, lossless = FILES["webp"], FILES["lossless webp"]
    yield "webp", lossy[:26] + struct.pack("<HH", 16383, 16383) + lossy[30:]
    yield "lossless webp", lossless[:21] + struct.pack("<I", 2**28 - 1) + lossless[25:]
    extended = b"VP8X" + struct.pack("<I", 10) + bytes(4) + b"\xff" * 6
    yield "extended webp", lossy[:12] + extended + lossy[12:]


def label(value):
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("kind", "contents"), list(bombs()), ids=label)
def test_a_bomb_is_rejected_before_it_is_decoded(kind, contents):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="more than the limit of 89478485"
    ):
        colors(contents)


def expensive():
    """Kind, a small file that would take minutes or gigabytes, and the message."""
    jpeg = FILES["jpeg"]
    frame, scan, end = (jpeg.index(b) for b in (b"\xff\xc0", b"\xff\xda", b"\xff\xd9"))
    head = jpeg[: frame + 5] + struct.pack(">HH", 9400, 9400) + jpeg[frame + 9 : scan]
    yield (
        "scans",
        head + jpeg[scan:end] * 100 + jpeg[end:],
        "too many scans for its pixels",
    )
    png = FILES["png"]
    texts = b"".join(
        chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(4_000_000))) for _ in range(17)
    )
    yield "texts", png[:33] + texts + png[33:], "more than 16 texts"


@pytest.mark.parametrize(("kind", "contents", "message"), list(expensive()), ids=label)
def test_the_cost_of_a_small_file_is_bounded(kind, contents, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        colors(contents)


def test_common_files_are_within_the_bounds():
    noise = Image.fromarray(GENERATOR.integers(0, 256, (900, 1100, 3), np.uint8))
    contents = encode(noise, "JPEG", progressive=True, quality=99)
    np.testing.assert_array_equal(colors(contents), pillow(contents))


@pytest.mark.parametrize("kind", FILES)
def test_damage_is_an_invalid_argument_or_decodes(kind):
    contents, generator = FILES[kind], np.random.default_rng(0)
    damaged = [contents[:at] for at in range(0, len(contents), 1 + len(contents) // 60)]
    for _ in range(60):
        raw = bytearray(contents)
        raw[generator.integers(min(len(raw), 100))] ^= generator.integers(1, 256)
        damaged.append(bytes(raw))
    for raw in damaged:
        try:
            colors(raw)
        except tf.errors.InvalidArgumentError as error:
            assert error.message


@pytest.mark.parametrize("image", [RGB, RGBA], ids=["opaque", "alpha"])
def test_an_animated_webp_is_rejected_and_does_not_crash(image):
    frames = {"save_all": True, "append_images": [image.rotate(180)], "lossless": True}
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="animated WebP cannot be read"
    ):
        colors(encode(image, "WEBP", **frames))
