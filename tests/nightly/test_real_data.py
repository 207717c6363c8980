"""Real data sets, prepared by TensorFlow Datasets in $TFDS_DATA_DIR.

TFDS_DATA_DIR=... python -m pytest -m long tests/nightly/test_real_data.py
"""

import os
from pathlib import Path

import numpy as np
import pytest

from pipeline.config import registry
from pipeline.fit import fit

pytestmark = pytest.mark.skipif(
    "TFDS_DATA_DIR" not in os.environ,
    reason="set TFDS_DATA_DIR to a folder of data sets that TFDS has prepared",
)

CROP_FLIP_COSINE = {
    "data": {"augment": {"flip": {}, "crop": {"padding": 4}}},
    "train": {"schedule": "cosine", "learning_rate": 0.01},
}


@pytest.mark.parametrize(
    ("recipe", "changes", "accuracy"),
    [
        ("cifar10_convnet", {}, 0.60),
        ("cifar10_sequential", {}, 0.60),
        ("fashion_mnist_lenet", {}, 0.865),
        ("cifar10_convnet", CROP_FLIP_COSINE, 0.70),
    ],
)
def test_full_recipes_reach_their_accuracy(workplace, recipe, changes, accuracy):
    run = fit(recipe, **changes)
    assert run.test["accuracy"] >= accuracy
    assert run.export == Path("saved_models") / recipe / "1"


def test_cifar10_is_read_as_published():
    source = registry.load("sources", "tfds")(dataset="cifar10")
    assert source.info.splits == {"train": 50_000, "test": 10_000}
    assert source.info.class_names[0] == "airplane"
    rows = list(source.examples("test").as_numpy_iterator())
    labels = np.array([row["label"] for row in rows])
    np.testing.assert_array_equal(np.bincount(labels), [1000] * 10)
    assert len({int(row["id"]) for row in rows}) == 10_000
