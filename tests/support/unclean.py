"""Folders of pictures, whole and damaged, and what a cleaning says of them."""

import numpy as np
from PIL import Image

from pipeline.config import command_line, registry
from pipeline.data.cleaning import issues, scan

HTML = b"<!doctype html><html><body>404 Not Found</body></html>"
SHORT = {"epochs": 1, "batch_size": 8}
SHAPE = {"image_shape": [24, 20, 3]}


def noise(seed, size=(24, 20)):
    """A smooth random picture, (height, width, 3)."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (5, 5, 3), np.uint8))
    return np.asarray(coarse.resize(size[::-1], Image.Resampling.BICUBIC))


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


def png_header(height, width):
    """A PNG that announces so many pixels."""
    sides = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + sides + b"\x08\x02\0\0\0" + bytes(4)


def damaged(folder, whole, count):
    """`count` files of all kinds that cannot be decoded, by turns; `whole` is a good JPEG."""
    generator = np.random.default_rng(1)
    kinds = {
        "empty.jpg": lambda: b"",
        "page.jpg": lambda: HTML,
        "byte.png": lambda: b"\x89",
        "cut.jpg": lambda: whole[: len(whole) // 2],
        "head.jpg": lambda: whole[:20],
        "random.png": lambda: generator.bytes(500),
        "bomb.png": lambda: png_header(60_000, 60_000),
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(count):
        name = list(kinds)[number % len(kinds)]
        paths.append(folder / f"{number}-{name}")
        paths[-1].write_bytes(kinds[name]())
    return paths


def config(folder, **options):
    source = {"name": "folder", "path": folder}
    return command_line.recipe("digits").changed(source=source, clean=options)


def find(source, **options):
    """(file, reason, action, file of the other) of all that is found."""
    scanned = scan.scan(source)
    entries = issues.find(source, scanned, **options)
    return [(e["file"], e["reason"], e["action"], e.get("of_file")) for e in entries]


def found_in(folder, **options):
    return find(registry.load("sources", "folder")(path=folder), **options)


def split_folders(root):
    for number in range(24):
        split = ("train", "train", "val", "test")[number // 6]
        save(root / f"{split}/{'ab'[number % 2]}/{number:02}.png", noise(number))
    return root
