"""Trains each kind of data that is not images with classes, three seeds each.

    TFDS_DATA_DIR=DIRECTORY BCCD=BCCD python -m benchmarks.scripts.any_data [NAME ...]

Tables of scikit-learn; digits from a dictionary of two inputs; montages of two by
two images of Fashion-MNIST, with several labels (which garments?) and with masks (which
garment is each pixel, and which pixels are none?); and blood cells, whose boxes are
drawn as ellipses, on the test split of BCCD (github.com/Shenggan/BCCD_Dataset).
Settings were chosen on validation splits; the test split is evaluated once per seed. Of
masks, the least IoU of a class is also printed.
"""

import contextlib
import io
import os
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.fit import fit

SEEDS = (0, 1, 2)
_FOREGROUND = 50  # levels from which on a pixel is a garment
_SETTINGS: dict[str, Any] = {"log": {"progress": False, "tensorboard": False}}


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The features and classes of a table of scikit-learn."""
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")()
    return data.data, data.target


def two_inputs() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Digits as a dictionary: the upper half as images, the lower half as numbers."""
    from sklearn.datasets import load_digits

    data = load_digits()
    upper = data.images[:, :4, :, None].astype(np.uint8)
    return {"upper": upper, "lower": data.images[:, 4:].reshape(-1, 32)}, data.target


def fashion(split: str) -> tuple[np.ndarray, np.ndarray]:
    import tensorflow_datasets as tfds

    folder = os.environ["TFDS_DATA_DIR"]
    data = tfds.load("fashion_mnist", split=split, data_dir=folder, batch_size=-1)
    return data["image"].numpy()[..., 0], data["label"].numpy()


def montages(split: str, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images (count, 56, 56), several labels (count, 10) and masks, 0 for none."""
    images, labels = fashion(split)
    chosen = np.random.default_rng(0).integers(0, len(images), (count, 4))
    x = np.zeros((count, 56, 56), np.uint8)
    several = np.zeros((count, 10), np.uint8)
    masks = np.zeros((count, 56, 56), np.uint8)
    for quarter, (row, column) in enumerate(((0, 0), (0, 28), (28, 0), (28, 28))):
        part = images[chosen[:, quarter]]
        label = labels[chosen[:, quarter]]
        place = np.s_[:, row : row + 28, column : column + 28]
        x[place] = part
        several[np.arange(count), label] = 1
        masks[place] = np.where(part >= _FOREGROUND, label[:, None, None] + 1, 0)
    return x, several, masks


def thresholding(images: np.ndarray, masks: np.ndarray) -> float:
    """The mean IoU of the best threshold with the most frequent class: no learning."""
    garment = np.bincount(masks[masks > 0]).argmax()
    answers = np.where(images >= _FOREGROUND, garment, 0)
    scores = []
    for label in range(11):
        both = ((answers == label) & (masks == label)).sum()
        scores.append(both / ((answers == label) | (masks == label)).sum())
    return float(np.mean(scores))


def cells(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 120, 160, 3), and masks of red cells, white cells and platelets."""
    from PIL import Image, ImageDraw

    names = ("RBC", "WBC", "Platelets")
    folder = Path(os.environ["BCCD"])
    images = []
    masks = []
    for name in (folder / f"ImageSets/Main/{split}.txt").read_text().split():
        picture = Image.open(folder / f"JPEGImages/{name}.jpg").convert("RGB")
        images.append(picture.resize((160, 120), Image.Resampling.BILINEAR))
        annotation = ElementTree.parse(folder / f"Annotations/{name}.xml")
        masks.append(Image.new("L", (160, 120)))
        boxes = []
        for cell in annotation.getroot().iter("object"):
            sides = ("xmin", "ymin", "xmax", "ymax")
            box = [float(cell.findtext(f"bndbox/{side}", "")) / 4 for side in sides]
            if box[2] > box[0] and box[3] > box[1]:
                boxes.append((1 + names.index(cell.findtext("name", "")), box))
        for label, box in sorted(boxes):  # small cells over large ones
            ImageDraw.Draw(masks[-1]).ellipse(box, fill=label)
    return np.stack([*map(np.asarray, images)]), np.stack([*map(np.asarray, masks)])


def iris(seed: int) -> Any:
    return fit(
        model="mlp",
        data=table("iris"),
        epochs=60,
        learning_rate=0.01,
        runtime={"seed": seed},
        **_SETTINGS,
    )


def breast_cancer(seed: int) -> Any:
    return fit(
        model="mlp",
        data=table("breast_cancer"),
        epochs=20,
        learning_rate=0.003,
        runtime={"seed": seed},
        **_SETTINGS,
    )


def digits_of_two_inputs(seed: int) -> Any:
    return fit(
        model="mlp",
        data=two_inputs(),
        epochs=30,
        learning_rate=0.003,
        runtime={"seed": seed},
        **_SETTINGS,
    )


def garments_in_montages(seed: int) -> Any:
    x, labels, _ = montages("train", 4000)
    x_test, labels_test, _ = montages("test", 1000)
    return fit(
        model={"name": "residual", "options": {"widths": (32, 64, 128)}},
        data=(x, labels),
        test_data=(x_test, labels_test),
        epochs=6,
        learning_rate=0.003,
        train={"schedule": "cosine"},
        runtime={"seed": seed},
        **_SETTINGS,
    )


def garment_of_each_pixel(seed: int) -> Any:
    x, _, masks = montages("train", 1500)
    x_test, _, masks_test = montages("test", 500)
    return fit(
        model={"name": "unet", "options": {"widths": (16, 32, 64)}},
        data=(x, masks),
        test_data=(x_test, masks_test),
        epochs=12,
        learning_rate=0.003,
        train={"schedule": "cosine"},
        runtime={"seed": seed},
        **_SETTINGS,
    )


def cell_of_each_pixel(seed: int) -> Any:
    return fit(
        model={"name": "unet", "options": {"widths": (16, 32, 64)}},
        data=cells("train"),
        test_data=cells("test"),
        epochs=20,
        batch_size=16,
        optimizer="adam",
        learning_rate=0.003,
        train={"schedule": "cosine"},
        runtime={"seed": seed},
        **_SETTINGS,
    )


KINDS: dict[str, tuple[Callable[[int], Any], str]] = {
    "iris": (iris, "accuracy"),
    "breast_cancer": (breast_cancer, "accuracy"),
    "digits_of_two_inputs": (digits_of_two_inputs, "accuracy"),
    "garments_in_montages": (garments_in_montages, "f1"),
    "garment_of_each_pixel": (garment_of_each_pixel, "mean_iou"),
    "cell_of_each_pixel": (cell_of_each_pixel, "mean_iou"),
}


def rows(names: list[str]) -> Iterator[str]:
    """Yields a row of the table for each kind of data."""
    for name in names:
        train, metric = KINDS[name]
        values = []
        seconds = []
        for seed in SEEDS:
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                with contextlib.redirect_stdout(io.StringIO()):
                    run = train(seed)
                if not run.export:
                    raise RuntimeError(f"{name}: the export is not verified")
            values.append(run.test[metric])
            if metric == "mean_iou":
                scores = run.test["per_class"]
                least = min(scores, key=lambda name: scores[name]["iou"])
                print(f"seed {seed}: {least} {scores[least]['iou']:.4f}", flush=True)
            seconds.append(time.monotonic() - start)
        listing = ", ".join(f"{value:.4f}" for value in values)
        yield f"| {name} | {metric} | {listing} | {np.median(seconds):.0f} s |"


if __name__ == "__main__":
    print("| data | metric | test, seeds 0 to 2 | median time |\n|---|---|---|---|")
    for row in rows(sys.argv[1:] or list(KINDS)):
        print(row, flush=True)
    if "TFDS_DATA_DIR" in os.environ:
        images, _, masks = montages("test", 500)
        print(f"thresholding: mean IoU {thresholding(images, masks):.4f}")
