"""The same few steps in every way this package can take them, against stock Keras on one device.

Runs as a process of its own for each number of replicas, started by `doctor`: a failed collective
spoils all that come after it in a process. Reads its order as JSON from the command line and
writes a JSON line per case.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from pipeline import command_line, config, runtime, shelf, stream
from pipeline.build import SteppedModel, build, network
from pipeline.contracts import Batches, Task
from pipeline.errors import UsageError

STEPS = 16
# 11 steps an epoch: calls of 8 steps then end at 8, 11 and 16.
STEPS_PER_EPOCH = 11
CALLS = (1, 8)
RATE, MOMENTUM = 0.05, 0.9
CLIP_NORM = 0.5


def settings_of(order: dict[str, Any], case: dict[str, Any]) -> config.Config:
    """The recipe's data, task and network; SGD, whose differences do not grow by themselves."""
    recipe = command_line.recipe(order["recipe"])
    train = {
        **{"batch_size": order["batch_size"], "epochs": -(-STEPS // STEPS_PER_EPOCH)},
        **{"steps": STEPS, "accumulate": case["accumulate"], "patience": None},
        **{"optimizer": "sgd", "optimizer_options": {"momentum": MOMENTUM}},
        **{"schedule": "constant", "schedule_options": {}, "learning_rate": RATE},
        "clip_norm": CLIP_NORM if case["clip"] else None,
    }
    return recipe.changed(
        train=train,
        model=order.get("model", {}),
        data={"augment": {}, "limit": 4 * STEPS_PER_EPOCH * order["batch_size"]},
        runtime={"precision": case["precision"], "replicas": order["replicas"]},
    )


def run(order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Results of the order's cases, one by one.

    The first process to come to a case leaves its start and its reference in the order's folder.
    """
    started = runtime.start(settings_of(order, order["cases"][0]).runtime)
    for case in order["cases"]:
        settings = settings_of(order, case)
        machine = runtime.Runtime(case["precision"], False, started.strategy, ())
        task, batches = _data(settings)
        path = Path(order["folder"], f"{case['precision']}-{case['accumulate']}-{case['clip']}.npz")
        if not path.exists():
            np.savez(path, *_stock(task, settings, batches))
        held = list(np.load(path).values())
        before, reference = held[: len(held) // 2], held[len(held) // 2 :]
        ends = {}
        for engine in shelf.names("engines"):
            model = build(task, settings, machine, batches)
            _silence(model)
            model.set_weights(before)
            start = [variable.numpy() for variable in _variables(model)]
            for calls in CALLS:
                for variable, value in zip(_variables(model), start, strict=True):
                    variable.assign(value)
                model.steps_per_execution = calls
                with machine.strategy.scope():
                    shelf.take("engines", engine)(model, batches, None, [])
                ends[engine, calls] = [variable.numpy() for variable in _variables(model)]
        first, *others = ends.values()
        learned = len(model.trainable_variables)
        shared = machine.replicas == 1 or not _normalises(model)
        yield {
            **case,
            "replicas": machine.replicas,
            "apart": max(_largest(first, other) for other in others),
            "reference": _relative(model, first, reference) if shared else None,
            "learned": learned,
        }


def _data(settings: config.Config) -> tuple[Task, Batches]:
    source = shelf.take("sources", settings.source.name)(**settings.source.options())
    facts = shelf.take("tasks", settings.task, "facts")(source.info, **settings.data.task_options())
    task = shelf.take("tasks", settings.task)(facts)
    splits, _ = stream.load(source, task, settings.data, {})
    train, wanted = splits["train"], STEPS_PER_EPOCH * settings.train.batch_size
    if len(train) < wanted:
        raise UsageError(f"parity needs {wanted} training examples, {len(train)} are there")
    train = stream.Split(train.columns, train.rows[:wanted])
    task = shelf.take("tasks", settings.task)({**facts, **task.learn(train.column)})
    return task, stream.training(train, settings.train, settings.runtime.seed)


def _stock(task: Task, settings: config.Config, batches: Batches) -> list[np.ndarray]:
    """Weights before and after Keras's own `fit` on one device; nothing of `step.py` is used."""
    keras.utils.set_random_seed(0)
    model = network(task, settings.model, settings.runtime.precision)
    model = keras.Model(model.inputs, model.outputs)
    _silence(model)
    before = model.get_weights()
    ready = [task.target(task.prepare(batch), batch["id"]) for batch in batches.dataset]
    inputs, y = (np.concatenate([parts[i].numpy() for parts in ready]) for i in (0, 1))
    pieces, loss = settings.train.accumulate, task.loss()
    optimizer = keras.optimizers.SGD(
        RATE,
        momentum=MOMENTUM,
        global_clipnorm=settings.train.clip_norm,
        gradient_accumulation_steps=pieces if pieces > 1 else None,
    )
    # `auto_scale_loss`: under float16 Keras wraps the optimizer, which is right on one device.
    model.compile(optimizer, lambda y, outputs: loss(y, outputs), jit_compile=False)
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


def _normalises(model: keras.Model) -> bool:
    """Whether examples of a batch act on each other, so that each replica's part counts."""
    kinds = (keras.layers.BatchNormalization,)
    return any(isinstance(layer, kinds) for layer in model._flatten_layers())


def _largest(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """Largest absolute difference of two states."""
    return max(float(np.max(np.abs(a - b), initial=0)) for a, b in zip(one, other, strict=True))


def _relative(model: SteppedModel, state: list[np.ndarray], reference: list[np.ndarray]) -> float:
    """Largest difference of a weight, relative to the largest weight of its tensor."""
    worst = 0.0
    for variable, a, b in zip(model.variables, state, reference, strict=False):
        if variable.trainable:
            worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)))
    return worst


if __name__ == "__main__":
    for result in run(json.loads(sys.argv[1])):
        print(json.dumps(result), flush=True)
