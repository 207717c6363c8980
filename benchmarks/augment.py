"""Images per second of each augmentation, compiled as in the step, on this machine's device.

    python benchmarks/augment.py [ROUNDS]

Each with its default options, on one resident uint8 batch. The operations take turns in each
round, so that all of them see the same disturbances; printed are median, least and largest.
"""

import statistics
import sys
import time

SHAPES = ((128, 32, 32, 3), (32, 224, 224, 3))
LEAST = 0.1  # seconds of calls in a round


def speeds(shape: tuple[int, ...], rounds: int) -> dict[str, list[float]]:
    """Images per second in each round, by operation; `nothing` is a copy of the batch."""
    import numpy as np
    import tensorflow as tf

    from pipeline.config import registry
    from pipeline.data.augmentation import Augmenter

    count, calls, measured = shape[0], {}, {}
    batch = {
        "image": tf.constant(np.random.default_rng(0).integers(0, 256, shape, np.uint8)),
        "label": tf.range(count, dtype=tf.int64),
        "id": tf.range(count, dtype=tf.int64),
        "epoch": tf.zeros([count], tf.int64),
    }
    for name in ("nothing", *registry.names("augment")):
        augment = Augmenter({} if name == "nothing" else {name: {}}, 0)
        calls[name] = tf.function(lambda batch, a=augment: a(batch)["image"], autograph=False)
        calls[name](batch)[0, 0, 0, 0].numpy()  # traces
    for _ in range(rounds):
        for name, call in calls.items():
            start, done = time.monotonic(), 0
            while time.monotonic() < start + LEAST:
                call(batch)[0, 0, 0, 0].numpy()  # waits for a device
                done += 1
            seconds = time.monotonic() - start
            measured.setdefault(name, []).append(done * count / seconds)
    return measured


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    for shape in SHAPES:
        print(f"{shape[1]}x{shape[2]}x{shape[3]} uint8, batch {shape[0]}, {rounds} rounds")
        for name, values in speeds(shape, rounds).items():
            middle, least, most = statistics.median(values), min(values), max(values)
            print(f"  {name:20}{middle:>12,.0f} images/s  ({least:,.0f} to {most:,.0f})")


if __name__ == "__main__":
    main()
