"""The same few steps in every way this package can take them, against stock Keras on one device.

Runs as a process of its own for each number of replicas, started by `doctor`: a failed collective
spoils all that come after it in a process. Reads its order as JSON from the command line and
writes a JSON line per case.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

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
State = list[np.ndarray]


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
    """Results of the order's cases; the reference of each lies in, or goes to, its folder."""
    first = settings_of(order, order["cases"][0])
    machine = runtime.start(first.runtime)
    task, batches = _data(first, order["batch_size"])
    for case in order["cases"]:
        settings = settings_of(order, case)
        keras.utils.set_random_seed(0)
        machine = runtime.Runtime(case["precision"], False, machine.strategy, ())
        path = Path(order["folder"], f"{case['precision']}-{case['accumulate']}-{case['clip']}.npz")
        if not path.exists():
            before = [v.numpy() for v in network(task, settings.model, "float32").variables]
            np.savez(path, *before, *_stock(task, settings, batches, before))
        held = list(np.load(path).values())
        before, reference = held[: len(held) // 2], held[len(held) // 2 :]
        outcomes = {}
        for engine in shelf.names("engines"):
            model = build(task, settings, machine, batches)
            _quiet(model)
            for calls in CALLS:
                outcomes[engine, calls] = _trained(model, engine, calls, batches, before, machine)
        weights = {key: state[: len(before)] for key, state in outcomes.items()}
        comparable = machine.replicas == 1 or not _normalises(model)
        yield {
            **case,
            "replicas": machine.replicas,
            "engines": max(
                _apart(outcomes["model_fit", k], outcomes["gradient_tape", k]) for k in CALLS
            ),
            "calls": max(
                _apart(outcomes[e, CALLS[0]], outcomes[e, CALLS[1]]) for e in shelf.names("engines")
            ),
            "reference": max(_relative(w, reference) for w in weights.values())
            if comparable
            else None,
        }


def _data(settings: config.Config, batch_size: int) -> tuple[Task, Batches]:
    source = shelf.take("sources", settings.source.name)(**settings.source.options())
    facts = shelf.take("tasks", settings.task, "facts")(
        source.info, **settings.data.task_options()
    )
    task = shelf.take("tasks", settings.task)(facts)
    splits, _ = stream.load(source, task, settings.data, {})
    train, wanted = splits["train"], STEPS_PER_EPOCH * batch_size
    if len(train) < wanted:
        raise UsageError(f"parity needs {wanted} training examples, {len(train)} are there")
    train = stream.Split(train.columns, train.rows[:wanted])
    return task, stream.training(train, settings.train, settings.runtime.seed)


def _trained(
    model: SteppedModel,
    engine: str,
    calls: int,
    batches: Batches,
    before: State,
    machine: runtime.Runtime,
) -> State:
    """Weights, then optimizer state, after all steps from the weights `before`."""
    optimizer, update = model.optimizer.variables, model.step.update.variables
    start = [np.zeros(v.shape, v.dtype) for v in optimizer]
    start[1] = np.float32(RATE) if start[1].dtype == np.float32 else start[1]
    for variable, value in zip(model.variables, before, strict=True):
        variable.assign(value)
    return []


def _stock(task: Task, settings: config.Config, batches: Batches, before: State) -> State:
    """What Keras's own `fit` on one device makes of the same batches; nothing of `step.py`."""
    return []


if __name__ == "__main__":
    for result in run(json.loads(sys.argv[1])):
        print(json.dumps(result), flush=True)
