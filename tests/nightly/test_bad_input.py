"""Files that people have: read, or refused in one line that names the file."""

import io

import numpy as np
import pytest
from PIL import Image
from processes import run_module

GENERATOR = np.random.default_rng(5)


PIXELS = GENERATOR.integers(0, 256, (40, 30, 3), np.uint8)


def encoded(kind="PNG", mode="RGB", **options):
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, kind, **options)
    return file.getvalue()


def sixteen_bits():
    file = io.BytesIO()
    Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257).save(file, "PNG")
    return file.getvalue()


EXIF = Image.Exif()


EXIF[0x0112] = 6


GOOD = {
    "cmyk.jpg": encoded("JPEG", "CMYK"),
    "turned.JPEG": encoded("JPEG", exif=EXIF),
    "grey.png": encoded(mode="L"),
    "16 bits.png": sixteen_bits(),
    "alpha.png": encoded(mode="RGBA"),
    "palette.gif": encoded("GIF", "P"),
    "b.bmp": encoded("BMP"),
    "w.webp": encoded("WEBP", lossless=True),
    "a page that is a png.jpg": encoded(),
}


@pytest.fixture
def root(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / "insects" / name).mkdir(parents=True)
    for number, (name, content) in enumerate(GOOD.items()):
        (tmp_path / "insects" / ("ant", "bee")[number % 2] / name).write_bytes(content)
    return tmp_path / "insects"


def test_the_command_names_the_file_and_nothing_else(root, tmp_path):
    (root / "ant/page.jpg").write_bytes(b"<html>")
    words = (
        "--source.name",
        "folder",
        "--source.path",
        root,
        "--data.image-size",
        8,
        8,
    )
    done = run_module(
        "pipeline.fit", "digits", *words, "--data.cache", "memory", cwd=tmp_path
    )
    assert done.returncode == 2 and not (tmp_path / "runs").exists()
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ant/page.jpg cannot be decoded: the file")
    assert "Traceback" not in done.stderr
