"""Measures the time that tracing the training step while the cache is filled would save.

    python benchmarks/tracing_overlap.py TFDS_DIR [PAIRS]

Decodes CIFAR-10, and builds `convnet` and traces its step for a small part that was decoded before:
one after the other, and overlapped in two threads, in alternating order. Prints the seconds of
each, and the median and range of the difference.
"""

import os
import statistics
import sys
import threading
import time
from typing import Any

WORDS = ("cifar10_convnet", "--no-export", "--runtime.precision", "float32")


def main() -> None:
    """Prints a line for each pair."""
    os.environ["TFDS_DATA_DIR"] = sys.argv[1]
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    from pipeline.config import command_line
    from pipeline.runtime import environment
    from pipeline.runtime.signals import Stops

    whole = command_line.configure([*WORDS, "--data.cache", "memory"])
    part = whole.changed(data={"limit": 4096})
    machine = environment.start(whole.runtime, None, whole.digest())

    import tensorflow as tf

    from pipeline.data import dataset
    from pipeline.training import distributed
    from pipeline.training.trainer import Trainer

    data = dataset.load(part)

    def traced() -> None:
        trainer = Trainer(part, machine, data, Stops(None))
        trainer.build()
        model, batches = trainer.model, trainer.batches
        model.step.set_inputs(batches, trainer.evaluated["validation"])
        iterator = iter(distributed.tickets(batches))
        call: Any = distributed.Calls(model, "train", batches)
        call._run.get_concrete_function(iterator, tf.constant(1), model.step.phase)

    def seconds(overlapped: bool) -> float:
        start = time.perf_counter()
        decoding = threading.Thread(target=dataset.load, args=(whole,))
        decoding.start()
        if not overlapped:
            decoding.join()
        traced()
        decoding.join()
        return time.perf_counter() - start

    traced()  # the first trace is slower
    found: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs):
        for overlapped in (False, True) if pair % 2 else (True, False):
            found[overlapped].append(seconds(overlapped))
        print(
            f"sequential {found[False][-1]:.2f} s, overlapped {found[True][-1]:.2f} s", flush=True
        )
    saved = [one - other for one, other in zip(found[False], found[True], strict=True)]
    print(f"saved: {statistics.median(saved):.2f} s ({min(saved):.2f} to {max(saved):.2f})")


if __name__ == "__main__":
    main()
