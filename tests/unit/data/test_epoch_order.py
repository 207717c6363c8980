"""The order of an epoch: a permutation that depends on the seed and the epoch alone."""

import contextlib
import zlib

import numbered_images
import numpy as np
import pytest
from toy_problem import random_split, settings_of

from pipeline.data import batching, epoch_order
from pipeline.data.epoch_order import EpochOrder
from pipeline.training import trainer
from pipeline.utils.errors import UsageError


def test_it_sorts_the_numbers_of_philox():
    """NumPy promises that the stream of a bit generator never changes (NEP 19)."""
    order = EpochOrder(1000, seed=7)
    generator = np.random.Philox(key=np.array([7, 3], np.uint64))
    draws = generator.random_raw(1000) & 0xFFFFFFFF
    expected = sorted(range(1000), key=lambda position: draws[position])
    assert order.positions(3, 0, 1000).tolist() == expected
    assert order.positions(3, 990, 1000).tolist() == expected[990:]
    first = [859, 528, 149, 281, 831]
    assert EpochOrder(1000, seed=0).positions(0, 0, 5).tolist() == first


@pytest.mark.parametrize("seed", [-1, 0, 2**63])
def test_any_seed_and_epoch_gives_another_permutation(seed):
    order = EpochOrder(500, seed)
    epochs = [tuple(order.positions(epoch, 0, 500)) for epoch in range(3)]
    assert len({*epochs, tuple(EpochOrder(500, seed + 1).positions(0, 0, 500))}) == 4
    assert all(sorted(epoch) == list(range(500)) for epoch in epochs)


def test_many_examples_are_shuffled_in_blocks(monkeypatch):
    monkeypatch.setattr(epoch_order, "BLOCK", 64)
    monkeypatch.setattr(epoch_order, "MAX_COUNT", 128)
    assert not EpochOrder(128, 0).is_blockwise
    order = EpochOrder(1000, 0)
    assert order.is_blockwise
    whole = order.positions(5, 0, 1000)
    assert sorted(whole) == list(range(1000))
    blocks = whole // 64
    assert len(np.flatnonzero(np.diff(blocks))) == 15, "each block is read at once"
    assert not np.array_equal(
        np.unique(blocks), blocks[np.diff(blocks, prepend=-1) != 0]
    )
    for first, last in ((0, 1), (63, 65), (100, 777), (999, 1000)):
        part = EpochOrder(1000, 0).positions(5, first, last)
        np.testing.assert_array_equal(part, whole[first:last])
    assert not np.array_equal(whole, order.positions(6, 0, 1000))


def test_the_checksum_is_that_of_the_order():
    order = EpochOrder(100, 0)
    positions = order.positions(2, 0, 100)
    assert order.checksum(2) == zlib.crc32(positions.tobytes())
    assert len({order.checksum(epoch) for epoch in range(5)}) == 5


def test_shuffling_in_blocks_is_said(monkeypatch):
    monkeypatch.setattr(epoch_order, "MAX_COUNT", 50)
    _, decisions = numbered_images.load(numbered_images.Counting(90))
    (decision,) = [decision for decision in decisions if decision.name == "order"]
    assert str(decision).startswith("in blocks (blocks of 16,777,216 examples are")


@pytest.mark.parametrize(
    ("step", "seed", "message"),
    [
        (0, 0, None),
        (0, 1, "the workers order the examples differently"),
        (2, 0, "--run-directory .*that all workers share"),
    ],
)
def test_workers_begin_at_the_same_step_in_the_same_order(
    monkeypatch, step, seed, message
):
    options = settings_of(train={"epochs": 2}).train
    batches = batching.training(random_split(), options, seed=0)
    second = batching.training(random_split(), options, seed=seed)
    values = iter([step, second.order_checksum(0)])
    monkeypatch.setattr(
        trainer.distributed,
        "mean_over_workers",
        lambda value: (value + next(values)) / 2,
    )
    expected = contextlib.nullcontext()
    if message:
        expected = pytest.raises(UsageError, match=message)
    with expected:
        trainer._require_same_start(batches)
