"""The same few steps in every way this package can take them, against stock Keras on one device.

Runs as a process of its own for each number of replicas, started by `doctor`: a failed collective
spoils all that come after it in a process. Reads its order as JSON from the command line and
writes a JSON line per case.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from pipeline.config import command_line, config, registry
from pipeline.contracts import Batches, Task
from pipeline.data import batching, dataset
from pipeline.models import _layers
from pipeline.runtime import environment
from pipeline.training.model_builder import SteppedModel, build, network
from pipeline.utils.errors import UsageError, run_command

# Calls of 8 steps then end at 8, 11, 19, 22, ...
STEPS_PER_EPOCH = 11
CALLS = (1, 8)
# Options of Keras's own optimizers; some defaults differ between the package and Keras.
OPTIMIZERS: dict[str, tuple[type, dict[str, float]]] = {
    "sgd": (keras.optimizers.SGD, {"learning_rate": 0.05, "momentum": 0.9}),
    "adam": (keras.optimizers.Adam, {"learning_rate": 0.001}),
    "adamw": (keras.optimizers.AdamW, {"learning_rate": 0.001}),
    "nadam": (keras.optimizers.Nadam, {"learning_rate": 0.001}),
}
CLIP_NORM = 0.02  # far below the norm of these gradients, so that it always acts


def settings_of(order: dict[str, Any], case: dict[str, Any]) -> config.Config:
    """The recipe's data, task and network, and the case's way to train."""
    recipe = command_line.recipe(order["recipe"])
    options = dict(OPTIMIZERS[case["optimizer"]][1])
    train = {
        **{"batch_size": order["batch_size"], "epochs": -(-order["steps"] // STEPS_PER_EPOCH)},
        **{"steps": order["steps"], "accumulate": case["accumulate"], "patience": None},
        **{"schedule": "constant", "schedule_options": {}},
        **{"optimizer": case["optimizer"], "learning_rate": options.pop("learning_rate")},
        **{"optimizer_options": options, "clip_norm": CLIP_NORM if case["clip"] else None},
    }
    return recipe.changed(
        train=train,
        model=order.get("model", {}),
        data={"augment": {}, "limit": 4 * STEPS_PER_EPOCH * order["batch_size"]},
        runtime={"precision": case["precision"], "replicas": order["replicas"]},
    )


def run(order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Results of the order's cases, one by one.

    `apart` is the largest difference in any weight or optimizer variable between the engines and
    lengths of call. `stock` is the distance to stock Keras's weights under the same precision,
    of the tensor that is worst; `exact` that of all weights together to its float32 ones, and
    `stock_exact` stock's own. They are left out where examples act on each other, so that each
    replica's part of the batch counts. The first process that comes to a reference leaves it in
    the order's folder for the others.
    """
    started = environment.start(settings_of(order, order["cases"][0]).runtime)
    for case in order["cases"]:
        settings = settings_of(order, case)
        machine = environment.Runtime(case["precision"], False, started.strategy, ())
        task, batches = _data(settings)
        before, stock = _reference(task, settings, batches, case, Path(order["folder"]))
        in_float32 = {**case, "precision": "float32"}
        twin = settings.changed(runtime={"precision": "float32"})
        _, exact = _reference(task, twin, batches, in_float32, Path(order["folder"]))
        ends = {}
        for engine in registry.names("engines"):
            model = build(task, settings, machine, batches)
            _silence(model)
            model.set_weights(before)
            start = [variable.numpy() for variable in _variables(model)]
            for calls in CALLS:
                for variable, value in zip(_variables(model), start, strict=True):
                    variable.assign(value)
                model.steps_per_execution = calls
                with machine.strategy.scope():
                    registry.load("engines", engine)(model, batches, None, [])
                ends[engine, calls] = [variable.numpy() for variable in _variables(model)]
        end, *others = ends.values()
        result = {"apart": max(_largest(end, other) for other in others)}
        trained = [number for number, v in enumerate(model.variables) if v.trainable]
        before, end, stock, exact = ([s[n] for n in trained] for s in (before, end, stock, exact))
        if machine.replicas == 1 or not _layers.normalises_apart(model):
            result["stock"] = max(map(_distance, before, end, stock))
            result["exact"] = _distance(*map(_flat, (before, end, exact)))
            result["stock_exact"] = _distance(*map(_flat, (before, stock, exact)))
        yield {**case, "replicas": machine.replicas, **result}


def _reference(
    task: Task, settings: config.Config, batches: Batches, case: dict[str, Any], folder: Path
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    path = folder / ("-".join(map(str, case.values())) + ".npz")
    if not path.exists():
        np.savez(path, *_stock(task, settings, batches, case["optimizer"]))
    held = list(np.load(path, allow_pickle=False).values())
    return held[: len(held) // 2], held[len(held) // 2 :]


def _data(settings: config.Config) -> tuple[Task, Batches]:
    loaded = dataset.load(settings)
    train, wanted = loaded.splits["train"], STEPS_PER_EPOCH * settings.train.batch_size
    if len(train) < wanted:
        raise UsageError(f"parity needs {wanted} training examples, {len(train)} are there")
    return loaded.task, batching.training(
        train.first(wanted), settings.train, settings.runtime.seed
    )


def _stock(
    task: Task, settings: config.Config, batches: Batches, optimizer: str
) -> list[np.ndarray]:
    """Weights before and after Keras's own `fit` on one device, without our `train_step.py`."""
    keras.utils.set_random_seed(0)
    model = network(task, settings.model, settings.runtime.precision)
    model = keras.Model(model.inputs, model.outputs)
    _silence(model)
    before = model.get_weights()
    ready = [task.target(task.prepare(batch), batch["id"]) for batch in batches.dataset]
    inputs, y = (np.concatenate([parts[i].numpy() for parts in ready]) for i in (0, 1))
    pieces, loss = settings.train.accumulate, task.loss()
    kind, options = OPTIMIZERS[optimizer]
    chosen = kind(
        **options,
        global_clipnorm=settings.train.clip_norm,
        gradient_accumulation_steps=pieces if pieces > 1 else None,
    )
    vectors = [v for v in model.trainable_variables if len(v.shape) < 2]
    chosen.exclude_from_weight_decay(var_list=vectors)
    # `auto_scale_loss`: under float16 Keras wraps the optimizer, which is right on one device.
    model.compile(chosen, lambda y, outputs: loss(y, outputs), jit_compile=False)
    size = settings.train.batch_size // pieces
    model.fit(inputs, y, batch_size=size, shuffle=False, verbose=0)
    return [*before, *model.get_weights()]


def _variables(model: SteppedModel) -> list[keras.Variable]:
    return [variable for group in model.state.values() for variable in group]


def _silence(model: keras.Model) -> None:
    """Dropout off: stock Keras and this package draw other numbers."""
    for layer in model._flatten_layers():
        if isinstance(getattr(layer, "rate", None), float):
            layer.rate = 0.0


def _largest(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """Largest absolute difference of two states."""
    return max(float(np.max(np.abs(a - b), initial=0)) for a, b in zip(one, other, strict=True))


def _flat(state: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([tensor.ravel() for tensor in state])


def _distance(before: np.ndarray, one: np.ndarray, other: np.ndarray) -> float:
    """How far `one` is from `other`, as a share of how far training has moved `other`."""
    apart, moved = np.linalg.norm(one - other), np.linalg.norm(other - before)
    return float(apart / max(moved, 1e-30))


def main(arguments: list[str]) -> int:
    """The order in, a line per case out."""
    for result in run(json.loads(arguments[0])):
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    run_command(main)
