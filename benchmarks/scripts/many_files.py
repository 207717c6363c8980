"""Starts training on many small JPEGs, beside Keras.

    python -m benchmarks.scripts.many_files [COUNT [ROUNDS [CLASSES]]]

Measures the time from the command to the end of the first training step, and the peak
memory until then. The files are hard links to 200 images of 32 pixels in a temporary
directory; the same with two files in each class tells what a file costs.
"""

import os
import sys
from pathlib import Path

from benchmarks.scripts.timing.processes import run_process
from benchmarks.scripts.timing.rounds import spread
from pipeline.utils import temp_files

_DISTINCT = 200
_CALLBACK = "benchmarks.scripts.timing.processes.first_step"
_OPTIONS = "--image-size 32 --data.cache none --train.steps-per-call 1 --no-progress"


def write_files(root: Path, count: int, classes: int) -> None:
    """Writes `count` JPEG files in folders of classes; most are hard links."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    images = root.with_name(f"{root.name}-images")
    images.mkdir()
    for number in range(_DISTINCT):
        coarse = Image.fromarray(generator.integers(0, 256, (8, 8, 3), np.uint8))
        image = coarse.resize((32, 32), Image.Resampling.BICUBIC)
        image.save(images / f"{number}.jpg", quality=90)
    for label in range(classes):
        folder = root / f"class_{label:04}"
        folder.mkdir(parents=True)
        for number in range(label, count, classes):
            image = images / f"{number % _DISTINCT}.jpg"
            os.link(image, f"{folder}/image_{number:07}.jpg")


def keras_first_step(folder: str) -> None:
    """Trains a small network with plain Keras; ends after the first step."""
    import keras
    from keras import layers

    data = keras.utils.image_dataset_from_directory(
        folder, image_size=(32, 32), batch_size=128, verbose=False
    )
    model = keras.Sequential(
        [
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(len(data.class_names)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    end = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: os._exit(0)
    )
    model.fit(data, callbacks=[end], verbose=0)


def measure(count: int = 200_000, rounds: int = 3, classes: int = 1000) -> None:
    """Prints the time and the memory of this package and of Keras."""
    fit = ("-m", "pipeline.fit", *_OPTIONS.split(), "--train.callbacks", _CALLBACK)
    commands = {
        "this package": (*fit, "--source.path"),
        "Keras": ("-m", "benchmarks.scripts.many_files", "keras"),
    }
    few = 2 * classes
    results: dict[str, list[tuple[float, ...]]] = {name: [] for name in commands}
    with temp_files.temporary() as folder:
        for size in (few, count):
            write_files(folder / f"files-{size}", size, classes)
        for _ in range(rounds):
            imported, _, _ = run_process("-c", "import tensorflow")
            for name, words in commands.items():
                small, _, small_peak = run_process(*words, folder / f"files-{few}")
                large, _, large_peak = run_process(*words, folder / f"files-{count}")
                seconds = large.wall - imported.wall
                per_file = (large.wall - small.wall) / (count - few)
                bytes_per_file = (large_peak - small_peak) / (count - few)
                results[name].append((seconds, 1e6 * per_file, 1e6 * bytes_per_file))
    print(f"{count:,} files in {classes:,} classes, {rounds} rounds: median (range)")
    for name, rows in results.items():
        seconds, microseconds, memory = map(spread, zip(*rows, strict=True))
        print(
            f"{name:12}  first step after {seconds} s beyond `import tensorflow`;"
            f" {microseconds} us and {memory} bytes per file"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["keras"]:
        keras_first_step(sys.argv[2])
    else:
        measure(*map(int, sys.argv[1:]))
