"""Compares the CPU time of reading, decoding and resizing a picture with Keras, and the
pixels with those of Pillow.

    python benchmarks/scripts/decoding.py [ROUNDS [PHOTOGRAPHS]]

PHOTOGRAPHS is a folder with pictures, which are enlarged, with noise added; without it,
they are smooth noise. For each size, prints CPU milliseconds per picture of this
package and of `keras.utils.image_dataset_from_directory`, the median and range of their
ratio in alternating rounds, and the mean and largest difference from Pillow, which
decodes all pixels and resizes with antialiasing. The time to start an iterator, which
does not depend on the number of pictures, is not counted.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

# Name -> width, height, target, batches in a round, EXIF orientation.
CASES = {
    "4000x3000": (4000, 3000, 224, 1, 1),
    "4000x3000, rotated": (4000, 3000, 224, 1, 6),
    "1920x1080": (1920, 1080, 224, 4, 1),
    "500x375": (500, 375, 224, 16, 1),
    "32x32, PNG": (32, 32, 32, 200, 1),
}
DISTINCT = 8  # the other files are hard links to these
NOISE = 4  # standard deviation, as of a camera in daylight
BATCH = 32
MAX_BUFFERED = 512  # batches, the limit of tf.data
UNCOUNTED = 4  # rounds in which Keras's buffer grows


def scenes(photographs: str | None) -> list:
    """Pictures to enlarge."""
    from PIL import Image

    if photographs is None:
        generator = np.random.default_rng(0)
        noise = generator.integers(0, 256, (DISTINCT, 45, 60, 3), np.uint8)
        return list(map(Image.fromarray, noise))
    paths = sorted(p for p in Path(photographs).rglob("*") if p.suffix == ".jpg")
    return [Image.open(path).convert("RGB") for path in paths[:DISTINCT]]


def write(directory: Path, case: tuple[int, ...], pictures: list, count: int) -> None:
    """Writes the files of a case: JPEGs with quality 90 and 4:2:0, or PNGs."""
    from PIL import Image

    width, height, target, _, orientation = case
    generator = np.random.default_rng(1)
    suffix = ".png" if width == target else ".jpg"
    exif = Image.Exif()
    exif[0x0112] = orientation
    for number in range(count):
        path = directory / "ab"[number % 2] / f"{number:05d}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number >= len(pictures):
            original = number % len(pictures)
            path.hardlink_to(directory / "ab"[original % 2] / f"{original:05d}{suffix}")
            continue
        resized = pictures[number].resize((width, height), Image.Resampling.BICUBIC)
        noise = generator.normal(0, NOISE, (height, width, 3))
        pixels = np.clip(np.asarray(resized) + noise, 0, 255).astype(np.uint8)
        picture = Image.fromarray(pixels)
        if suffix == ".jpg":
            picture.save(path, quality=90, subsampling="4:2:0", exif=exif)
        else:
            picture.save(path)


def ours(directory: Path, target: int) -> Iterable:
    """Batches of decoded examples, as a cache is filled."""
    import tensorflow as tf

    from pipeline.data.sources.folder import folder
    from pipeline.tasks.inputs.image import image
    from pipeline.utils.tf_data import with_options

    source = folder(path=directory)
    decode = image(source.info, image_size=(target, target)).decode
    examples = source.examples("train").map(
        lambda example: {"label": example["label"], **decode(example)[0]},
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return with_options(examples.batch(BATCH).prefetch(2))


def keras_dataset(directory: Path, target: int) -> Iterable:
    import keras

    return keras.utils.image_dataset_from_directory(
        directory, shuffle=False, batch_size=BATCH, image_size=(target, target),
        verbose=False,
    )  # fmt: skip


def settled() -> float:
    """CPU time of the process in milliseconds, once its buffers are full."""
    before, now = 0.0, time.process_time()
    while now - before > 0.005:
        time.sleep(0.2)
        before, now = now, time.process_time()
    return 1000 * now


def difference(dataset: Iterable, directory: Path, target: int) -> tuple[float, int]:
    """Mean and maximum over the first pictures, in the order of their paths."""
    from PIL import Image, ImageOps

    batch = next(iter(dataset))
    count = min(DISTINCT // 2, len(batch["image"]))
    paths = sorted((directory / "a").iterdir())[:count]
    differences = []
    for pixels, path in zip(batch["image"].numpy(), paths, strict=False):
        picture = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        picture = picture.resize((target, target), Image.Resampling.BILINEAR)
        differences.append(abs(pixels.astype(int) - np.asarray(picture, int)))
    return float(np.mean(differences)), int(np.max(differences))


def report(name: str, case: tuple[int, ...], pictures: list, rounds: int) -> None:
    """Prints the row of a case."""
    _, _, target, batches, _ = case
    measured: dict[str, list[float]] = {"ours": [], "keras": []}
    with tempfile.TemporaryDirectory() as directory:
        count = BATCH * (batches * (rounds + UNCOUNTED) + MAX_BUFFERED)
        write(Path(directory), case, pictures, count)
        datasets = {
            "ours": ours(Path(directory), target),
            "keras": keras_dataset(Path(directory), target),
        }
        iterators = {name: iter(dataset) for name, dataset in datasets.items()}
        for number in range(rounds + UNCOUNTED):
            for contestant in sorted(datasets, reverse=bool(number % 2)):
                time_before = settled()
                for _ in range(batches):
                    next(iterators[contestant])
                if number >= UNCOUNTED:
                    time_taken = (settled() - time_before) / (batches * BATCH)
                    measured[contestant].append(time_taken)
        mean, largest = difference(datasets["ours"], Path(directory), target)
    ratios = [a / b for a, b in zip(measured["ours"], measured["keras"], strict=True)]
    own, peer = (statistics.median(measured[name]) for name in ("ours", "keras"))
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(
        f"| {name} | {own:.2f} | {peer:.2f} | {statistics.median(ratios):.2f} |"
        f" {spread} | {mean:.2f} | {largest} |",
        flush=True,
    )


def main(rounds: int = 7, photographs: str | None = None) -> None:
    """Prints a table in Markdown."""
    from pipeline.runtime import cpu_info

    with cpu_info.onednn():  # as in a run
        import tensorflow  # noqa: F401
    pictures = scenes(photographs)
    print("| picture | ms | Keras, ms | ratio | spread | mean difference | largest |")
    print("|---|---|---|---|---|---|---|")
    for name, case in CASES.items():
        report(name, case, pictures, rounds)


if __name__ == "__main__":
    main(int((*sys.argv[1:], "7")[0]), *sys.argv[2:3])
