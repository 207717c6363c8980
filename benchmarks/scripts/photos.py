"""Compares the recipe `photos` with the other recipes and with plain Keras, in the same
time.

    python benchmarks/scripts/photos.py TFDS_DIR FOLDER [SECONDS]

TFDS_DIR contains cifar10 and fashion_mnist of TensorFlow Datasets. FOLDER gets three
data sets as folders of images, unless they exist, and the runs. Two processes run at a
time, each with one thread. Prints a row for each run: test accuracy, epochs, CPU
seconds.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ANIMALS = (2, 3, 4, 5, 6)  # bird, cat, deer, dog, frog
# Name -> data set, classes, images of train, validation and test, side that they are
# enlarged to.
SETS = {
    "animals": ("cifar10", ANIMALS, (3022, 432, 4000), 128),
    "cifar500": ("cifar10", range(10), (400, 100, 4000), None),
    "fashion500": ("fashion_mnist", range(10), (400, 100, 4000), None),
}
LONGEST = {"animals": 1.0, "cifar500": 0.4, "fashion500": 0.4}  # of SECONDS
SIDES = {"animals": 64, "cifar500": 32, "fashion500": 28}
# The epochs only limit the length of the schedules, which end with the time.
OTHERS = {"digits": 400, "cifar10_sequential": 1000}
SEEDS = (1, 2)  # of more runs of photos; all methods run with seed 0


def write(name: str, tfds_dir: str, folder: Path) -> None:
    """Writes one data set as SPLIT/CLASS/NUMBER.jpg (enlarged images) or .png."""
    import tensorflow_datasets as tfds
    from PIL import Image

    source, classes, counts, side = SETS[name]
    for first, splits in (("train", ("train", "validation")), ("test", ("test",))):
        data = tfds.as_numpy(
            tfds.load(source, split=first, data_dir=tfds_dir, batch_size=-1)
        )
        order = np.random.default_rng(0).permutation(len(data["label"]))
        order = order[np.isin(data["label"][order], list(classes))]
        for split, count in zip(("train", "validation", "test"), counts, strict=True):
            if split not in splits:
                continue
            chosen, order = order[:count], order[count:]
            for at in chosen:
                path = folder / split / str(data["label"][at]) / f"{at:05d}"
                path.parent.mkdir(parents=True, exist_ok=True)
                image = Image.fromarray(data["image"][at].squeeze())
                if side:
                    image = image.resize((side, side), Image.Resampling.BICUBIC)
                    image.save(path.with_suffix(".jpg"), quality=90)
                else:
                    image.save(path.with_suffix(".png"))


def plain_keras(data: str, side: int, seconds: float, seed: int) -> None:
    """A small network as in Keras's tutorials, with its weights of the best validation
    accuracy.
    """
    start = time.monotonic()
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(seed)
    layers = keras.layers

    def load(split: str) -> tf.data.Dataset:
        options = {
            "image_size": (side, side),
            "shuffle": split == "train",
            "seed": seed,
        }
        return keras.utils.image_dataset_from_directory(
            f"{data}/{split}", batch_size=32, verbose=False, **options
        )

    train, validation, test = (load(split) for split in ("train", "validation", "test"))
    classes = len(train.class_names)
    train = train.cache().shuffle(1000).prefetch(tf.data.AUTOTUNE)
    blocks = []
    for filters in (32, 64, 128):
        blocks += [layers.Conv2D(filters, 3, padding="same", activation="relu")]
        blocks += [layers.MaxPooling2D()]
    augment = [
        layers.RandomFlip("horizontal"),
        layers.RandomRotation(0.1),
        layers.RandomZoom(0.1),
    ]
    end = [layers.Dropout(0.2), layers.Flatten(), layers.Dense(128, activation="relu")]
    inputs = [keras.Input((side, side, 3)), *augment, layers.Rescaling(1 / 255)]
    model = keras.Sequential([*inputs, *blocks, *end, layers.Dense(classes)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

    class Best(keras.callbacks.Callback):
        accuracy, weights, epochs = -1.0, None, 0

        def on_epoch_end(self, epoch, logs):
            self.epochs += 1
            if logs["val_accuracy"] > self.accuracy:
                self.accuracy, self.weights = (
                    logs["val_accuracy"],
                    self.model.get_weights(),
                )

        def on_train_batch_end(self, batch, logs):
            if time.monotonic() - start > seconds - 8:
                self.model.stop_training = True

    best = Best()
    data = {"validation_data": validation.cache(), "callbacks": [best]}
    model.fit(train, epochs=10_000, verbose=0, **data)
    model.set_weights(best.weights)
    print(
        json.dumps(
            {"accuracy": model.evaluate(test, verbose=0)[1], "epochs": best.epochs}
        )
    )


def run(name: str, method: str, seed: int, folder: Path, seconds: float) -> None:
    """Runs one method in its own process, and prints a row."""
    data, place = folder / name, folder / "runs" / f"{name}-{method}-{seed}"
    if method == "keras":
        words = [
            __file__,
            "--keras",
            str(data),
            str(SIDES[name]),
            str(seconds),
            str(seed),
        ]
    else:
        words = [
            "-m",
            "pipeline.fit",
            *([str(data)] if method == "photos" else [method]),
        ]
        words += [
            "--run-directory",
            str(place),
            "--time-limit",
            f"{seconds:.0f}s",
            "--no-export",
        ]
        words += ["--seed", str(seed)]
        if method != "photos":
            source = ["--source.name", "folder", "--source.path", str(data)]
            words += [
                *source,
                "--image-size",
                str(SIDES[name]),
                "--epochs",
                str(OTHERS[method]),
            ]
    threads = dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"), "1")
    place.parent.mkdir(exist_ok=True)
    log = place.with_suffix(".log")
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | threads,
        )
        _, status, used = os.wait4(process.pid, 0)
    if status:
        print(f"{name:10} {method:18} seed {seed} failed: {log}", flush=True)
        return
    if method == "keras":
        found = json.loads(log.read_text().splitlines()[-1])
        accuracy, epochs = found["accuracy"], found["epochs"]
    else:
        found = json.loads((place / "result.json").read_text())
        accuracy, epochs = found["test"]["accuracy"], found["epochs"]
    cpu = used.ru_utime + used.ru_stime
    row = (
        f"{name:10} {method:18} seed {seed} {accuracy:.4f} {epochs:5} epochs {cpu:6.0f}"
        " s CPU"
    )
    print(row, flush=True)


def main() -> None:
    """Writes the data sets and runs all methods."""
    if sys.argv[1] == "--keras":
        plain_keras(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
        return
    tfds_dir, folder = sys.argv[1], Path(sys.argv[2])
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 300.0
    for name in SETS:
        if not (folder / name).is_dir():
            write(name, tfds_dir, folder / name)
    with ThreadPoolExecutor(2) as pool:
        for name in SETS:
            methods = [(method, 0) for method in ("photos", "keras", *OTHERS)]
            for method, seed in (*methods, *(("photos", seed) for seed in SEEDS)):
                pool.submit(run, name, method, seed, folder, seconds * LONGEST[name])


if __name__ == "__main__":
    main()
