"""Folds: equal shares of each class, whole groups, and what is left untouched."""

import numpy as np
import pytest
from numbered_images import divide, numbers

from pipeline.data import folds
from pipeline.utils.errors import UsageError


def test_folds_are_even_and_keep_groups_together_whatever_the_order():
    generator = np.random.default_rng(0)
    labels = generator.choice(3, 1000, p=[0.9, 0.09, 0.01])
    keys = np.arange(1000) + 5
    fold = folds.assign(keys, labels, 4, seed=0)
    for part in (fold, *(fold[labels == label] for label in range(3))):
        counts = np.bincount(part, minlength=4)
        assert counts.max() - counts.min() <= 1
    order = generator.permutation(1000)
    np.testing.assert_array_equal(
        folds.assign(keys[order], labels[order], 4, seed=0), fold[order]
    )
    assert (folds.assign(keys, labels, 4, seed=1) != fold).any()
    keys = generator.integers(0, 100, 1000) ** 2 // 50
    fold = folds.assign(keys, labels, 4, seed=0)
    assert all(len(set(fold[keys == key])) == 1 for key in keys)
    np.testing.assert_array_equal(
        folds.assign(keys[order], labels[order], 4, seed=0), fold[order]
    )


def test_groups_of_one_class_each_are_spread_by_class():
    """Dealt at random, a fold would often get no group of the rare class."""
    groups = np.repeat(np.arange(40), 5)
    labels = (groups >= 30).astype(int)
    for seed in range(5):
        fold = folds.assign(groups, labels, 5, seed)
        for label, count in ((0, 30), (1, 10)):
            assert set(np.bincount(fold[labels == label])) == {count}


def test_too_few_examples_or_groups_are_named():
    with pytest.raises(UsageError, match="--data.folds 4.*3 examples"):
        folds.assign(np.arange(3), None, 4, 0)
    with pytest.raises(UsageError, match="--data.folds 4.*2 groups"):
        folds.assign(np.arange(10) % 2, None, 4, 0)


def test_a_fold_with_all_examples_of_all_classes_but_one_is_refused():
    labels = np.array([5, 5, 5, 5, 7])
    fold = np.array([0, 1, 2, 0, 1])
    with pytest.raises(UsageError, match="fold 2"):
        folds.require_two_classes(labels, fold, 3)
    folds.require_two_classes(np.append(labels, 7), np.append(fold, 2), 3)
    folds.require_two_classes(np.append(labels, 8), np.append(fold, 2), 3)


def test_each_example_is_tested_once_and_nothing_else_is_held_out():
    source = numbers(100)
    tested = []
    for fold in range(1, 6):
        splits, decisions = divide(source, folds=5, fold=fold, validation=0)
        assert [*splits] == ["train", "test"]
        train, test = (set(split.column("id").tolist()) for split in splits.values())
        assert not train & test and len(train | test) == 100
        counts = np.bincount(splits["test"].column("label"))
        assert set(counts) <= {6, 7}
        tested += test
    assert sorted(tested) == list(range(100))
    assert any("fold 5 of 5 for test (equal shares" in str(d) for d in decisions)
    splits, _ = divide(source, folds=5)
    assert {name: len(split) for name, split in splits.items()} == {"train": 100}


def test_splits_of_the_source_are_not_divided():
    source = numbers(60, validation=60, test=60)
    whole, _ = divide(source, folds=3)
    assert [len(split) for split in whole.values()] == [60, 60, 60]
    parts, _ = divide(source, folds=3, fold=2)
    assert [len(split) for split in parts.values()] == [40, 60, 20]
    assert set(parts["test"].column("id").tolist()) < set(
        whole["train"].column("id").tolist()
    )
    np.testing.assert_array_equal(
        parts["validation"].column("id").tolist(),
        whole["validation"].column("id").tolist(),
    )


def test_a_fold_may_hold_out_a_part_of_the_others_and_samples_are_equal():
    parts, _ = divide(numbers(200), folds=4, fold=1, validation=0.2)
    assert [*parts] == ["train", "validation", "test"] and len(parts["test"]) == 50
    assert 15 < len(parts["validation"]) < 45
    sampled = [
        {
            id
            for split in divide(numbers(200), limit=40, **options)[0].values()
            for id in split.column("id").tolist()
        }
        for options in ({"folds": 4}, {"folds": 4, "fold": 3, "validation": 0.2})
    ]
    assert sampled[0] == sampled[1] and len(sampled[0]) == 40
