"""Measures what cleaning finds in real images, and how long it takes. Each command runs
one mode:

    python benchmarks/scripts/clean.py MODE

MODE is `planted` (1,000 copies hidden among 10,000 images of CIFAR-10, with three
seeds), `alike` (synthetic X-rays and gauges of a fixed camera), `whole cifar10` or
`whole fashion_mnist` (all examples: time, duplicates, leakage), or `damaged` (5,000
damaged files among 20,000, then a run).

The data sets come from TensorFlow Datasets (`$TFDS_DATA_DIR`). With `PICTURE.png` as
the last argument, `planted` and `whole NAME` write a contact sheet of the pairs they
report.
"""

import collections
import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("copy", "mirror", "re-encoded or resized", "shifted by a pixel")
EACH, AMONG = 250, 10_000


def source_of(dataset: str) -> Any:
    """Returns a prepared data set of TensorFlow Datasets as a source."""
    from pipeline.config import registry

    return registry.load("sources", "tfds")(dataset=dataset)


def scan_images(source: Any) -> Any:
    """Measures images, with what finds near duplicates among them."""
    from pipeline.data.cleaning import scan
    from pipeline.tasks.inputs.image import ImageInput

    similarity = ImageInput({"image_shape": [1, 1, 3]}).similarity(source.info)
    return scan.scan(source, similarity=similarity)


def _decoded(example: dict) -> dict:
    from pipeline.data import image_decoding

    image = example["image"]
    return {
        **example,
        "image": image_decoding.pixels(image, 3) if image.dtype == "string" else image,
    }


def changed(image: np.ndarray, kind: str, generator: np.random.Generator) -> np.ndarray:
    """Returns a copy of the given kind; images are uint8 of shape (side, side, 3)."""
    from PIL import Image

    if kind == "mirror":
        return image[:, ::-1]
    if kind == "shifted by a pixel":
        steps = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x]
        y, x = steps[generator.integers(len(steps))]
        end = len(image) + 1
        return np.pad(image, ((1, 1), (1, 1), (0, 0)), "edge")[
            1 + y : end + y, 1 + x : end + x
        ]
    if kind == "copy":
        return image
    picture, side = Image.fromarray(image), len(image)
    if generator.integers(2):
        small = picture.resize((side * 3 // 4,) * 2, Image.Resampling.BICUBIC)
        return np.asarray(small.resize((side,) * 2, Image.Resampling.BICUBIC))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=75)
    return np.asarray(Image.open(file).convert("RGB"))


def planted(sheet: str | None = None) -> None:
    """Hides copies, with their original labels, at random positions of one split."""
    some = source_of("cifar10").examples("train").take(AMONG).map(_decoded).batch(AMONG)
    (columns,) = some.as_numpy_iterator()
    totals = []
    for seed in range(3):
        print(f"seed {seed}")
        found, others = _plant(columns["image"], columns["label"], EACH, seed)
        totals.append((found, len(others)))
    print(
        "mean of the seeds: {:.1f} found, {:.1f} other pairs".format(
            *np.mean(totals, axis=0)
        )
    )
    if sheet:
        draw(others, sheet)


def alike() -> None:
    """Searches synthetic images of a fixed camera, with ten copies of each kind or
    none.
    """
    sets: dict[str, tuple[Callable, int]]
    sets = {f"X-rays that vary by {v} levels": (xray, v) for v in (4, 8, 16)}
    sets |= {
        f"gauges with a noise of {noise} levels": (gauge, noise) for noise in (1, 3)
    }
    for title, (picture, level) in sets.items():
        for seed, each in ((0, 0), (0, 10), (1, 10), (2, 10)):
            generator = np.random.default_rng(seed)
            images = np.stack([picture(generator, level) for _ in range(240)])
            print(f"{title}, seed {seed}, {each} copies of each kind")
            _plant(images, np.arange(240) % 10, each, seed)


def _plant(
    images: np.ndarray, labels: np.ndarray, each: int, seed: int
) -> tuple[int, list]:
    """Hides copies, prints the findings; returns the number found and all other
    reported pairs.
    """
    from pipeline.data.array_source import ArraySource
    from pipeline.data.cleaning import issues

    generator, among = np.random.default_rng(seed), len(images)
    originals = generator.choice(among, each * len(KINDS), replace=False)
    kinds = np.repeat(KINDS, each)
    copies = [
        changed(images[o], k, generator) for o, k in zip(originals, kinds, strict=True)
    ]
    images = np.concatenate(
        [images, np.reshape(copies, (-1, *images.shape[1:]))]
    ).astype(np.uint8)
    labels = np.concatenate([labels, labels[originals]])
    origin = np.concatenate(
        [np.arange(among), originals]
    )  # index of the original image
    kind = np.concatenate([np.full(among, ""), kinds])
    order = generator.permutation(len(images))
    source = ArraySource(
        {"image": images[order], "label": labels[order]},
        class_names=tuple("0123456789"),
    )
    origin, kind = origin[order], kind[order]
    scanned = scan_images(source)
    entries = issues.find(source, scanned)
    found: dict[Any, set] = collections.defaultdict(set)
    others = []
    for line in issues.notes(scanned, entries):
        print(" ", line)
    for entry in entries:
        if "of" not in entry:
            continue
        one, other = entry["id"], entry["of"]
        if origin[one] == origin[other]:
            exact = entry["reason"] in ("duplicate", "two labels")
            found[kind[one] or kind[other]].add((origin[one], exact))
        else:
            others.append((images[order][one], images[order][other]))
    for name in KINDS:
        copies = sum(is_exact for _, is_exact in found[name])
        print(
            f"  {name:22} {len(found[name]):4} of {each} found, {copies} of them as"
            " exact"
        )
    print(f"  other pairs            {len(others):4}")
    return sum(map(len, found.values())), others


def xray(
    generator: np.random.Generator, variation: float, side: int = 32
) -> np.ndarray:
    """Draws one anatomy with variation between patients (in levels) and noise of 2
    levels.
    """
    from PIL import Image

    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    lungs = 90 * np.exp(-(((np.abs(x) - 0.42) / 0.25) ** 4) - (y / 0.7) ** 4)
    anatomy = (
        150 - lungs + 40 * np.exp(-((x / 0.1) ** 2)) + 10 * np.cos(22 * y + 3 * x * x)
    )
    coarse = Image.fromarray(generator.normal(size=(6, 6)).astype(np.float32))
    own = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC))
    grey = (
        anatomy + own * (variation / own.std()) + generator.normal(0, 2, (side, side))
    )
    return _grey(grey)


def gauge(generator: np.random.Generator, noise: float, side: int = 32) -> np.ndarray:
    """Draws the same dial each time, with the needle at a random angle."""
    from PIL import Image, ImageDraw

    whole = 4 * side
    picture = Image.new("L", (whole, whole), 90)
    draw = ImageDraw.Draw(picture)

    def line(angle: float, start: float, end: float, width: int) -> None:
        way = np.array([np.cos(angle), np.sin(angle)])
        points = whole * (0.5 + np.outer([start, end], way))
        draw.line(points.reshape(-1).tolist(), fill=30, width=width)

    draw.ellipse(
        (0.08 * whole, 0.08 * whole, 0.92 * whole, 0.92 * whole), fill=225, outline=20
    )
    for angle in np.linspace(0.75, 2.25, 11) * np.pi:
        line(angle, 0.34, 0.4, whole // 50)
    line(generator.uniform(0.75, 2.25) * np.pi, -0.06, 0.33, whole // 32)
    small = np.asarray(picture.resize((side, side), Image.Resampling.BOX))
    return _grey(small + generator.normal(0, noise, (side, side)))


def _grey(levels: np.ndarray) -> np.ndarray:
    return np.repeat(
        np.clip(np.rint(levels), 0, 255).astype(np.uint8)[..., None], 3, axis=-1
    )


def whole(dataset: str, sheet: str | None = None) -> None:
    """Cleans all examples of all splits."""
    from pipeline.data.cleaning import issues

    source = source_of(dataset)
    start, cpu_start = time.monotonic(), time.process_time()
    scanned = scan_images(source)
    scanned_at, cpu_scanned = time.monotonic(), time.process_time()
    entries = issues.find(source, scanned)
    end, cpu_end = time.monotonic(), time.process_time()
    count = len(scanned)
    print(f"{dataset}: {count:,} examples; wall and CPU seconds")
    speed = count / (scanned_at - start)
    scan_seconds, search_seconds = scanned_at - start, end - scanned_at
    print(
        f"  scan    {scan_seconds:6.1f} {cpu_scanned - cpu_start:6.1f}  {speed:,.0f}"
        " images/s"
    )
    print(f"  search  {search_seconds:6.1f} {cpu_end - cpu_scanned:6.1f}")
    print(f"  total   {end - start:6.1f} {cpu_end - cpu_start:6.1f}")
    for reason, number in collections.Counter(e["reason"] for e in entries).items():
        print(f"  {reason:28} {number}")
    leaks = [entry for entry in entries if "leakage" in entry["reason"]]
    print(f"  leakage with another label   {sum('detail' in entry for entry in leaks)}")
    if sheet:
        rows = {int(id): row for row, id in enumerate(scanned.id)}
        draw(
            [[scanned.sketch[rows[e[k]]] for k in ("id", "of")] for e in entries],
            sheet,
        )


def draw(pairs: list, path: str, columns: int = 12) -> None:
    """Draws the pairs on a contact sheet, row by row."""
    from PIL import Image

    side, gap = 64, 8
    wide, high = 2 * side + gap, side + gap
    sheet = Image.new(
        "RGB", (columns * wide, -(-len(pairs) // columns) * high or 1), "white"
    )
    for number, pair in enumerate(pairs):
        for place, image in enumerate(pair):
            picture = Image.fromarray(np.asarray(image)).resize((side, side), 0)
            at = (number % columns * wide + place * side, number // columns * high)
            sheet.paste(picture, at)
    sheet.save(path)


def damaged() -> None:
    """Trains on class folders of small JPEGs, a quarter of them damaged in one of six
    ways.
    """
    from pipeline.data.cleaning import manifest
    from pipeline.fit import fit

    generator = np.random.default_rng(0)
    good, bad = 15_000, 5_000
    with tempfile.TemporaryDirectory() as directory:
        names = write_files(Path(directory, "data"), good, bad, generator)
        run = fit(
            "digits",
            source={"name": "folder", "path": Path(directory, "data")},
            clean={"enabled": True, "near": False},
            data={"augment": {}, "image_size": (16, 16)},
            model={"name": "tiny"},
            train={"epochs": 1, "batch_size": 128},
            run_directory=Path(directory, "run"),
            export={"enabled": False},
        )
        entries = manifest.read(Path(directory, "run/manifest.jsonl"))
        named = {e["file"] for e in entries if e["reason"] == "undecodable"}
        print(
            f"{len(named & names):,} of {bad:,} damaged files reported,"
            f" {len(named - names)} others"
        )
        print(
            f"trained {run.result['steps']} steps on {len(run.splits['train']):,}"
            " examples"
        )


def write_files(
    directory: Path, good: int, bad: int, generator: np.random.Generator
) -> set[str]:
    """Writes images of two classes; returns the names of the damaged files."""
    from PIL import Image

    def jpeg() -> bytes:
        small = generator.integers(0, 256, (4, 4, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(small).resize((16, 16), Image.Resampling.BICUBIC).save(
            file, "JPEG"
        )
        return file.getvalue()

    ways = (
        lambda: b"",
        lambda: b"\xff",
        lambda: b"<!doctype html><html><body>404 Not Found</body></html>",
        lambda: (whole := jpeg())[: int(len(whole) * generator.uniform(0.05, 0.6))],
        lambda: generator.bytes(600),
        lambda: (
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
            + 2 * (60_000).to_bytes(4, "big")
            + bytes(9)
        ),
    )
    names = set()
    for number in generator.permutation(good + bad).tolist():
        name = f"{'ab'[number % 2]}/{number}.jpg"
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(
            jpeg() if number < good else ways[number % len(ways)]()
        )
        if number >= good:
            names.add(name)
    return names


if __name__ == "__main__":
    mode, *words = sys.argv[1:] or ["planted"]
    modes: dict[str, Callable[..., None]]
    modes = {"planted": planted, "alike": alike, "whole": whole, "damaged": damaged}
    modes[mode](*words)
