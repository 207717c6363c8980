"""Measures what a user's callbacks that listen per epoch cost: a CSVLogger and one of one's own.

    python benchmarks/callbacks.py [ROUNDS]

`digits` with batch 32 for 20 epochs, 10 steps per call. In each round, the same model is trained
without, with, with and without the callbacks. Prints the CPU time that they add to a step, as a
fraction: median, quartiles and extremes.
"""

import statistics
import sys
import tempfile
import time


def main(rounds: int = 7) -> None:
    """Compares in one process, for both engines."""
    import keras
    import numpy as np

    from pipeline.config import command_line, registry
    from pipeline.data import batching, dataset
    from pipeline.runtime import environment
    from pipeline.training.callbacks._given import given
    from pipeline.training.model_builder import build

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.best = min(getattr(self, "best", np.inf), logs["loss"])

    settings = command_line.recipe("digits").changed(train={"batch_size": 32, "epochs": 20})
    machine = environment.start(settings.runtime)
    data = dataset.load(settings)
    batches = batching.training(data.splits["train"], settings.train, 0)
    model = build(data.task, settings, machine, batches)
    model.steps_per_execution = 10
    for engine in ("model_fit", "gradient_tape"):
        ratios, steps = [], []
        for number in range(rounds + 1):
            seconds = {False: 0.0, True: 0.0}
            for listening in (False, True, True, False):
                with tempfile.NamedTemporaryFile(suffix=".csv") as file, machine.strategy.scope():
                    found = [given(keras.callbacks.CSVLogger(file.name)), given(Own())]
                    start = time.process_time()
                    registry.load("engines", engine)(model, batches, None, found * listening)
                    seconds[listening] += time.process_time() - start
            if number:  # the first one compiles
                ratios.append(seconds[True] / seconds[False] - 1)
                steps.append(seconds[False] / (2 * batches.last_step) * 1000)
        low, median, high, *ends = (
            100 * q for q in (*statistics.quantiles(ratios, n=4), min(ratios), max(ratios))
        )
        step = f"{engine}: {median:+.2f} % of {statistics.median(steps):.2f} ms per step"
        print(
            f"{step} (half in {low:+.2f} to {high:+.2f}, all in {ends[0]:+.2f} to {ends[1]:+.2f})"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
