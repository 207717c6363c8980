"""Blood cells: a detector from scratch, on the splits of its own data set.

    python -m benchmarks.scripts.boxes BCCD FOLDER [SEED ...] [-- OPTION ...]

BCCD is the directory `BCCD` of github.com/Shenggan/BCCD_Dataset, in the format of VOC:
205 images for training, 87 for validation, 72 for the test. FOLDER gets the runs and
the exports; a run that exists there is continued. OPTIONs are those of `pipeline fit`.

Prints a line of JSON for each seed: average precisions of validation and test; `ap50`
of the exported model, which gets the files of the test images, with its interval of 95%
over resampled images; the CPU time of the run with export and verification; and
milliseconds for a file and for non-maximum suppression alone, medians of all test
images.
"""

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.evaluation.box_metrics import AveragePrecision, Boxes
from pipeline.serving.client import Client
from pipeline.tasks.targets.box_outputs import best_boxes

SEEDS = (0, 1, 2)
NAMES = ("Platelets", "RBC", "WBC")
SIDES = ("xmin", "ymin", "xmax", "ymax")
SAMPLES = 1000
MAX_BOXES = 100  # of an image and class that count


def measure(data: Path, folder: Path, seed: int, options: list[str]) -> dict[str, Any]:
    """Runs `pipeline fit`, and measures the run and its export."""
    directory = folder / f"seed-{seed}"
    exports = folder / "exports"
    command = [sys.executable, "-m", "pipeline", "fit", str(data)]
    command += ["--run-directory", str(directory), "--seed", str(seed)]
    command += ["--export.directory", str(exports), "--export.name", directory.name]
    command += ["--image-size", "240", "320", *options]
    with (folder / f"seed-{seed}.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"failed: see {log.name}")
    result = json.loads((directory / "result.json").read_text())
    row: dict[str, Any] = {"seed": seed, "epochs": result["epochs"]}
    for split in ("validation", "test"):
        for name in ("ap50", "ap"):
            row[f"{split}_{name}"] = round(result[split][name], 4)
    for name, scores in result["test"]["per_class"].items():
        row[name] = round(scores["ap50"], 4)
    minutes = (used.ru_utime + used.ru_stime) / 60
    return {
        **row,
        "cpu_minutes": round(minutes, 1),
        **measure_export(data, exports, seed),
        "suppression_milliseconds": measure_suppression(data, directory),
    }


def measure_export(data: Path, exports: Path, seed: int) -> dict[str, Any]:
    """`ap50` of the exported model, its interval, and milliseconds for a file."""
    images = []
    times = []
    with Client(exports / f"seed-{seed}") as client:
        for name in test_names(data):
            content = (data / "JPEGImages" / f"{name}.jpg").read_bytes()
            start = time.perf_counter()
            answer = client.predict("image_bytes", image_bytes=[content])
            times.append(time.perf_counter() - start)
            image = AveragePrecision(len(NAMES), MAX_BOXES)
            image.update(
                true_boxes(data / "Annotations" / f"{name}.xml"),
                predicted_boxes(answer),
            )
            images.append(image)
    generator = np.random.default_rng(0)
    values = []
    for _ in range(SAMPLES):
        chosen = generator.integers(len(images), size=len(images))
        values.append(ap50([images[number] for number in chosen]))
    return {
        "served_ap50": round(ap50(images), 4),
        "interval": np.quantile(values, (0.025, 0.975)).round(4).tolist(),
        "milliseconds": round(1000 * float(np.median(times)), 1),
    }


def measure_suppression(data: Path, directory: Path) -> float:
    """Milliseconds from the outputs of the network to the boxes of an image."""
    network = keras.models.load_model(directory / "model.keras")
    select = tf.function(best_boxes)
    times = []
    for name in test_names(data):
        content = (data / "JPEGImages" / f"{name}.jpg").read_bytes()
        image = tf.image.decode_jpeg(content, channels=3)
        image = tf.image.resize(image, network.input_shape[1:3])
        outputs = network(image[None])
        start = time.perf_counter()
        select(outputs, MAX_BOXES, 0.6)[1].numpy()
        times.append(time.perf_counter() - start)
    return round(1000 * float(np.median(times)), 1)


def test_names(data: Path) -> list[str]:
    return (data / "ImageSets/Main/test.txt").read_text().split()


def ap50(images: list[AveragePrecision]) -> float:
    """Of all these images; a resampled image may be there several times."""
    together = AveragePrecision(len(NAMES), MAX_BOXES)
    for number, matches in enumerate(together._matches):
        for image in images:
            matches += image._matches[number]
    return together.result().summary()["ap50"]


def true_boxes(path: Path) -> Boxes:
    """The boxes of an annotation."""
    corners = []
    classes = []
    for part in ElementTree.parse(path).getroot().iter("object"):
        sides = [float(part.findtext(f"bndbox/{side}", "")) for side in SIDES]
        if sides[2] > sides[0] and sides[3] > sides[1]:
            corners.append(sides)
            classes.append(NAMES.index(part.findtext("name", "")))
    ignored = np.zeros(len(corners), bool)
    return Boxes(np.array(corners), np.array(classes), np.empty(0), ignored)


def predicted_boxes(answer: dict[str, np.ndarray]) -> Boxes:
    """All boxes of an answer, also uncertain ones."""
    is_box = answer["classes"][0] >= 0
    names = answer["labels"][0][is_box].tolist()
    return Boxes(
        answer["boxes"][0][is_box],
        np.array([NAMES.index(name) for name in names], int),
        answer["scores"][0][is_box],
        np.zeros(len(names), bool),
    )


def main(words: list[str]) -> None:
    """Trains and measures each seed."""
    options: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, options = words[:at], words[at + 1 :]
    data, folder, *seeds = words
    place = Path(folder).resolve()
    place.mkdir(parents=True, exist_ok=True)
    for seed in map(int, seeds or SEEDS):
        print(
            json.dumps(measure(Path(data).resolve(), place, seed, options)), flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
