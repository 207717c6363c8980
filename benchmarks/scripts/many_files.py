"""Starts training on many small images, beside Keras.

    python -m benchmarks.scripts.many_files [KIND [COUNT [ROUNDS [CLASSES]]]]

Measures the time from the command to the end of the first training step, the CPU time
and the peak memory until then. KIND is `folder`, `tfrecord` or `npz`; Keras reads folders only. The
same with two images in each class tells what an image costs. The files of a folder are
hard links to 200 images of 32 pixels in a temporary directory.
"""

import io
import os
import sys
from pathlib import Path

from benchmarks.scripts.timing.processes import run_process
from benchmarks.scripts.timing.rounds import spread
from pipeline.utils import temp_files

_DISTINCT = 200
_SHARD = 2000  # records
_CALLBACK = "benchmarks.scripts.timing.processes.first_step"
# With the same batches for all counts, which otherwise follow from the count.
_OPTIONS = (
    "--image-size 32 --data.cache none --train.batch-size 128"
    " --train.steps-per-execution 1 --no-progress"
)


def _images() -> list:
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    draws = generator.integers(0, 256, (_DISTINCT, 8, 8, 3), np.uint8)
    return [
        Image.fromarray(draw).resize((32, 32), Image.Resampling.BICUBIC)
        for draw in draws
    ]


def write_folder(root: Path, count: int, classes: int) -> None:
    """Writes `count` JPEG files in folders of classes; most are hard links."""
    images = root.with_name(f"{root.name}-images")
    images.mkdir()
    for number, image in enumerate(_images()):
        image.save(images / f"{number}.jpg", quality=90)
    for label in range(classes):
        folder = root / f"class_{label:04}"
        folder.mkdir(parents=True)
        for number in range(label, count, classes):
            image = images / f"{number % _DISTINCT}.jpg"
            os.link(image, f"{folder}/image_{number:07}.jpg")


def write_tfrecord(root: Path, count: int, classes: int) -> None:
    """Writes shards of JPEGs and names of classes."""
    import tensorflow as tf

    files = []
    for image in _images():
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    root.mkdir()
    for start in range(0, count, _SHARD):
        with tf.io.TFRecordWriter(str(root / f"train-{start:08}.tfrecord")) as writer:
            for number in range(start, min(start + _SHARD, count)):
                example = tf.train.Example()
                feature = example.features.feature
                feature["image"].bytes_list.value.append(files[number % _DISTINCT])
                name = f"class_{number % classes:04}".encode()
                feature["label"].bytes_list.value.append(name)
                writer.write(example.SerializeToString())


def write_npz(root: Path, count: int, classes: int) -> None:
    """Writes an archive of pixels and labels."""
    import numpy as np

    numbers = np.arange(count)
    pixels = np.stack([np.asarray(image) for image in _images()])
    images = pixels[numbers % _DISTINCT]
    np.savez(root, images=images, labels=numbers % classes)


def keras_first_step(folder: str) -> None:
    """Trains the network of `photos` in plain Keras; ends after the first step."""
    import keras
    from keras import layers

    def convolution(x, filters, kernel=3, strides=1):
        options = {"padding": "same", "use_bias": False, "strides": strides}
        return layers.BatchNormalization()(layers.Conv2D(filters, kernel, **options)(x))

    data = keras.utils.image_dataset_from_directory(
        folder, image_size=(32, 32), batch_size=128, verbose=False
    )
    inputs = keras.Input((32, 32, 3))
    x = layers.Rescaling(1 / 255)(layers.RandomFlip("horizontal")(inputs))
    x = layers.RandomTranslation(0.1, 0.1)(x)
    x = layers.ReLU()(convolution(x, 32))
    for width in (32, 64, 128):
        for strides in (1 if width == 32 else 2, 1):
            branch = layers.ReLU()(convolution(x, width, strides=strides))
            branch = convolution(branch, width)
            if strides == 2:
                x = convolution(layers.AveragePooling2D(2)(x), width, kernel=1)
            x = layers.ReLU()(layers.Add()([x, branch]))
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(len(data.class_names))(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    end = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: os._exit(0)
    )
    model.fit(data, callbacks=[end], verbose=0)


_WRITERS = {"folder": write_folder, "tfrecord": write_tfrecord, "npz": write_npz}


def measure(
    kind: str = "folder", count: int = 200_000, rounds: int = 3, classes: int = 1000
) -> None:
    """Prints the time and the memory of this package and of Keras."""
    fit = ("-m", "pipeline.fit", *_OPTIONS.split(), "--train.callbacks", _CALLBACK)
    commands: dict[str, tuple[str, ...]] = {"this package": (*fit, "--source.path")}
    if kind == "folder":
        commands["Keras"] = ("-m", "benchmarks.scripts.many_files", "keras")
    few = 2 * classes
    results: dict[str, list[tuple[float, ...]]] = {name: [] for name in commands}
    with temp_files.temporary() as folder:
        suffix = ".npz" if kind == "npz" else ""
        for size in (few, count):
            _WRITERS[kind](folder / f"images-{size}{suffix}", size, classes)
        for _ in range(rounds):
            imported, _, _ = run_process("-c", "import tensorflow")
            for name, words in commands.items():
                small, _, low = run_process(*words, folder / f"images-{few}{suffix}")
                large, _, high = run_process(*words, folder / f"images-{count}{suffix}")
                more = count - few
                results[name].append(
                    (
                        large.cpu,
                        large.wall - imported.wall,
                        large.cpu - imported.cpu,
                        small.cpu - imported.cpu,
                        1e6 * (large.cpu - small.cpu) / more,
                        1e6 * (high - low) / more,
                    )
                )
    print(f"{kind}, {count:,} images in {classes:,} classes, {rounds} rounds:")
    if len(results) == 2:
        pairs = zip(*results.values(), strict=True)
        print(
            f"CPU time / Keras: {spread([ours[0] / peer[0] for ours, peer in pairs])}"
        )
    for name, rows in results.items():
        total, wall, cpu, small_cpu, each, memory = map(spread, zip(*rows, strict=True))
        print(
            f"{name:12}  {total} s of CPU time in all; after `import tensorflow`, first"
            f" step {wall} s; CPU time {cpu}"
            f" s, {small_cpu} s with {few:,} images; each image {each} us of CPU time"
            f" and {memory} bytes"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["keras"]:
        keras_first_step(sys.argv[2])
    else:
        kind, *numbers = sys.argv[1:] or ["folder"]
        measure(kind, *map(int, numbers))
