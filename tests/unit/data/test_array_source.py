"""Examples of arrays are read one by one or together, also from memory maps."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.data.array_source import ArraySource
from pipeline.data.arrays import examples

N = 60
GENERATOR = np.random.default_rng(0)
CLASSES = np.arange(N) % 3


def normal(*shape):
    return GENERATOR.normal(size=(N, *shape))


def test_memory_maps_of_long_rows_stay_on_disk(tmp_path):
    np.save(tmp_path / "x.npy", normal(4, 3).astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    columns = examples("train", mapped, CLASSES).columns
    assert isinstance(columns["features"], np.memmap)
    source = ArraySource(columns)
    read = source.reader("train")(tf.constant(7))["features"]
    np.testing.assert_array_equal(read, mapped[7])


@pytest.mark.parametrize("is_mapped", [False, True])
def test_examples_are_the_same_alone_and_in_a_dataset(tmp_path, is_mapped):
    np.save(tmp_path / "x.npy", normal(4, 3).astype(np.float32))
    x = np.load(tmp_path / "x.npy", mmap_mode="r" if is_mapped else None)
    source = ArraySource({"features": x, "name": np.array(["é"] * N)})
    alone = source.reader("train")(tf.constant(7))
    together = next(iter(source.examples("train").skip(7)))
    assert set(alone) == set(together) == {"id", "features", "name"}
    for name, value in alone.items():
        assert value.dtype == together[name].dtype
        np.testing.assert_array_equal(value, together[name])


def test_parts_of_memory_maps_are_read_as_they_are(tmp_path):
    np.save(tmp_path / "x.npy", normal(9, 9, 3).astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for part in (mapped[20:40], mapped[:20], mapped[::-1], mapped.astype(float)):
        columns = examples("train", part, np.arange(len(part))).columns
        read = ArraySource(columns).reader("train")(tf.constant(7))["image"]
        np.testing.assert_array_equal(read, part[7])
