"""Compares a few training steps, in every supported way, with stock Keras on one
device.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from pipeline.config import config, registry
from pipeline.contracts import Batches, Task
from pipeline.data import batching, dataset
from pipeline.data.splits import Split
from pipeline.models import _layers
from pipeline.runtime import devices, environment
from pipeline.training import pretrained
from pipeline.training.model_builder import build, network
from pipeline.utils.errors import UsageError, reason

TOLERANCE = 1e-5
"""Float32 sums in another order: 16 steps of SGD with `tiny` on digits differ by up to
3e-6.
"""
JUDGED_STEPS = 16
# Calls of 8 steps then end at 8, 11, 19, 22, ...
STEPS_PER_EPOCH = 11
CALLS = (1, 8)
# Options of Keras's optimizers; some defaults differ between the package and Keras.
OPTIMIZERS: dict[str, tuple[Any, dict[str, float]]] = {
    "sgd": (keras.optimizers.SGD, {"learning_rate": 0.05, "momentum": 0.9}),
    "adam": (keras.optimizers.Adam, {"learning_rate": 0.001}),
    "adamw": (keras.optimizers.AdamW, {"learning_rate": 0.001}),
    "nadam": (keras.optimizers.Nadam, {"learning_rate": 0.001}),
}
CLIP_NORM = 0.02  # far below the norm of the gradients, so that they are always clipped


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to train."""

    replicas: int
    optimizer: str
    precision: str
    accumulate: int
    clip: bool


@dataclasses.dataclass(frozen=True)
class Result:
    """The distances measured in one case."""

    case: Case
    apart: float = 0.0
    """Largest difference of any weight or optimizer variable between engines and call
    lengths.
    """
    stock: float | None = None
    """Distance of the worst tensor to stock Keras in the same precision; None if
    replicas normalize their parts of the batch separately.
    """
    error: str = ""
    judged: bool = True
    """Whether `passed` requires a small distance to stock Keras."""

    @property
    def passed(self) -> bool:
        """Whether the results are close enough."""
        if self.error or self.apart != 0:
            return False
        return not self.judged or self.stock is None or self.stock <= TOLERANCE


def run(
    recipe: config.Config, cases: Sequence[Case], steps: int, batch_size: int
) -> Iterator[Result]:
    """Yields the results of the cases, with the data, task and network of the recipe.

    The runtime must have been started for all replicas.
    """
    # None of the recipe's own training options: stock Keras has no equivalent for most
    # of them.
    train = config.Train(
        batch_size=batch_size,
        epochs=-(-steps // STEPS_PER_EPOCH),
        steps=steps,
        schedule="constant",
    )
    recipe = dataclasses.replace(recipe, train=train)
    recipe = recipe.changed(
        data={"augment": {}, "limit": 4 * STEPS_PER_EPOCH * batch_size}
    )
    loaded = dataset.load(recipe)
    needed, found = STEPS_PER_EPOCH * batch_size, len(loaded.splits["train"])
    if found < needed:
        raise UsageError(
            f"--parity needs {needed} training examples; train has {found}"
        )
    for case in cases:
        # With 16 bits, even stock Keras is far from its own float32 result:
        # benchmarks/parity.md.
        judged = steps <= JUDGED_STEPS and (case.optimizer, case.precision) == (
            "sgd",
            "float32",
        )
        try:
            yield Result(case, **_measured(recipe, loaded, case), judged=judged)
        except UsageError:
            raise
        except Exception as error:  # the other cases may pass
            yield Result(case, error=reason(error))


def _measured(
    recipe: config.Config, loaded: dataset.LoadedData, case: Case
) -> dict[str, Any]:
    """The distances of a case."""
    settings = _settings(recipe, case)
    strategy, _ = devices.choose(settings.runtime)
    machine = environment.Runtime(case.precision, False, strategy, ())
    train = loaded.splits["train"]
    some = Split(train.store, train.rows[: STEPS_PER_EPOCH * settings.train.batch_size])
    batches = batching.training(some, settings.train, settings.runtime.seed)
    ends = []
    for engine in registry.names("engines"):
        model = build(loaded.task, settings, machine, batches)
        _disable_dropout(model)
        before = model.get_weights()
        variables = [variable for group in model.state.values() for variable in group]
        start = [variable.numpy() for variable in variables]
        for calls in CALLS:
            for variable, value in zip(variables, start, strict=True):
                variable.assign(value)
            model.steps_per_execution = calls
            with machine.strategy.scope():
                registry.load("engines", engine)(model, batches, None, [])
            ends.append([variable.numpy() for variable in variables])
    pairs = [pair for end in ends[1:] for pair in zip(ends[0], end, strict=True)]
    # NumPy's maximum, unlike Python's, is NaN if one of the numbers is.
    result = {"apart": float(np.max([np.abs(a - b).max(initial=0) for a, b in pairs]))}
    if machine.replicas == 1 or not _layers.normalises_apart(model):
        # `weights`, unlike `variables`, has no states of random layers; all `ends` are
        # equal.
        trained = [number for number, v in enumerate(model.weights) if v.trainable]
        after = model.get_weights()
        stock = _stock(loaded.task, batches, settings, case.optimizer, before)
        distances = [_distance(before[n], after[n], stock[n]) for n in trained]
        result["stock"] = float(np.max(distances))
    return result


def _settings(recipe: config.Config, case: Case) -> config.Config:
    options = dict(OPTIMIZERS[case.optimizer][1])
    return recipe.changed(
        train={
            "accumulate": case.accumulate,
            "optimizer": case.optimizer,
            "learning_rate": options.pop("learning_rate"),
            "optimizer_options": options,
            "clip_norm": CLIP_NORM if case.clip else None,
        },
        runtime={"precision": case.precision, "replicas": case.replicas},
    )


def _stock(
    task: Task,
    batches: Batches,
    settings: config.Config,
    optimizer: str,
    weights: list[np.ndarray],
) -> list[np.ndarray]:
    """The weights after Keras's `fit`, which does not use `train_step.py`.

    Training starts with `weights`.
    """
    model = network(task, settings.model, settings.runtime.precision)
    model = keras.Model(model.inputs, model.outputs)
    _disable_dropout(model)
    pretrained.set_weights(model, weights)
    examples = (batches.gather(batch) for batch in batches.dataset(0))
    ready = [task.target(task.prepare(batch), batch["id"]) for batch in examples]
    inputs, y, _ = keras.tree.map_structure(
        lambda *parts: np.concatenate(parts), *ready
    )
    pieces, loss = settings.train.accumulate, task.loss()
    kind, options = OPTIMIZERS[optimizer]
    chosen = kind(
        **options,
        global_clipnorm=settings.train.clip_norm,
        gradient_accumulation_steps=pieces if pieces > 1 else None,
    )
    vectors = [v for v in model.trainable_variables if len(v.shape) < 2]
    chosen.exclude_from_weight_decay(var_list=vectors)
    # With float16, Keras wraps the optimizer (`auto_scale_loss`), which is correct on
    # one device.
    model.compile(chosen, lambda y, outputs: loss(y, outputs), jit_compile=False)
    size = settings.train.batch_size // pieces
    model.fit(inputs, y, batch_size=size, shuffle=False, verbose=0)
    return model.get_weights()


def _disable_dropout(model: keras.Model) -> None:
    """Disables dropout, because stock Keras and this package draw different random
    numbers.
    """
    for layer in model._flatten_layers():
        if isinstance(getattr(layer, "rate", None), float):
            layer.rate = 0.0


def _distance(before: np.ndarray, one: np.ndarray, other: np.ndarray) -> float:
    """The distance of `one` to `other`, as a fraction of how far training moved
    `other`.
    """
    apart, moved = (
        float(np.linalg.norm(one - other)),
        float(np.linalg.norm(other - before)),
    )
    return apart / max(moved, 1e-30)
