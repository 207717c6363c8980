"""Prints what `parity.run` measures for other networks, tasks and caches, as JSON."""

import json
import sys

import keras

from pipeline.config import command_line
from pipeline.runtime import environment
from pipeline.training.train_step import Step
from tests.support import parity
from tests.support.parity import Case

STEPS, BATCH_SIZE = 4, 8


def network(x):
    """A small network with every kind of state: dropout in a nested model,
    normalization.
    """
    x = keras.layers.Conv2D(4, 3, strides=2)(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Flatten()(keras.layers.ReLU()(x))
    inner = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Dropout(0.4)])
    return keras.layers.Dense(8, activation="relu")(inner(x))


def main():
    digits = command_line.recipe("digits").changed(
        model={"name": "tests.support.parity_cases.network"},
        train={"label_smoothing": 0.1, "ema": 0.9, "schedule": "cosine", "patience": 2},
    )
    environment.start(
        digits.changed(runtime={"precision": "float32", "replicas": 2}).runtime
    )

    def measure(recipe, case):
        (result,) = parity.run(recipe, [case], STEPS, BATCH_SIZE)
        return result.engines, result.stock, result.error

    tiny = command_line.recipe("digits").changed(model={"name": "tiny"})
    uncached = digits.changed(data={"cache": "none"})
    table = command_line.recipe("regression_linear")
    measured = {
        "uncached": measure(uncached, Case(1, "float32", 2, False)),
        "regression": measure(table, Case(2, "float32", 1, True)),
    }
    for replicas in (1, 2):
        for clip in (False, True):
            case = Case(replicas, "float32", 4, clip)
            (result,) = parity.run(tiny, [case], 16, 32)
            name = f"digits, {replicas}, {clip}"
            measured[name] = result.engines, result.stock, result.error
    forward_and_backward = Step._forward_and_backward

    def wrong(*arguments):
        measured, gradients = forward_and_backward(*arguments)
        return measured, [-gradient for gradient in gradients]

    Step._forward_and_backward = wrong
    measured["wrong"] = measure(table, Case(1, "float32", 1, False))
    print(json.dumps(measured))


if __name__ == "__main__":
    sys.exit(main())
