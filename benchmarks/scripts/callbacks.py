"""CPU time that callbacks add to training, in one process, with both engines.

    python benchmarks/scripts/callbacks.py user [ROUNDS]
    python benchmarks/scripts/callbacks.py progress [ROUNDS]

`user`: a CSVLogger and a LambdaCallback that listen per epoch (batch 32, 5 epochs,
10 steps per call). `progress`: the progress bar, drawn for a terminal, and the points
for TensorBoard (batch 4, 4 epochs, 4 steps per call).

Each round trains `digits` without, with, with and without the callbacks. Prints the
quartiles of the CPU time that they add, and the median share of the CPU time that is
spent in their methods.
"""

import contextlib
import io
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any

SETTINGS = {
    "user": {"batch_size": 32, "epochs": 5, "steps_per_execution": 10},
    "progress": {"batch_size": 4, "epochs": 4, "steps_per_execution": 4},
}


class Terminal(io.StringIO):
    """Discards what is written, like a terminal that nobody looks at."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


@contextlib.contextmanager
def user_callbacks(batches: Any) -> Iterator[list[Any]]:
    """Callbacks of a user, as `fit` adapts them."""
    import keras

    from pipeline.training.user_callback import from_object

    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        calls: list[Any] = []
        listener = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *arguments: calls.append(arguments)
        )
        csv_logger = keras.callbacks.CSVLogger(file.name)
        yield [from_object(csv_logger), from_object(listener)]


@contextlib.contextmanager
def progress_callbacks(batches: Any) -> Iterator[list[Any]]:
    """The callbacks that draw the bar and write points within an epoch."""
    from pipeline.config.sections import LogConfig
    from pipeline.runtime.run_directory import RunDirectory
    from pipeline.runtime.signals import StopSignals
    from pipeline.training.callbacks.metric_logger import MetricLogger
    from pipeline.training.callbacks.progress import Progress
    from pipeline.utils import progress_bar

    os.environ["TERM"] = "xterm"
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(Terminal()),
        progress_bar.show(True),
    ):
        context: Any = SimpleNamespace(
            run=RunDirectory(Path(folder)),
            batches=batches,
            checkpoint=SimpleNamespace(epoch=0, step=0, history={}, seconds=[]),
            log=LogConfig(),
            stops=StopSignals(),
        )
        yield [Progress(context), MetricLogger(context)]


def time_methods(callback: Any) -> list[float]:
    """Wraps the methods of a callback; the list gets the CPU seconds of each call."""
    seconds: list[float] = []

    def wrap(method: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **options: Any) -> None:
            start = process_time()
            method(*arguments, **options)
            seconds.append(process_time() - start)

        return call

    for name in dir(callback):
        if name.startswith("on_"):
            setattr(callback, name, wrap(getattr(callback, name)))
    return seconds


def measure(kind: str, rounds: int) -> None:
    from pipeline.config import command_line, registry
    from pipeline.data import batching, dataset
    from pipeline.runtime import environment
    from pipeline.training.model_builder import build

    settings = command_line.recipe("digits").changed(train=SETTINGS[kind])
    machine = environment.start(settings.runtime)
    data = dataset.load(settings)
    batches = batching.training(data.splits["train"], settings.train, 0)
    model = build(data.task, settings, machine, batches)
    model.steps_per_execution = settings.train.steps_per_execution
    make = user_callbacks if kind == "user" else progress_callbacks
    for name in ("model_fit", "gradient_tape"):
        engine = registry.load("engines", name)
        added = []
        shares = []
        for number in range(rounds + 1):
            seconds = {False: 0.0, True: 0.0}
            inside = 0.0
            for is_used in (False, True, True, False):
                with make(batches) as callbacks, machine.strategy.scope():
                    times = [time_methods(callback) for callback in callbacks]
                    start = process_time()
                    engine(model, batches, None, callbacks if is_used else [])
                    seconds[is_used] += process_time() - start
                    inside += sum(map(sum, times))
            if number:  # the first round compiles
                added.append(seconds[True] / seconds[False] - 1)
                shares.append(inside / seconds[True])
        quartiles = " ".join(f"{q:+.2%}" for q in statistics.quantiles(added, n=4))
        print(f"{name}: {quartiles}; {statistics.median(shares):.2%} in the methods")


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 15)
