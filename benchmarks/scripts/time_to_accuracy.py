"""Compares the time of two processes until they know a test accuracy on CIFAR-10.

    python benchmarks/scripts/time_to_accuracy.py TFDS_DIR [ROUNDS]

One is plain Keras: the network of `cifar10_sequential` and Adam, `fit` on NumPy arrays
in batches of 32 for 10 epochs. The other is `pipeline fit cifar10_convnet` with the
options below. The times are those from the start of a process until it prints its test
accuracy, imports included. Prints a row for each process, and the ratio of the medians.
"""

import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline.runtime import cpu_info

OPTIONS = """
--model.blocks 3 --train.optimizer muon --train.optimizer-options adam_factor=0.1 --lr 0.02
--weight-decay 0.1 --schedule linear --batch-size 128 --train.steps 480 --no-export
"""
# `auto` would need a longer run for its trial.
_HAS_BFLOAT16 = bool(cpu_info.flags() & cpu_info.BFLOAT16)
_PRECISION = ["--runtime.precision", "mixed_bfloat16" if _HAS_BFLOAT16 else "float32"]


def plain_keras(tfds_dir: str) -> None:
    """Trains as a user of Keras would; prints the test accuracy."""
    import tensorflow_datasets as tfds

    (x, y), (test_x, test_y) = (
        (data["image"].astype("float32") / 255, data["label"])
        for data in (
            tfds.as_numpy(
                tfds.load("cifar10", split=split, data_dir=tfds_dir, batch_size=-1)
            )
            for split in ("train", "test")
        )
    )
    spec = {"network": "sequential", "options": {}, "classes": 10, "optimizer": "adam"}
    built = runpy.run_path(str(Path(__file__).with_name("peer_keras.py")))["_built"]
    model = built({**spec, "learning_rate": 0.001, "momentum": 0.0}, x.shape[1:])
    model.fit(x, y, epochs=10, verbose=0)
    print("test", model.evaluate(test_x, test_y, verbose=0)[1], flush=True)


def timed(*words: str) -> tuple[float, str]:
    """Wall seconds until a Python process prints its test accuracy, and that line."""
    start, command = time.monotonic(), [sys.executable, "-u", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output = process.stdout or ()
        line = next(line for line in output if line.startswith("test "))
        taken = time.monotonic() - start
        list(output)  # until it ends
    return taken, line


def main() -> None:
    """Takes turns."""
    if sys.argv[1] == "--keras":
        plain_keras(sys.argv[2])
        return
    tfds_dir, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    os.environ["TFDS_DATA_DIR"] = tfds_dir
    seconds: dict[str, list[float]] = {"keras": [], "pipeline": []}
    for seed in range(rounds):
        taken, said = timed(__file__, "--keras", tfds_dir)
        seconds["keras"].append(taken)
        print(f"keras     {float(said.split()[1]):.4f} {taken:6.1f} s", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            words = [
                "-m",
                "pipeline.fit",
                "cifar10_convnet",
                *OPTIONS.split(),
                *_PRECISION,
            ]
            words += ["--seed", str(seed), "--run-directory", f"{folder}/run"]
            taken, _ = timed(*words)
            found = json.loads(Path(folder, "run/result.json").read_text())
        seconds["pipeline"].append(taken)
        print(f"pipeline  {found['test']['accuracy']:.4f} {taken:6.1f} s", flush=True)
    ratio = statistics.median(seconds["keras"]) / statistics.median(seconds["pipeline"])
    print(f"{ratio:.2f} times sooner")


if __name__ == "__main__":
    main()
