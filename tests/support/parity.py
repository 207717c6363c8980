"""Compares training in every supported way with stock Keras on a single device."""

import dataclasses
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from pipeline.config import config, registry
from pipeline.contracts import Batches, Task
from pipeline.data import batching, dataset
from pipeline.data.splits import Split
from pipeline.layers.nested import all_layers
from pipeline.runtime import devices, environment
from pipeline.training import pretrained
from pipeline.training.model_builder import build, network
from pipeline.utils.errors import UsageError, reason

# Calls of 8 steps then end at 8, 11 and 16.
STEPS_PER_EPOCH = 11
CALLS = (1, 8)
LEARNING_RATE = 0.05
MOMENTUM = 0.9
CLIP_NORM = 0.02  # far below the norm of the gradients, so that they are always clipped


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to train."""

    replicas: int
    precision: str
    accumulate: int
    clip: bool


@dataclasses.dataclass(frozen=True)
class Result:
    """The differences measured in a case."""

    case: Case
    engines: float = 0.0
    """Largest difference of any variable between engines and call lengths."""
    stock: float | None = None
    """Distance of the worst tensor to stock Keras in the same precision; None if
    replicas normalize their parts of the batch separately.
    """
    error: str = ""


def run(
    recipe: config.Config, cases: Sequence[Case], steps: int, batch_size: int
) -> Iterator[Result]:
    """Runs the cases with the data, task and network of the recipe.

    The runtime must have been started for all replicas.
    """
    # The recipe's training options are not used: stock Keras lacks most of them.
    train = config.TrainConfig(
        batch_size=batch_size,
        epochs=-(-steps // STEPS_PER_EPOCH),
        steps=steps,
        schedule="constant",
        optimizer="sgd",
        learning_rate=LEARNING_RATE,
        optimizer_options={"momentum": MOMENTUM},
    )
    recipe = dataclasses.replace(recipe, train=train)
    recipe = recipe.changed(
        data={"augment": {}, "limit": 4 * STEPS_PER_EPOCH * batch_size}
    )
    loaded = dataset.load(recipe)
    required = STEPS_PER_EPOCH * batch_size
    available = len(loaded.splits["train"])
    if available < required:
        raise UsageError(
            f"--parity needs {required} training examples; train has {available}"
        )
    for case in cases:
        try:
            yield _compare(recipe, loaded, case)
        except UsageError:
            raise
        except Exception as error:  # the remaining cases may pass
            yield Result(case, error=reason(error))


def _compare(recipe: config.Config, loaded: dataset.LoadedData, case: Case) -> Result:
    """Trains with each engine, with each call length, and with stock Keras."""
    settings = recipe.changed(
        train={
            "accumulate": case.accumulate,
            "global_clipnorm": CLIP_NORM if case.clip else None,
        },
        runtime={"precision": case.precision, "replicas": case.replicas},
    )
    strategy, _ = devices.choose(settings.runtime)
    machine = environment.Machine(case.precision, False, strategy, ())
    train = loaded.splits["train"]
    rows = train.rows[: STEPS_PER_EPOCH * settings.train.batch_size]
    batches = batching.training(
        Split(train.store, rows), settings.train, settings.runtime.seed
    )
    ends = []
    for engine in registry.names("engines"):
        weights = loaded.class_weight
        model = build(loaded.task, settings, machine, batches, class_weight=weights)
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
    differences = []
    for end in ends[1:]:
        for a, b in zip(ends[0], end, strict=True):
            differences.append(np.abs(a - b).max(initial=0))
    # NumPy's maximum, unlike Python's, is NaN if any number is.
    engines = float(np.max(differences))
    if machine.replicas > 1 and _has_local_statistics(model):
        return Result(case, engines)
    # `weights`, unlike `variables`, has no states of random layers.
    after = model.get_weights()
    stock = _train_stock_keras(loaded.task, batches, settings, before)
    distances = []
    for index, variable in enumerate(model.weights):
        if variable.trainable:
            distances.append(_distance(before[index], after[index], stock[index]))
    return Result(case, engines, float(np.max(distances)))


def _train_stock_keras(
    task: Task, batches: Batches, settings: config.Config, weights: list[np.ndarray]
) -> list[np.ndarray]:
    """Trains from `weights` with Keras's `fit`, without `train_step.py`."""
    model = network(task, settings.model, settings.runtime.precision)
    model = keras.Model(model.inputs, model.outputs)
    _disable_dropout(model)
    pretrained.set_weights(model, weights)
    examples = (batches.gather(batch) for batch in batches.dataset(0))
    ready = [task.step_inputs(batch, batch["id"]) for batch in examples]
    inputs, y, _ = keras.tree.map_structure(
        lambda *parts: np.concatenate(parts), *ready
    )
    loss = task.target.loss()
    pieces = settings.train.accumulate
    optimizer = keras.optimizers.SGD(
        LEARNING_RATE,
        MOMENTUM,
        global_clipnorm=settings.train.global_clipnorm,
        gradient_accumulation_steps=pieces if pieces > 1 else None,
    )
    # With float16, Keras wraps the optimizer (`auto_scale_loss`), which is correct on
    # one device.
    model.compile(optimizer, lambda y, outputs: loss(y, outputs), jit_compile=False)
    size = settings.train.batch_size // pieces
    model.fit(inputs, y, batch_size=size, shuffle=False, verbose=0)
    return model.get_weights()


def _disable_dropout(model: keras.Model) -> None:
    """Disables dropout, whose random numbers differ between the two."""
    for layer in all_layers(model):
        if isinstance(getattr(layer, "rate", None), float):
            layer.rate = 0.0


def _distance(before: np.ndarray, after: np.ndarray, stock: np.ndarray) -> float:
    """Returns the distance to stock Keras, relative to the update by stock Keras."""
    distance = float(np.linalg.norm(after - stock))
    update = float(np.linalg.norm(stock - before))
    return distance / max(update, 1e-30)


def _has_local_statistics(model: keras.Model) -> bool:
    """Whether BatchNormalization uses separate statistics on each replica."""
    kind = keras.layers.BatchNormalization
    layers = [layer for layer in all_layers(model) if isinstance(layer, kind)]
    return any(not layer.synchronized for layer in layers)
