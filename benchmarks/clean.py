"""What cleaning finds among real pictures, and what it costs. One mode a command:

    python benchmarks/clean.py planted             # 1,000 copies hidden among 10,000 of CIFAR-10
    python benchmarks/clean.py whole cifar10       # all its examples: time, exact duplicates
    python benchmarks/clean.py whole fashion_mnist
    python benchmarks/clean.py damaged             # 5,000 damaged files among 20,000, then a run

The sets come from TensorFlow Datasets (`$TFDS_DATA_DIR`). A last word `PICTURE.png` after the
first two writes a sheet of the pairs that were found, to be looked at.
"""

import collections
import io
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

KINDS = ("copy", "mirror", "re-encoded or resized", "moved by a pixel")
EACH, AMONG = 250, 10_000


def source_of(dataset: str) -> object:
    """A prepared set of TensorFlow Datasets."""
    from pipeline import shelf

    return shelf.take("sources", "tfds")(dataset=dataset)


def _decoded(example: dict) -> dict:
    from pipeline import decoding

    image = example["image"]
    return {**example, "image": decoding.pixels(image, 3) if image.dtype == "string" else image}


def changed(image: np.ndarray, kind: str, generator: np.random.Generator) -> np.ndarray:
    """A copy of uint8 (32, 32, 3)."""
    from PIL import Image

    if kind == "mirror":
        return image[:, ::-1]
    if kind == "moved by a pixel":
        steps = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x]
        y, x = steps[generator.integers(len(steps))]
        return np.pad(image, ((1, 1), (1, 1), (0, 0)), "edge")[1 + y : 33 + y, 1 + x : 33 + x]
    if kind == "copy":
        return image
    picture, side = Image.fromarray(image), len(image)
    if generator.integers(2):
        small = picture.resize((side * 3 // 4,) * 2, Image.Resampling.BICUBIC)
        return np.asarray(small.resize((side,) * 2, Image.Resampling.BICUBIC))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=75)
    return np.asarray(Image.open(file).convert("RGB"))


def planted(sheet: str | None = None, seed: int = 0) -> None:
    """Copies with the label of the original, all in one split, in random places."""
    from pipeline import array_source, findings, scan

    generator = np.random.default_rng(seed)
    some = source_of("cifar10").examples("train").take(AMONG).map(_decoded).batch(AMONG)
    (columns,) = some.as_numpy_iterator()
    originals = generator.choice(AMONG, EACH * len(KINDS), replace=False)
    kinds = np.repeat(KINDS, EACH)
    copies = [
        changed(columns["image"][o], k, generator) for o, k in zip(originals, kinds, strict=True)
    ]
    images = np.concatenate([columns["image"], copies])
    labels = np.concatenate([columns["label"], columns["label"][originals]])
    origin = np.concatenate([np.arange(AMONG), originals])  # what each shows
    kind = np.concatenate([np.full(AMONG, ""), kinds])
    order = generator.permutation(len(images))
    source = array_source.ArraySource(
        {"image": images[order], "label": labels[order]}, class_names=tuple("0123456789")
    )
    origin, kind = origin[order], kind[order]
    scanned = scan.scan(source)
    entries = findings.find(source, scanned)
    found, others = collections.defaultdict(set), []
    for entry in entries:
        one, other = entry["id"], entry["of"]
        if origin[one] == origin[other]:
            exact = entry["reason"] in ("duplicate", "two labels")
            found[kind[one] or kind[other]].add((origin[one], exact))
        else:
            others.append((images[order][one], images[order][other]))
    for name in KINDS:
        exact = sum(exact for _, exact in found[name])
        print(f"{name:22} {len(found[name]):4} of {EACH} found, {exact} of them as exact")
    pictures = 2 * len(others)
    print(
        f"other pairs            {len(others):4}: look at them; {pictures / len(images):.4%} of all"
    )
    if sheet:
        draw(others, sheet)


def whole(dataset: str, sheet: str | None = None) -> None:
    """All examples of all splits."""
    from pipeline import findings, scan

    source = source_of(dataset)
    start, processor = time.monotonic(), time.process_time()
    scanned = scan.scan(source)
    middle, between = time.monotonic(), time.process_time()
    entries = findings.find(source, scanned)
    end, last = time.monotonic(), time.process_time()
    count = len(scanned)
    print(f"{dataset}: {count:,} examples; wall and processor seconds")
    speed = count / (middle - start)
    print(f"  scan    {middle - start:6.1f} {between - processor:6.1f}  {speed:,.0f} images/s")
    print(f"  search  {end - middle:6.1f} {last - between:6.1f}")
    print(f"  all     {end - start:6.1f} {last - processor:6.1f}")
    for reason, number in collections.Counter(e["reason"] for e in entries).items():
        print(f"  {reason:28} {number}")
    if sheet:
        rows = {int(id): row for row, id in enumerate(scanned.id)}
        draw([[scanned.thumbnail[rows[e[k]]] for k in ("id", "of")] for e in entries], sheet)


def draw(pairs: list, path: str, columns: int = 12) -> None:
    """Pairs side by side, from left to right and down."""
    from PIL import Image

    side, gap = 64, 8
    wide, high = 2 * side + gap, side + gap
    sheet = Image.new("RGB", (columns * wide, -(-len(pairs) // columns) * high or 1), "white")
    for number, pair in enumerate(pairs):
        for place, image in enumerate(pair):
            picture = Image.fromarray(np.asarray(image)).resize((side, side), 0)
            at = (number % columns * wide + place * side, number // columns * high)
            sheet.paste(picture, at)
    sheet.save(path)


def damaged() -> None:
    """A folder of small JPEGs of which a quarter is damaged in six ways, and a run over it."""
    from pipeline import manifest
    from pipeline.fit import fit

    generator = np.random.default_rng(0)
    good, bad = 15_000, 5_000
    with tempfile.TemporaryDirectory() as folder:
        names = write_files(Path(folder, "data"), good, bad, generator)
        run = fit(
            "digits",
            source={"name": "folder", "path": Path(folder, "data")},
            clean={"enabled": True, "near": False},
            data={"augment": {}, "image_size": (16, 16)},
            model={"name": "tiny"},
            train={"epochs": 1, "batch_size": 128},
            run_directory=Path(folder, "run"),
            export={"enabled": False},
        )
        entries = manifest.read(Path(folder, "run/manifest.jsonl"))
        named = {e["file"] for e in entries if e["reason"] in ("undecodable", "bomb")}
        print(f"{len(named & names):,} of {bad:,} damaged files named, {len(named - names)} others")
        print(f"trained {run.result['steps']} steps on {len(run.splits['train']):,} examples")


def write_files(folder: Path, good: int, bad: int, generator: np.random.Generator) -> set[str]:
    """Pictures of two classes; returns the names of the damaged ones."""
    from PIL import Image

    def jpeg() -> bytes:
        small = generator.integers(0, 256, (4, 4, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(small).resize((16, 16), Image.Resampling.BICUBIC).save(file, "JPEG")
        return file.getvalue()

    ways = (
        lambda: b"",
        lambda: b"\xff",
        lambda: b"<!doctype html><html><body>404 Not Found</body></html>",
        lambda: (whole := jpeg())[: int(len(whole) * generator.uniform(0.05, 0.6))],
        lambda: generator.bytes(600),
        lambda: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + 2 * (60_000).to_bytes(4, "big") + bytes(9),
    )
    names = set()
    for number in generator.permutation(good + bad).tolist():
        name = f"{'ab'[number % 2]}/{number}.jpg"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(jpeg() if number < good else ways[number % len(ways)]())
        if number >= good:
            names.add(name)
    return names


if __name__ == "__main__":
    mode, *words = sys.argv[1:] or ["planted"]
    {"planted": planted, "whole": whole, "damaged": damaged}[mode](*words)
