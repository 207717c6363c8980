"""An epoch of 8 steps of 8 examples on the small problem, trained by an engine."""

import numpy as np
from toy_problem import TASK, machine, random_split, settings_of

from pipeline.config import registry
from pipeline.data import batching
from pipeline.training.model_builder import build

STEPS, BATCH = 8, 8


def prepared(precision="float32", model="tiny", xla=False, **train):
    """(model, batches) of an epoch of 8 steps."""
    settings = settings_of(model={"name": model}, train=train)
    batches = batching.training(random_split(STEPS * BATCH), settings.train, 0)
    weights = settings.train.class_weight
    model = build(
        TASK, settings, machine(precision, xla=xla), batches, class_weight=weights
    )
    return model, batches


def trained(
    precision="float32", calls=3, engine="gradient_tape", callbacks=(), **train
):
    """(model, batches) after training, with `calls` steps in one call."""
    model, batches = prepared(precision, **train)
    model.steps_per_execution = calls
    registry.load("engines", engine)(model, batches, None, list(callbacks))
    return model, batches


def require_equal(one, other):
    """Two lists hold the same arrays."""
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)
