"""The speed of training: the step on one batch, both engines, the input pipeline, evaluation."""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from pipeline.config import registry
from pipeline.config.config import Config
from pipeline.contracts import Batches
from pipeline.data import augmentation, batching, dataset
from pipeline.data.split_names import judged
from pipeline.evaluation import throughput
from pipeline.runtime.environment import Runtime
from pipeline.runtime.watchdog import Watchdog
from pipeline.timing import ceilings
from pipeline.timing.rounds import Line, Rounds, Sample, Spread, timed
from pipeline.training import autotune, distributed
from pipeline.training.model_builder import build
from pipeline.utils.errors import UsageError

_EPOCHS = 10**6  # never reached
_IMAGES = 10_000  # random ones
_SHAPES = {"digits": (8, 8, 1), "mnist": (28, 28, 1), "fashion_mnist": (28, 28, 1)}
_END, _STEP, _BARE = "end to end", "resident step", ", no augmentation"


def available(config: Config, synthetic: bool, folder: Path) -> tuple[Config, str]:
    """The config with a source that can be read, and its name: random images if it has none."""
    why = "--synthetic"
    if not synthetic:
        try:
            dataset.opened(config)
            return config, config.source.title
        except UsageError as error:
            why = str(error)
    shape = _SHAPES.get(config.source.options.get("dataset", ""), (32, 32, 3))
    generator = np.random.default_rng(0)
    np.save(folder / "images.npy", generator.integers(0, 256, (_IMAGES, *shape), np.uint8))
    np.save(folder / "labels.npy", generator.integers(0, 10, _IMAGES))
    found = f"{_IMAGES:,} random images of {'x'.join(map(str, shape))} ({why})"
    return config.changed(source={"name": "arrays", "path": folder}), found


class Training:
    """A recipe, built as for a long run; the precision `auto` is decided by a trial."""

    def __init__(self, config: Config, machine: Runtime, data: dataset.Data) -> None:
        train = dataclasses.replace(config.train, epochs=_EPOCHS, steps=None)
        plain = batching.training(data.splits["train"], train, config.runtime.seed)
        batches, _ = augmentation.placed(plain, config.data, config.runtime.seed, data.cache)

        def built(machine: Runtime) -> Any:
            return build(data.task, config, machine, plain, batches is plain)

        if config.runtime.precision == "auto":
            with Watchdog(config.runtime.hang_timeout, None) as dog:
                machine, self.model = autotune.precision(machine, built, batches, None, dog)
        else:
            self.model = built(machine)
        self.config, self.machine, self.data, self._batches = config, machine, data, batches
        self._made = {"": (self.model, batches)}
        if config.data.augment:
            bare = config.changed(data={"augment": {}})
            self._made[_BARE] = build(data.task, bare, machine, plain), plain
        self.ours = _END + list(self._made)[-1]
        """The contestant that does not augment."""
        self._judge = built(machine)  # an evaluation makes a model trace its training step again
        self._engines = list(dict.fromkeys([config.train.engine, "model_fit", "gradient_tape"]))
        with machine.strategy.scope():
            for model, some in self._made.values():
                autotune.steps_per_call(model, config.train.steps_per_call, some, None)

    def contestants(self, seconds: float) -> dict[str, Callable[[], Sample]]:
        """Name -> function that takes a sample, in the scope of the strategy."""
        found = ceilings.contestants(min(seconds, 0.5))
        for suffix, (model, batches) in self._made.items():
            found[_STEP + suffix] = timed(_resident(model, batches), seconds)
            found[_END + suffix] = _engine(self._engines[0], model, batches, seconds)
        for name in self._engines[1:]:
            found[name] = _engine(name, self.model, self._batches, seconds)
        tickets = iter(distributed.tickets(self._batches))
        feed = timed(lambda: (next(tickets), self._batches.batch_size)[1], seconds)
        return {**found, "feed only": feed, "evaluation": timed(self._evaluation(), seconds)}

    def lines(self, rounds: Rounds) -> list[Line]:
        """The lines of these contestants."""
        gflop, dtype = ceilings.training_gflop(self.model), self.model.compute_dtype
        product = f"matmul {'float32' if dtype == 'float32' else 'bfloat16'}"
        use = Spread(*(gflop * value for value in rounds.ratio(f"{_STEP} / {product}")))
        lines = [
            rounds.line(product, unit="GFLOP/s"),
            rounds.line("copy", unit="GB/s"),
            rounds.line(_STEP, compared=f"part of {product}", ratio=use),
            rounds.line(_END, f"{_END} / {_STEP}", bound=(0.97, math.inf)),
            *(rounds.line(e, f"{e} / {_END}", bound=(0.98, 1.02)) for e in self._engines[1:]),
            rounds.line("feed only", f"feed only / {_END}"),
            rounds.line("evaluation"),
        ]
        bare, why = _STEP + _BARE, "the recipe does not augment; add, say, --data.augment flip crop"
        if _BARE not in self._made:
            return [*lines, Line("training", bare, note=why)]
        more = rounds.line(bare, f"{bare} / {_STEP}", bound=(0, 1.1))
        return [*lines, more, rounds.line(self.ours)]

    def _evaluation(self) -> Callable[[], int]:
        """An evaluation, as by an engine."""
        split, model = self.data.splits[judged(self.data.splits)], self._judge
        evaluated = batching.evaluation(split, self.config.train, self.machine.replicas)
        model.step.set_inputs(self._batches, evaluated)
        model.steps_per_execution = self.model.steps_per_execution
        dataset = distributed.tickets(evaluated)

        def call() -> int:
            tickets = iter(dataset)
            model.reset_metrics()
            calls = distributed.Calls(model, "evaluate", evaluated)
            while calls.position < evaluated.last_step:
                logs = calls(tickets)
            float(logs["loss"])
            return len(split)

        return call


def _resident(model: Any, batches: Batches) -> Callable[[], int]:
    """Some steps on one batch that stays on the device."""
    model.step.set_inputs(batches, None)
    calls = distributed.Calls(model, "train", batches)
    ticket = throughput.Resident(next(iter(distributed.tickets(batches))))
    calls.begin(_EPOCHS - 1)

    def call() -> int:
        before = calls.position
        float(calls(ticket)["loss"])  # waits: devices run asynchronously
        return (calls.position - before) * batches.batch_size

    return call


def _engine(name: str, model: Any, batches: Batches, seconds: float) -> Callable[[], Sample]:
    """Training from the end of the first call, without checkpoints, logs and progress."""
    times: list[tuple[float, float, float]] = []

    def note(_: int, logs: Any) -> None:
        float(logs["loss"])
        times.append((model.step.position, time.perf_counter(), time.process_time()))
        model.stop_training = times[-1][1] - times[0][1] >= seconds

    def sample() -> Sample:
        times.clear()
        watch = keras.callbacks.LambdaCallback(on_train_batch_end=note)
        registry.load("engines", name)(model, batches, None, [watch])
        steps, wall, cpu = np.subtract(times[-1], times[0]).tolist()
        return Sample(steps * batches.batch_size, wall, cpu)

    return sample
