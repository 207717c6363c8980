"""Measures the images per second of each augmentation, compiled as in the training
step.

    python benchmarks/scripts/augment.py [ROUNDS]

Each augmentation runs with its default options on one resident uint8 batch. All
augmentations run in each round, so that disturbances affect all of them equally. Prints
the median, minimum and maximum over the rounds.
"""

import statistics
import sys
import time

SHAPES = ((128, 32, 32, 3), (32, 224, 224, 3))
SECONDS = 0.1  # minimum measuring time of an augmentation per round


def speeds(shape: tuple[int, ...], rounds: int) -> dict[str, list[float]]:
    """Returns the images per second in each round, by augmentation; `none` copies the
    batch.
    """
    import numpy as np
    import tensorflow as tf

    from pipeline.config import registry
    from pipeline.data.augmentation import Augmenter

    count = shape[0]
    calls = {}
    measured: dict[str, list[float]] = {}
    batch = {
        "image": tf.constant(
            np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        ),
        "label": tf.range(count, dtype=tf.int64),
        "id": tf.range(count, dtype=tf.int64),
        "epoch": tf.zeros([count], tf.int64),
    }
    for name in ("none", *registry.names("augment")):
        augment = Augmenter({} if name == "none" else {name: {}}, 0)
        calls[name] = tf.function(
            lambda batch, a=augment: a(batch)["image"], autograph=False
        )
        calls[name](batch)[0, 0, 0, 0].numpy()  # traces
    for _ in range(rounds):
        for name, call in calls.items():
            start, done = time.monotonic(), 0
            while time.monotonic() < start + SECONDS:
                call(batch)[0, 0, 0, 0].numpy()  # waits for the device
                done += 1
            seconds = time.monotonic() - start
            measured.setdefault(name, []).append(done * count / seconds)
    return measured


def main() -> None:
    """Prints the speeds for both image sizes."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    for shape in SHAPES:
        print(
            f"{shape[1]}x{shape[2]}x{shape[3]} uint8, batch {shape[0]}, {rounds} rounds"
        )
        for name, values in speeds(shape, rounds).items():
            median, lowest, highest = (
                statistics.median(values),
                min(values),
                max(values),
            )
            print(
                f"  {name:20}{median:>12,.0f} images/s  ({lowest:,.0f} to"
                f" {highest:,.0f})"
            )


if __name__ == "__main__":
    main()
