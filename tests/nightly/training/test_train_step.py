"""The step against independent references: stock Keras, NumPy, finite differences."""

import numpy as np
import pytest
import tensorflow as tf
from toy_problem import random_split, ready, settings_of

from pipeline.config import registry
from pipeline.data import batching


@pytest.mark.filterwarnings("ignore:Even though the `tf.config")
@pytest.mark.parametrize(
    ("engine", "accumulate"), [("model_fit", 1), ("gradient_tape", 2)]
)
def test_functions_may_run_eagerly(engine, accumulate):
    """`tf.config.run_functions_eagerly`, for debugging: the same weights,
    with dropout.
    """
    train = {"steps": 3, "steps_per_execution": 2, "accumulate": accumulate}
    settings, split = (
        settings_of(model={"name": "sequential"}, train=train),
        random_split(24),
    )
    weights = []
    for is_eager in (False, True):
        model, batches = ready(settings, split)
        tf.config.run_functions_eagerly(is_eager)
        try:
            evaluation = batching.evaluation(split, settings.train)
            registry.load("engines", engine)(model, batches, evaluation, [])
        finally:
            tf.config.run_functions_eagerly(False)
        weights.append(model.get_weights())
    for compiled, eager in zip(*weights, strict=True):
        np.testing.assert_allclose(eager, compiled, atol=1e-6)
