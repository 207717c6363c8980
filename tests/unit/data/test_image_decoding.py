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

from pipeline.data import image_decoding, image_resizing, image_sizes
from pipeline.tasks.inputs.image import ImageInput

long = pytest.mark.long
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


@tf.function(input_signature=[tf.TensorSpec((), tf.string)])
def thumbnail(contents):
    """A fifth of the height of `RGB`, so that a JPEG is decoded at a half."""
    return image_decoding.resized(contents, 5, 4, 3)[0]


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


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    ("size", "channels"),
    [((24, 20), 1), ((31, 9), 3), pytest.param((24, 20), 3, marks=long)],
)
def test_a_file_of_the_size_or_smaller_is_decoded_completely(kind, size, channels):
    image, original = image_decoding.resized(FILES[kind], *size, channels)
    expected = image_decoding.pixels(FILES[kind], channels)
    assert original.numpy().tolist() == [24, 20]
    expected = image_resizing.resize(expected, *size)
    np.testing.assert_array_equal(image, expected)


def test_a_png_whose_sides_are_exchanged_is_resized():
    contents = encode(RGB.transpose(Image.Transpose.ROTATE_90), "PNG")
    image, original = image_decoding.resized(contents, 24, 20, 1)
    assert original.numpy().tolist() == [20, 24]
    np.testing.assert_array_equal(image, image_resizing.resize(gray(contents), 24, 20))


def photograph(height, width):
    """Smooth, with a little noise."""
    colors = GENERATOR.integers(64, 192, (3, 3, 3), np.uint8)
    smooth = Image.fromarray(colors).resize((width, height), Image.Resampling.BICUBIC)
    noise = GENERATOR.normal(0, 2, (height, width, 3))
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def exif_options(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return {"exif": exif}


PHOTOGRAPHS = {
    "baseline": ("RGB", {}),
    "4:4:4": ("RGB", {"subsampling": 0}),
    "4:2:2, progressive": ("RGB", {"subsampling": 1, "progressive": True}),
    "gray": ("L", {}),
    "cmyk": ("CMYK", {}),
    "mirrored": ("RGB", exif_options(2)),
    "rotated": ("RGB", exif_options(6)),
    "rotated and mirrored": ("RGB", exif_options(7)),
}


@pytest.mark.parametrize("kind", PHOTOGRAPHS)
@pytest.mark.parametrize(
    "sides",
    [
        (97, 131),
        (390, 259),
        *(pytest.param(s, marks=long) for s in [(96, 128), (111, 257), (47, 500)]),
    ],
)
def test_a_large_jpeg_differs_little_from_complete_decoding(kind, sides):
    mode, options = PHOTOGRAPHS[kind]
    contents = encode(photograph(*sides).convert(mode), "JPEG", quality=90, **options)
    image, original = image_decoding.resized(contents, 12, 16, 3)
    complete = colors(contents)
    assert original.numpy().tolist() == list(complete.shape[:2])
    complete = tf.cast(image_resizing.resize(complete, 12, 16), tf.int32)
    difference = np.abs(tf.cast(image, tf.int32) - complete)
    # At an eighth, libjpeg does not interpolate the chroma of 4:2:2.
    assert difference.mean() < (4 if "4:2:2" in kind else 1)
    assert difference.max() <= (16 if "4:2:2" in kind else 4)
    single = image_decoding.resized(contents, 12, 16, 1)[0]
    gray_pixels = image_resizing.resize(gray(contents), 12, 16)
    assert np.abs(tf.cast(single, tf.int32) - tf.cast(gray_pixels, tf.int32)).max() <= 4


def test_a_jpeg_is_reduced_while_no_side_becomes_shorter_than_wanted():
    photo = encode(photograph(48, 128), "JPEG")
    half = tf.io.decode_jpeg(photo, ratio=2, dct_method="INTEGER_ACCURATE")
    reduced = image_decoding.resized(photo, 24, 16, 3)[0]
    np.testing.assert_array_equal(reduced, image_resizing.resize(half, 24, 16))
    lower = encode(photograph(47, 128), "JPEG")
    complete = image_decoding.resized(lower, 24, 16, 3)[0]
    expected = image_resizing.resize(colors(lower), 24, 16)
    np.testing.assert_array_equal(complete, expected)


@pytest.mark.parametrize(
    "size", [(2, 1), pytest.param((1, 1), marks=long), pytest.param((1, 3), marks=long)]
)
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_jpegs_of_any_sides_are_decoded(subsampling, size):
    sides = [(1, 1), (1, 90), (90, 1), (2, 33), *((n, 80 - n) for n in range(4, 77, 3))]
    photo = photograph(300, 300)
    for height, width in sides:
        contents = encode(
            photo.crop((0, 0, width, height)), "JPEG", subsampling=subsampling
        )
        image, original = image_decoding.resized(contents, *size, 3)
        complete = image_resizing.resize(colors(contents), *size)
        assert original.numpy().tolist() == [height, width]
        difference = tf.cast(image, tf.int32) - tf.cast(complete, tf.int32)
        assert np.abs(difference).max() <= 4, (height, width)


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_a_truncated_jpeg_is_refused_at_every_scale(options):
    contents = encode(photograph(96, 128), "JPEG", **options)
    for decode in (colors, thumbnail):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid JPEG data"):
            decode(contents[: len(contents) // 2])


@pytest.mark.parametrize("is_saved", [False, pytest.param(True, marks=long)])
def test_an_export_has_the_pixels_of_training(is_saved, tmp_path):
    task_input = ImageInput({"image_shape": [12, 16, 3]})
    files = [
        encode(photograph(97, 131).convert(mode), "JPEG", **options)
        for mode, options in PHOTOGRAPHS.values()
    ]
    files += FILES.values()
    dataset = tf.data.Dataset.from_tensor_slices({"image": files})
    dataset = dataset.map(lambda example: task_input.decode(example)[0])
    trained = np.stack([example["image"] for example in dataset])
    (signature,) = task_input.signatures()[1:]
    module = tf.Module()
    module.read = tf.function(
        lambda image_bytes: signature.read(image_bytes)["image"],
        [signature.specs["image_bytes"]],
    )
    if is_saved:
        tf.saved_model.save(module, tmp_path)
        module = tf.saved_model.load(tmp_path)
    np.testing.assert_array_equal(module.read(tf.constant(files)), trained)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.uint16])
@pytest.mark.parametrize("sides", [(24, 20), (37, 91), (1, 50), (9, 1), (3, 3)])
def test_resizing_is_that_of_tensorflow(sides, dtype):
    image = GENERATOR.integers(0, 256, (*sides, 3)).astype(dtype)
    resized = image_resizing.resize(tf.constant(image), 11, 7)
    expected = tf.image.resize(image, (11, 7), antialias=True).numpy()
    if dtype is not np.float32:
        expected = np.round(expected)
    np.testing.assert_array_equal(resized, expected.astype(dtype))


def test_16_bits_keep_the_higher_8():
    deep = GENERATOR.integers(0, 65536, (7, 9)).astype(np.uint16)
    image = gray(encode(Image.fromarray(deep), "PNG"))
    np.testing.assert_array_equal(image[..., 0], deep >> 8)


@pytest.mark.parametrize(
    "bits", [4, 12, *(pytest.param(bits, marks=long) for bits in (1, 8, 10, 15))]
)
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
    for decode in (colors, thumbnail):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="more than the limit of 89478485"
        ):
            decode(contents)


def expensive():
    """Kind, a small file that would take minutes or gigabytes, and the message."""
    jpeg = FILES["jpeg"]
    frame, scan, end = (jpeg.index(b) for b in (b"\xff\xc0", b"\xff\xda", b"\xff\xd9"))
    head = jpeg[: frame + 5] + struct.pack(">HH", 9400, 9400) + jpeg[frame + 9 : scan]
    message = "too many scans for its pixels"
    yield "scans", head + jpeg[scan:end] * 100 + jpeg[end:], message
    yield "padded scans", head + (b"\xff" + jpeg[scan:end]) * 100 + jpeg[end:], message
    yield "small scans", jpeg[:scan] + jpeg[scan:end] * 600 + jpeg[end:], message
    png = FILES["png"]
    texts = b"".join(
        chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(4_000_000))) for _ in range(17)
    )
    yield "texts", png[:33] + texts + png[33:], "more than 16 texts"


@pytest.mark.parametrize(("kind", "contents", "message"), list(expensive()), ids=label)
def test_the_cost_of_a_small_file_is_bounded(kind, contents, message):
    for decode in (colors, thumbnail):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            decode(contents)


def test_common_files_are_within_the_bounds():
    noise = Image.fromarray(GENERATOR.integers(0, 256, (900, 1100, 3), np.uint8))
    contents = encode(noise, "JPEG", progressive=True, quality=99)
    np.testing.assert_array_equal(colors(contents), pillow(contents))


@pytest.mark.parametrize("count", [8, pytest.param(60, marks=long)])
@pytest.mark.parametrize("kind", FILES)
def test_damage_is_an_invalid_argument_or_decodes(kind, count):
    contents, generator = FILES[kind], np.random.default_rng(0)
    step = 1 + len(contents) // count
    damaged = [contents[:at] for at in range(0, len(contents), step)]
    for _ in range(count):
        raw = bytearray(contents)
        raw[generator.integers(min(len(raw), 100))] ^= generator.integers(1, 256)
        damaged.append(bytes(raw))
    for raw in damaged:
        for decode in (colors, thumbnail):
            try:
                decode(raw)
            except tf.errors.InvalidArgumentError as error:
                assert error.message


@pytest.mark.parametrize("image", [RGB, RGBA], ids=["opaque", "alpha"])
def test_an_animated_webp_is_rejected_and_does_not_crash(image):
    frames = {"save_all": True, "append_images": [image.rotate(180)], "lossless": True}
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="animated WebP cannot be read"
    ):
        colors(encode(image, "WEBP", **frames))
