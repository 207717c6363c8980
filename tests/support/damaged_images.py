"""Directories of pictures, good and damaged, and the issues found in them."""

import numpy as np
import tensorflow as tf
from PIL import Image

from pipeline.config import command_line, registry
from pipeline.contracts import Info
from pipeline.data.cleaning import issues, scan
from pipeline.tasks.inputs.image import ImageInput

HTML = b"<!doctype html><html><body>404 Not Found</body></html>"


def noise(seed, size=(24, 20)):
    """A smooth random picture, (height, width, 3)."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (5, 5, 3), np.uint8))
    return np.asarray(coarse.resize(size[::-1], Image.Resampling.BICUBIC))


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


def pictures(root):
    """40 good pictures of two classes."""
    for number in range(40):
        save(root / f"{'ab'[number % 2]}/{number:02}.png", noise(number))
    return root


def split_pictures(root):
    """12, 6 and 6 good pictures in train, val and test."""
    for number in range(24):
        split = ("train", "train", "val", "test")[number // 6]
        save(root / f"{split}/{'ab'[number % 2]}/{number:02}.png", noise(number))
    return root


def damaged(folder, good, count):
    """`count` files that cannot be decoded, of all kinds in turn; `good` is a JPEG."""
    sides = (60_000).to_bytes(4, "big") * 2
    kinds = {
        "empty.jpg": b"",
        "page.jpg": HTML,
        "byte.png": b"\x89",
        "cut.jpg": good[: len(good) // 2],
        "head.jpg": good[:20],
        "random.png": np.random.default_rng(1).bytes(500),
        "bomb.png": (
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + sides + b"\x08\x02\0\0\0" + bytes(4)
        ),
    }
    paths = []
    for number in range(count):
        name = list(kinds)[number % len(kinds)]
        paths.append(folder / f"{number}-{name}")
        paths[-1].write_bytes(kinds[name])
    return paths


def source_of(folder):
    return registry.load("sources", "folder")(path=folder)


# One for all scans: each has its own graph, which takes half a second to trace.
SIMILARITY = ImageInput({"image_shape": [1, 1, 3]}).similarity(
    Info({}, {"image": tf.TensorSpec((), tf.string)})
)


def config(folder, **options):
    source = {"name": "folder", "path": folder}
    return command_line.recipe("digits").changed(source=source, clean=options)


def entries_of(source, **options):
    return issues.find(source, scan_images(source), **options)


def scan_images(source):
    """The scan of images, with what finds near duplicates among them."""
    return scan.scan(source, similarity=SIMILARITY if scan.has_images(source) else None)


def find(source, **options):
    """(file, reason, action, file of the other example) of all issues."""
    return short(entries_of(source, **options))


def short(entries):
    """(file, reason, action, file of the other example) of issues."""
    keys = ("file", "reason", "action", "of_file")
    return [tuple(map(entry.get, keys)) for entry in entries]
