"""Fashion-MNIST: pictures drawn by a model trained from scratch, and how good they are.

    python -m benchmarks.scripts.generation FOLDER [SEED ...] [-- OPTION ...]

FOLDER gets the runs and the exports: `judge`, a classifier of the real images, and
`seed-SEED` for each seed. A run that exists there is continued. OPTIONs are those of
`pipeline fit fashion_mnist_generation`. The data are those of TensorFlow Datasets
(`$TFDS_DATA_DIR`).

Prints lines of JSON. Of the judge: its test accuracy and CPU time; and the Frechet
distance of 10,000 samples of a normal distribution fitted to the training images. Of
each seed: the CPU time of the run with export and verification; the metrics of 10,000
samples and the test images; the Frechet distance of 256 samples and the validation
images after each epoch; and seconds to draw a picture from the export on one core.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SEEDS = (0, 1)
SAMPLES = 10_000
METRICS = ("accuracy", "frechet_distance", "precision", "recall", "nearer_than_real")
JUDGE = """fashion_mnist_lenet --model residual --model.options stem_stride=1
widths=32,64,128 --data.augment flip crop padding=2 --train.epochs 10
--train.accumulate 1 --train.optimizer adamw --train.optimizer-options
--train.learning-rate 0.002 --train.weight-decay 0.05 --train.schedule cosine
--train.label-smoothing 0.1 --train.ema 0.99"""


def fit(folder: Path, name: str, words: list[str]) -> tuple[dict[str, Any], float]:
    """Runs `pipeline fit`; returns the result and the CPU time in minutes."""
    command = [sys.executable, "-m", "pipeline", "fit", *words]
    command += ["--run-directory", str(folder / name)]
    command += ["--export.directory", str(folder / "exports"), "--export.name", name]
    with (folder / f"{name}.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"failed: see {log.name}")
    result = json.loads((folder / name / "result.json").read_text())
    return result, round((used.ru_utime + used.ru_stime) / 60, 1)


def gaussian_distance(folder: Path) -> float:
    """The Frechet distance, in the features of the judge, of the test images and
    samples of a normal distribution fitted to the pixels of the training images.
    """
    from pipeline.evaluation import sample_quality as quality
    from pipeline.report.run import Run
    from pipeline.tasks.sample_judge import Judge

    run = Run.load(folder / "judge")
    train = images_of(run, "train")
    test = images_of(run, "test")
    train = train.reshape(len(train), -1).astype(np.float64)
    generator = np.random.default_rng(0)
    mean, covariance = train.mean(axis=0), np.cov(train, rowvar=False)
    samples = generator.multivariate_normal(mean, covariance, SAMPLES, method="eigh")
    pixels = np.rint(samples).clip(0, 255).astype(np.uint8)
    judge = Judge(folder / "judge", run.task.metadata["class_names"])
    features, _ = judge(pixels.reshape(-1, *test.shape[1:]))
    real, _ = judge(test)
    return quality.frechet_distance(real, features)


def images_of(run: Any, split: str) -> np.ndarray:
    rows = np.arange(len(run.splits[split]))
    return run.splits[split].take(rows)["image"]


def measure(folder: Path, seed: int, options: list[str]) -> dict[str, Any]:
    """Trains a seed, and measures its samples and its export."""
    name = f"seed-{seed}"
    words = ["fashion_mnist_generation", "--seed", str(seed)]
    words += ["--task.options", f"judge={folder / 'judge'}", *options]
    result, minutes = fit(folder, name, words)
    row = {"seed": seed, "cpu_minutes": minutes, "epochs": result["epochs"]}
    row["steps_of_sampler"] = result["calibration"].get("steps")
    row["seconds_per_picture"] = seconds_per_picture(folder / "exports" / name)

    from pipeline.report.run import Run

    run = Run.load(folder / name)
    distances = run.history["val_frechet_distance"]
    row["frechet_of_epochs"] = np.round(distances, 3).tolist()
    task = run.task
    row["guidance"] = task.metadata.get("guidance", 2.0)
    run.task = task.with_metadata({"samples": SAMPLES})
    start = time.process_time()
    metrics = run.evaluate(split="test").metrics
    row["cpu_minutes_of_samples"] = round((time.process_time() - start) / 60, 1)
    row["judge_accuracy"] = metrics["judge_accuracy"]
    row |= {name: round(metrics[name], 4) for name in METRICS}
    return row


def seconds_per_picture(export: Path) -> float:
    """Seconds to draw one picture, in a process with one core."""
    code = """
import json, sys, time
from pipeline import Client
with Client(sys.argv[1]) as client:
    times = []
    for seed in range(10):
        start = time.perf_counter()
        client.predict(seed=[seed], class_id=[seed], guidance=[2.0])
        times.append(time.perf_counter() - start)
print(sorted(times)[5])
"""
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    environment = {**os.environ, **threads, "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", code, str(export)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    return round(float(done.stdout.split()[-1]), 3)


def main(words: list[str]) -> None:
    """Trains the judge, and trains and measures each seed."""
    options: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, options = words[:at], words[at + 1 :]
    folder = Path(words[0]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    result, minutes = fit(folder, "judge", JUDGE.split())
    row = {"judge": result["test"]["accuracy"], "cpu_minutes": minutes}
    row["frechet_distance_of_gaussian"] = round(gaussian_distance(folder), 3)
    print(json.dumps(row), flush=True)
    for seed in map(int, words[1:] or SEEDS):
        print(json.dumps(measure(folder, seed, options)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
