"""CPU time of the bar and of the points for TensorBoard.

    python benchmarks/scripts/progress.py [ROUNDS]

Each round trains `digits` (batch 4, 314 steps per epoch, 4 epochs, 4 steps per call)
without, with, with and without the callbacks `progress` and `metric_logger`, the bar
being drawn for a terminal. Prints quartiles of the CPU time that they add, and the
fraction of the time that is spent within what they do after each call.
"""

import contextlib
import io
import os
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from types import SimpleNamespace

from callbacks import timed


class Terminal(io.StringIO):
    """Nobody looks at it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


def main(rounds: int = 15) -> None:
    """Compares in one process, for both engines."""
    from pipeline.config import command_line, registry
    from pipeline.config.sections import LogConfig
    from pipeline.data import batching, dataset
    from pipeline.runtime import environment
    from pipeline.runtime.run_directory import RunDirectory
    from pipeline.runtime.signals import StopSignals
    from pipeline.training.callbacks.metric_logger import MetricLogger
    from pipeline.training.callbacks.progress import Progress
    from pipeline.training.model_builder import build
    from pipeline.utils import progress_bar

    os.environ["TERM"] = "xterm"
    settings = command_line.recipe("digits").changed(
        train={"batch_size": 4, "epochs": 4}
    )
    machine, data = environment.start(settings.runtime), dataset.load(settings)
    batches = batching.training(data.splits["train"], settings.train, 0)
    model = build(data.task, settings, machine, batches)
    model.steps_per_execution = 4
    saved = SimpleNamespace(epoch=0, step=0, history={}, seconds=[])
    for engine in map(registry.load, ["engines"] * 2, ["model_fit", "gradient_tape"]):
        ratios, within = [], []
        for number in range(rounds + 1):  # the first one compiles
            cost = {False: 0.0, True: 0.0}
            for shown in (False, True, True, False):
                with (
                    tempfile.TemporaryDirectory() as folder,
                    contextlib.redirect_stdout(Terminal()),
                    machine.strategy.scope(),
                    progress_bar.show(shown),
                ):
                    context = SimpleNamespace(
                        run=RunDirectory(Path(folder)),
                        batches=batches,
                        checkpoint=saved,
                        log=LogConfig(),
                        stops=StopSignals(),
                    )
                    found = [Progress(context), MetricLogger(context)]
                    spent = [
                        timed(one, ["on_train_batch_end"], perf_counter)
                        for one in found
                    ]
                    start, begin = process_time(), perf_counter()
                    engine(model, batches, None, found * shown)
                    cost[shown] += process_time() - start
                    if number and shown:
                        within.append(sum(map(sum, spent)) / (perf_counter() - begin))
            ratios += [cost[True] / cost[False] - 1] * (number > 0)
        quartiles = " ".join(f"{q:+.2%}" for q in statistics.quantiles(ratios, n=4))
        step = f"{quartiles} of {cost[False] / (2 * batches.last_step) * 1000:.2f} ms"
        print(f"{engine.__name__}: {step}; {statistics.median(within):.3%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
