"""Compares the recipe `photos` with the same without mixing, and with plain Keras in the
same CPU time.

    python benchmarks/scripts/photos.py TFDS_DIR FOLDER [--insects DIR] [--part PART]
        [--sets SET ...] [--methods METHOD ...] [--seeds SEED ...] [-- OPTION ...]

TFDS_DIR contains cifar10 and fashion_mnist of TensorFlow Datasets, and DIR class folders
in `train` and `val`. FOLDER gets the data sets as folders of images, unless they exist,
and the runs. Settings are compared with `--part development`, images of the training
split that are in no data set. Two processes run at a time, each with one thread. Prints
a row for each run: accuracy, epochs, CPU seconds of training. OPTIONs replace choices of
the method `photos`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ANIMALS = (2, 3, 4, 5, 6)  # bird, cat, deer, dog, frog
EVALUATED = 4000  # images of test, and of development
# Name -> data set, classes, images of train and validation, side that they are enlarged
# to.
SETS = {
    "animals": ("cifar10", ANIMALS, (3105, 345), 128),
    "cifar500": ("cifar10", range(10), (400, 100), 128),
    "cifar3500": ("cifar10", range(10), (3150, 350), 128),
    "cifar20000": ("cifar10", range(10), (18000, 2000), 128),
    "fashion3500": ("fashion_mnist", range(10), (3150, 350), None),
}
# Name -> side and epochs, for 3 to 10 minutes of one core.
SIZES = {
    "animals": (32, 41),
    "cifar500": (32, 100),
    "cifar3500": (32, 41),
    "cifar20000": (32, 5),
    "fashion3500": (28, 30),
    "insects": (64, 100),
}
METHODS = {"photos": [], "unmixed": ["--data.augment", "flip", "crop", "padding=4"]}
OWN = ("--epochs", "--image-size", "--run-directory", "--seed")


def write(name: str, tfds_dir: str, folder: Path) -> None:
    """Writes one data set as NAME/SPLIT/CLASS/NUMBER.jpg (enlarged images) or .png, and
    what it is evaluated on as NAME-PART/CLASS.
    """
    import tensorflow_datasets as tfds
    from PIL import Image

    source, classes, counts, side = SETS[name]
    parts = {
        "train": {
            f"{name}/train": counts[0],
            f"{name}/validation": counts[1],
            f"{name}-development": EVALUATED,
        },
        "test": {f"{name}-test": EVALUATED},
    }
    for split, places in parts.items():
        data = tfds.as_numpy(
            tfds.load(source, split=split, data_dir=tfds_dir, batch_size=-1)
        )
        order = np.random.default_rng(0).permutation(len(data["label"]))
        order = order[np.isin(data["label"][order], list(classes))]
        for place, count in places.items():
            chosen, order = order[:count], order[count:]
            for at in chosen:
                path = folder / place / str(data["label"][at]) / f"{at:05d}"
                path.parent.mkdir(parents=True, exist_ok=True)
                image = Image.fromarray(data["image"][at].squeeze())
                if side:
                    image = image.resize((side, side), Image.Resampling.BICUBIC)
                    image.save(path.with_suffix(".jpg"), quality=90)
                else:
                    image.save(path.with_suffix(".png"))


def write_insects(source: Path, folder: Path) -> None:
    """Copies class folders: each fifth image of `train` is for validation."""
    for directory in sorted((source / "train").iterdir()):
        for number, path in enumerate(sorted(directory.iterdir())):
            split = "train" if number % 5 else "validation"
            place = folder / "insects" / split / directory.name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    shutil.copytree(source / "val", folder / "insects-test")


def plain_keras(data: str, test: str, side: int, seconds: float, seed: int) -> None:
    """A small network as in Keras's tutorials, with its weights of the best validation
    accuracy.
    """
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(seed)
    layers = keras.layers

    def load(path: str, shuffle: bool = False) -> tf.data.Dataset:
        options = {"image_size": (side, side), "shuffle": shuffle, "seed": seed}
        return keras.utils.image_dataset_from_directory(
            path, batch_size=32, verbose=False, **options
        )

    train = load(f"{data}/train", shuffle=True)
    validation = load(f"{data}/validation")
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
                self.accuracy = logs["val_accuracy"]
                self.weights = self.model.get_weights()

        def on_train_batch_end(self, batch, logs):
            if time.process_time() > seconds:
                self.model.stop_training = True

    best = Best()
    held_out = validation.cache()
    model.fit(
        train, validation_data=held_out, epochs=10_000, verbose=0, callbacks=[best]
    )
    model.set_weights(best.weights)
    accuracy = model.evaluate(load(test), verbose=0)[1]
    print(json.dumps({"accuracy": accuracy, "epochs": best.epochs}))


def run(
    name: str,
    methods: list[str],
    seed: int,
    folder: Path,
    part: str,
    options: list[str],
) -> None:
    """Runs the methods one after another, and prints a row for each.

    Plain Keras gets the CPU time of the method before it.
    """
    side, epochs = SIZES[name]
    test = str(folder / f"{name}-{part}")
    seconds = 600.0
    for method in methods:
        words = "-".join([method, *options]).replace("--", "").replace("/", "")
        place = folder / "runs" / f"{name}-{words}-{seed}"
        place.parent.mkdir(exist_ok=True)
        if method == "keras":
            numbers = [str(side), f"{seconds:.0f}", str(seed)]
            command = [__file__, "--keras", str(folder / name), test, *numbers]
            _, output = execute(command, place)
        else:
            own = dict(zip(OWN, (epochs, side, place, seed), strict=True))
            command = ["-m", "pipeline.fit", str(folder / name), "--no-export"]
            command += ["--data.test", "0", *METHODS[method], *options]
            for option, value in own.items():
                if option not in options:
                    command += [option, str(value)]
            seconds, _ = execute(command, place)
            epochs = json.loads((place / "result.json").read_text())["epochs"]
            command = ["-m", "pipeline", "evaluate", str(place), test, "--output"]
            execute([*command, f"{place}/{part}"], place.with_name(f"{place.name}-e"))
            metrics = json.loads((place / part / "metrics.json").read_text())
            output = json.dumps({"accuracy": metrics["accuracy"], "epochs": epochs})
        found = json.loads(output.splitlines()[-1])
        accuracy, cpu = found["accuracy"], f"{seconds:.0f} s CPU"
        row = (
            f"{name:12} {words:24} seed {seed} {accuracy:.4f} {found['epochs']} epochs"
        )
        print(f"{row} {cpu}", flush=True)


def execute(words: list[str], place: Path) -> tuple[float, str]:
    """Runs Python with one thread; returns its CPU seconds and output."""
    threads = dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"), "1")
    log = place.with_name(f"{place.name}.log")
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | threads,
        )
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"failed: see {log}")
    return used.ru_utime + used.ru_stime, log.read_text()


def main() -> None:
    """Writes the data sets and runs the methods."""
    if sys.argv[1] == "--keras":
        data, test, side, seconds, seed = sys.argv[2:]
        plain_keras(data, test, int(side), float(seconds), int(seed))
        return
    words, options = sys.argv[1:], []
    if "--" in words:
        at = words.index("--")
        words, options = words[:at], words[at + 1 :]
    parser = argparse.ArgumentParser()
    parser.add_argument("tfds_dir")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--insects", type=Path)
    parser.add_argument("--part", default="test", choices=("test", "development"))
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SIZES))
    parser.add_argument("--methods", nargs="+", default=[*METHODS, "keras"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    given = parser.parse_args(words)
    for name in given.sets:
        if (given.folder / name).is_dir():
            continue
        if name == "insects":
            write_insects(given.insects, given.folder)
        else:
            write(name, given.tfds_dir, given.folder)
    with ThreadPoolExecutor(2) as pool:
        jobs = []
        for seed in given.seeds:
            for name in given.sets:
                shared = (given.methods, seed, given.folder, given.part, options)
                jobs.append(pool.submit(run, name, *shared))
        for job in jobs:
            job.result()


if __name__ == "__main__":
    main()
