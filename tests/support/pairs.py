"""Examples for each input and target, under names of fields that say nothing."""

import keras
import numpy as np

from pipeline.config import registry

CLASSES = ("a", "b", "c")


def _images(generator, count):
    return generator.integers(0, 256, (count, 8, 8, 1)).astype(np.uint8)


def _features(generator, count):
    return generator.normal(size=(count, 6)).astype(np.float32)


def _classes(generator, count):
    return np.arange(count) % len(CLASSES)


def _labels(generator, count):
    return generator.integers(0, 2, (count, len(CLASSES))).astype(np.uint8)


def _numbers(generator, count):
    return generator.normal(size=count).astype(np.float32)


def _masks(generator, count):
    return generator.integers(0, len(CLASSES), (count, 8, 8)).astype(np.uint8)


_INPUTS = {"image": _images, "features": _features}
_TARGETS = {
    "classes": _classes,
    "labels": _labels,
    "number": _numbers,
    "mask": _masks,
}


def examples_of(input, target, count):
    """Columns x and y of an input and a target, and the names of the classes."""
    generator = np.random.default_rng(0)
    x = _INPUTS[input](generator, count)
    y = _TARGETS[target](generator, count)
    return {"id": np.arange(count), "x": x, "y": y}, CLASSES


def task_of(info, input, target):
    """The task for the fields x and y."""
    parts = {
        "input": input,
        "input_options": {"field": "x"},
        "target": target,
        "target_options": {"field": "y"},
    }
    return registry.load("tasks", "supervised")(info, parts)


def model_of(inputs, task):
    """Features that suit the target: a vector, or a map for a mask."""
    if task.output is not None and len(task.output.shape) > 1:
        return keras.layers.Conv2D(4, 3, padding="same")(inputs)
    return keras.layers.Flatten()(inputs)
