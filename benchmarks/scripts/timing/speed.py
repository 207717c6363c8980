"""The speed of training, of an exported version, and of what this machine can do at
most.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from benchmarks.scripts.timing.rounds import Line, Rounds, Sample, Spread, repeat
from pipeline.config import registry
from pipeline.config.config import Config
from pipeline.contracts import Batches
from pipeline.data import dataset
from pipeline.data.split_names import evaluation_split
from pipeline.export import savedmodel
from pipeline.runtime.environment import Machine
from pipeline.runtime.signals import StopSignals
from pipeline.serving.savedmodel_session import Session
from pipeline.training import autotune, distributed
from pipeline.training.run_setup import RunSetup
from pipeline.training.speed import RepeatedSource
from pipeline.utils.errors import UsageError

_EPOCHS = 10**6  # never reached
_IMAGES = 10_000  # random ones
_SHAPES = {"digits": (8, 8, 1), "mnist": (28, 28, 1), "fashion_mnist": (28, 28, 1)}
_END, _STEP, _BARE = "end to end", "resident step", ", no augmentation"
_BATCHES = (1, 8, 64, 256)
_BYTES = 256 << 20  # more than any cache


def choose_data(config: Config, synthetic: bool, folder: Path) -> tuple[Config, str]:
    """The config with a source that can be read, and its name: random images if it has
    none.
    """
    why = "--synthetic"
    if not synthetic:
        try:
            dataset.open_source(config)
            return config, config.source.title
        except UsageError as error:
            why = str(error)
    shape = _SHAPES.get(config.source.options.get("dataset", ""), (32, 32, 3))
    generator = np.random.default_rng(0)
    np.save(
        folder / "images.npy", generator.integers(0, 256, (_IMAGES, *shape), np.uint8)
    )
    np.save(folder / "labels.npy", generator.integers(0, 10, _IMAGES))
    found = f"{_IMAGES:,} random images of {'x'.join(map(str, shape))} ({why})"
    return config.changed(source={"name": "arrays", "path": folder}), found


class _Made(NamedTuple):
    """A network, and the batches that it is timed with."""

    batches: Batches
    evaluation_batches: dict[str, Batches]
    machine: Machine
    model: Any


class Training:
    """A recipe, built as for a long run; the precision `auto` is decided by a trial."""

    def __init__(
        self, config: Config, machine: Machine, data: dataset.LoadedData
    ) -> None:
        train = dataclasses.replace(config.train, epochs=_EPOCHS, steps=None)
        self.config, self.data = dataclasses.replace(config, train=train), data
        self.machine = machine
        built = self._built(self.config)
        self.machine, self.model, self._batches = (
            built.machine,
            built.model,
            built.batches,
        )
        self._made = {"": built}
        if config.data.augment:
            self._made[_BARE] = self._built(self.config.changed(data={"augment": {}}))
        self.ours = _END + list(self._made)[-1]
        """The contestant that does not augment."""
        self._judge = self._built(
            self.config
        )  # an evaluation needs another trace of the step
        self._engines = list(
            dict.fromkeys([config.train.engine, "model_fit", "gradient_tape"])
        )
        with self.machine.strategy.scope():
            for made in self._made.values():
                autotune.choose_steps_per_execution(
                    made.model, train.steps_per_execution, made.batches, None
                )

    def _built(self, config: Config) -> _Made:
        setup = RunSetup(config, self.machine, self.data, StopSignals())
        built = setup.build()
        return _Made(
            setup.batches, setup.evaluation_batches, built.machine, built.model
        )

    def contestants(self, seconds: float) -> dict[str, Callable[[], Sample]]:
        """Name -> function that takes a sample, in the scope of the strategy."""
        found = ceilings(self.model.compute_dtype, min(seconds, 0.5))
        for suffix, made in self._made.items():
            found[_STEP + suffix] = repeat(_resident(made.model, made.batches), seconds)
            found[_END + suffix] = _engine(
                self._engines[0], made.model, made.batches, seconds
            )
        for name in self._engines[1:]:
            found[name] = _engine(name, self.model, self._batches, seconds)
        iterator = iter(distributed.dataset(self._batches))
        feed = repeat(lambda: (next(iterator), self._batches.batch_size)[1], seconds)
        return {
            **found,
            "feed only": feed,
            "evaluation": repeat(self._evaluation(), seconds),
        }

    def lines(self, rounds: Rounds) -> list[Line]:
        """The lines of these contestants."""
        gflop, part = training_gflop(self.model), dict[str, Any]()
        product = f"matmul {self.model.compute_dtype}"
        if gflop:
            use = Spread(
                *(gflop * value for value in rounds.ratio(f"{_STEP} / {product}"))
            )
            part = {"compared": f"part of {product}", "ratio": use}
        engines, alike = self._engines[1:], (0.98, 1.02)
        lines = [
            rounds.line(product, unit="GFLOP/s"),
            rounds.line("copy", unit="GB/s"),
            rounds.line(_STEP, **part),
            rounds.line(_END, f"{_END} / {_STEP}", bound=(0.97, math.inf)),
            *(
                rounds.line(name, f"{name} / {_END}", "CPU", bound=alike)
                for name in engines
            ),
            rounds.line("feed only", f"feed only / {_END}"),
            rounds.line("evaluation"),
        ]
        bare, why = (
            _STEP + _BARE,
            "the recipe does not augment; add, say, --data.augment flip crop",
        )
        if _BARE not in self._made:
            return [*lines, Line("training", bare, note=why)]
        more = rounds.line(bare, f"{bare} / {_STEP}", bound=(0, 1.1))
        return [*lines, more, rounds.line(self.ours)]

    def _evaluation(self) -> Callable[[], int]:
        """An evaluation, as by an engine."""
        model, name = self._judge.model, evaluation_split(self.data.splits)
        evaluated = self._judge.evaluation_batches[name]
        model.step.set_inputs(self._batches, evaluated)
        model.steps_per_execution = self.model.steps_per_execution
        calls = distributed.StepFunction(model, "evaluate", evaluated)

        def call() -> int:
            model.reset_metrics()
            logs = calls()
            while calls.position < evaluated.last_step:
                logs = calls()
            float(logs["loss"])
            return len(self.data.splits[name])

        return call


def _resident(model: Any, batches: Batches) -> Callable[[], int]:
    """Some steps on one batch that stays on the device."""
    model.step.set_inputs(batches, None)
    source = RepeatedSource(model.step, batches)
    calls = distributed.StepFunction(model, "train", batches, source)
    calls.begin(_EPOCHS - 1)

    def call() -> int:
        before = calls.position
        float(calls()["loss"])  # waits: devices run asynchronously
        return (calls.position - before) * batches.batch_size

    return call


def _engine(
    name: str, model: Any, batches: Batches, seconds: float
) -> Callable[[], Sample]:
    """Training from the end of the first call, without checkpoints, logs
    and progress.
    """
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


def ceilings(dtype: str, seconds: float) -> dict[str, Callable[[], Sample]]:
    """Matrix products (GFLOP), and a copy in memory (GB read)."""
    side = 8192 if tf.config.list_physical_devices("GPU") else 1024
    source, target = np.ones(_BYTES, np.uint8), np.ones(_BYTES, np.uint8)
    one = tf.cast(tf.random.normal((side, side)), dtype)

    def product() -> float:
        tf.reduce_max(tf.matmul(one, one)).numpy()  # waits: devices run asynchronously
        return 2e-9 * side**3

    def copy() -> float:
        np.copyto(target, source)
        return 1e-9 * _BYTES

    return {f"matmul {dtype}": repeat(product, seconds), "copy": repeat(copy, seconds)}


def training_gflop(model: keras.Model) -> float:
    """GFLOP of a training step per image: convolutions and dense layers, forward and
    backward.

    0 if a layer's output is unknown, because it belongs to a layer of the user.
    """
    kinds = (keras.layers.Conv2D, keras.layers.Dense)
    layers = [
        x for x in model._flatten_layers(include_self=False) if isinstance(x, kinds)
    ]
    if not all(layer._inbound_nodes for layer in layers):
        return 0.0
    order = [id(variable) for variable in model.variables]
    layers.sort(key=lambda layer: order.index(id(layer.kernel)))
    macs = [math.prod(x.output.shape[1:-1]) * math.prod(x.kernel.shape) for x in layers]
    return 2e-9 * (
        3 * sum(macs) - sum(macs[:1])
    )  # the input of the first one needs no gradient


def serving_lines(
    training: Training, folder: Path, seconds: float, count: int
) -> list[Line]:
    """Latency and throughput of `serving_default` by batch size, for one client.

    Uses the loader and the session of TensorFlow Serving.
    """
    data, task, model = training.data, training.data.task, training.model
    split = data.splits[evaluation_split(data.splits)]
    savedmodel.write(
        folder, model, task, training.config, split, metrics={}, trained={}
    )
    columns = split.take(np.arange(_BATCHES[-1]) % len(split))
    request = task.input.signatures()[0].request(columns)
    session = Session(folder)
    latencies: dict[int, list[float]] = {size: [] for size in _BATCHES}

    def answer(size: int) -> int:
        start = time.perf_counter()
        session.run(
            "serving_default", {name: values[:size] for name, values in request.items()}
        )
        latencies[size].append(1e3 * (time.perf_counter() - start))
        return size

    one = np.zeros((1, *model.input_shape[1:]), np.float32)
    calls: dict[str, Callable[[], int]] = {
        f"batch {size}": functools.partial(answer, size) for size in _BATCHES
    }
    calls["keras predict"] = lambda: len(model.predict(one, verbose=0))
    timers = {name: repeat(call, seconds) for name, call in calls.items()}
    rounds = Rounds("serving", timers, "batch 1", count)
    found = [rounds.control(), rounds.line("keras predict")]
    for size, taken in latencies.items():  # without those of the first round
        p50, p90, p99 = np.percentile(taken[len(taken) // (count + 1) :], [50, 90, 99])
        pair = "batch 1 / keras predict" if size == 1 else ""
        note = f"p50 {p50:.2f}, p90 {p90:.2f}, p99 {p99:.2f} ms"
        found.append(rounds.line(f"batch {size}", pair, note=note))
    return found
