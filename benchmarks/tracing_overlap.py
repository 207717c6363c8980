"""Measures how much time it saves to trace the training step while examples are
decoded.

    python benchmarks/tracing_overlap.py TFDS_DIR FOLDER [PAIRS]

Prints the seconds of alternating pairs, and the median and range of what the overlap
saves:

- decoding CIFAR-10 into memory, and building `convnet` and tracing its step for a small
  part that was decoded before: one after the other, or at the same time in two threads;
- the first step of `convnet` on images of 224 pixels in FOLDER, which are decoded in
  each epoch: decoding begins after tracing, or at the same time, as in this package.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

CIFAR10 = ("cifar10_convnet", "--data.cache", "memory")
PHOTOS = ("--data.cache", "none", "--image-size", "224", "--batch-size", "32")
COMMON = ("--model.name", "convnet", "--runtime.precision", "float32", "--no-export")


def main() -> None:
    """Prints both measurements."""
    os.environ["TFDS_DATA_DIR"] = sys.argv[1]
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    from pipeline.config import command_line
    from pipeline.runtime import environment
    from pipeline.runtime.signals import StopSignals

    whole = command_line.configure([*CIFAR10, *COMMON])
    photos = command_line.configure([sys.argv[2], *PHOTOS, *COMMON])
    machine = environment.start(whole.runtime, None, whole.digest())

    import tensorflow as tf

    from pipeline.data import dataset
    from pipeline.training import distributed
    from pipeline.training.trainer import Trainer

    def prepared(config: Any, data: Any) -> tuple[Any, Any, Any]:
        """A model, its training batches and its calls of the step, not traced yet."""
        trainer = Trainer(config, machine, data, StopSignals(None))
        trainer.build()
        model, batches = trainer.model, trainer.batches
        model.step.set_inputs(batches, trainer.evaluated["validation"])
        return model, batches, distributed.Calls(model, "train", batches)

    part = whole.changed(data={"limit": 4096})
    small = dataset.load(part)

    def filling(overlapped: bool) -> float:
        start = time.perf_counter()
        decoding = threading.Thread(target=dataset.load, args=(whole,))
        decoding.start()
        if not overlapped:
            decoding.join()
        model, batches, call = prepared(part, small)
        tickets = iter(distributed.tickets(batches))
        call._run.get_concrete_function(tickets, tf.constant(1), model.step.phase)
        decoding.join()
        return time.perf_counter() - start

    compare("decoding into memory", filling, pairs)
    read = dataset.load(photos)

    def first_step(overlapped: bool) -> float:
        model, batches, call = prepared(photos, read)
        options = tf.data.Options()
        options.experimental_warm_start = overlapped
        start = time.perf_counter()
        tickets = iter(distributed.tickets(batches).with_options(options))
        model.steps_per_execution = 1
        call.begin(batches.epochs - 1)
        for value in call(tickets).values():
            value.numpy()
        return time.perf_counter() - start

    compare("first step", first_step, pairs)


def compare(name: str, seconds: Callable[[bool], float], pairs: int) -> None:
    """Prints a line for each pair and one for all."""
    seconds(False)  # the first trace is slower
    found: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs):
        for overlapped in (False, True) if pair % 2 else (True, False):
            found[overlapped].append(seconds(overlapped))
        one, other = found[False][-1], found[True][-1]
        print(f"{name}: sequential {one:.2f} s, overlapped {other:.2f} s", flush=True)
    saved = [one - other for one, other in zip(found[False], found[True], strict=True)]
    medians = [statistics.median(values) for values in found.values()]
    print(f"{name}: {medians[0]:.2f} and {medians[1]:.2f} s", end="; ")
    print(
        f"saved {statistics.median(saved):.2f} s ({min(saved):.2f} to {max(saved):.2f})"
    )


if __name__ == "__main__":
    main()
