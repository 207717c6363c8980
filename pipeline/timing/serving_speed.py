"""The speed of an exported version, with the loader and session of TensorFlow Serving."""

import functools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pipeline.data.split_names import judged
from pipeline.export import savedmodel
from pipeline.serving.savedmodel_session import Session
from pipeline.timing.rounds import Line, Rounds, timed
from pipeline.timing.training_speed import Training

_BATCHES = (1, 8, 64, 256)


def lines(training: Training, folder: Path, seconds: float, count: int) -> list[Line]:
    """Latency and throughput of `serving_default` by batch size, for one client."""
    data, task, model = training.data, training.data.task, training.model
    split = data.splits[judged(data.splits)]
    savedmodel.write(folder, model, task, training.config, split, metrics={}, trained={})
    columns = split.take(np.arange(_BATCHES[-1]) % len(split))
    request, session = task.requests(columns)["serving_default"], Session(folder)
    latencies: dict[int, list[float]] = {size: [] for size in _BATCHES}

    def answer(size: int) -> int:
        start = time.perf_counter()
        session.run("serving_default", {name: values[:size] for name, values in request.items()})
        latencies[size].append(1e3 * (time.perf_counter() - start))
        return size

    one = np.zeros((1, *model.input_shape[1:]), np.float32)
    calls: dict[str, Callable[[], int]] = {
        f"batch {size}": functools.partial(answer, size) for size in _BATCHES
    }
    calls["keras predict"] = lambda: len(model.predict(one, verbose=0))
    timers = {name: timed(call, seconds) for name, call in calls.items()}
    rounds = Rounds("serving", timers, "batch 1", count)
    found = [rounds.control(), rounds.line("keras predict")]
    for size, taken in latencies.items():  # without those of the first round
        p50, p90, p99 = np.percentile(taken[len(taken) // (count + 1) :], [50, 90, 99])
        pair = "batch 1 / keras predict" if size == 1 else ""
        note = f"p50 {p50:.2f}, p90 {p90:.2f}, p99 {p99:.2f} ms"
        found.append(rounds.line(f"batch {size}", pair, note=note))
    return found
