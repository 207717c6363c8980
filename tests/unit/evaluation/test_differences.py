"""Tests of differences between two models, beside computations by hand."""

import itertools

import numpy as np
import pytest

from pipeline.evaluation import differences
from pipeline.evaluation.target_evaluation import Score


def test_mcnemar_is_a_binomial_test_of_the_answers_that_differ():
    first = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    second = np.array([1, 1, 1, 0, 1, 1, 1, 1, 1, 0])
    # 5 gained, 1 lost: 2 * (C(6, 0) + C(6, 1)) / 2**6
    for pair, sign in (((first, second), 1), ((second, first), -1)):
        low, high, p = differences.mcnemar(*pair)
        assert p == pytest.approx(2 * 7 / 64)
        # The bounds of Clopper and Pearson for 5 of 6, of a table: 0.3588 and 0.9958
        bounds = sorted(sign * 0.6 * (2 * share - 1) for share in (0.3588, 0.9958))
        assert [low, high] == pytest.approx(bounds, abs=1e-4)
    assert differences.mcnemar(first, first) == (0, 0, 1)


@pytest.mark.parametrize("kind", ["shares", "means", "few"])
def test_an_interval_excludes_zero_exactly_if_a_difference_is_significant(kind):
    generator = np.random.default_rng(3)
    found = []
    for shift in np.linspace(0, 0.2, 6):
        size = 4 if kind == "few" else 300
        values = generator.uniform(size=(3, size))
        if kind == "shares":
            values = values < np.array([[0.6], [0.6 + shift], [0.6]])
        else:
            values[1] += shift if kind == "means" else 2.0
        scores = {
            name: [{"metric": Score.mean(row, 1)}]
            for name, row in zip("abc", values, strict=True)
        }
        found += differences.differences(scores, are_paired=True)
    outside = [item.low > 0 or item.high < 0 for item in found]
    # Holm's correction is less strict than Bonferroni's, that of the intervals.
    for item, is_outside in zip(found, outside, strict=True):
        assert item.is_significant or not is_outside
    assert any(outside) == (kind != "few") and not all(outside)


def test_the_bootstrap_interval_is_that_of_all_resamples(monkeypatch):
    first = np.array([0.1, 0.9, 0.4, 0.8])
    second = np.array([0.3, 0.7, 0.9, 0.9])
    every = [
        (second - first)[list(drawn)].mean()
        for drawn in itertools.product(range(4), repeat=4)
    ]
    low, high, p = differences.bootstrap(
        [Score.mean(first, 1)], [Score.mean(second, 1)], are_paired=True
    )
    assert low == pytest.approx(np.quantile(every, 0.025), abs=0.02)
    assert high == pytest.approx(np.quantile(every, 0.975), abs=0.02)
    assert p == pytest.approx(2 * np.mean(np.array(every) <= 0), abs=0.02)


def test_pairing_finds_a_difference_that_is_smaller_than_the_spread():
    generator = np.random.default_rng(1)
    difficulty = generator.normal(0, 1, 200)
    first = [Score.mean(difficulty, -1)]
    second = [Score.mean(difficulty - 0.05 + generator.normal(0, 0.01, 200), -1)]
    *_, paired = differences.bootstrap(first, second, are_paired=True)
    *_, unpaired = differences.bootstrap(first, second, are_paired=False)
    assert paired < 0.001 < 0.3 < unpaired


def test_few_seeds_that_differ_are_no_evidence():
    """Two of each model: the spread of the seeds explains the difference."""
    generator = np.random.default_rng(5)
    scores = {
        name: [
            {"accuracy": Score.mean(generator.uniform(size=3000) < share, 1)}
            for share in shares
        ]
        for name, shares in (("a", (0.80, 0.83)), ("b", (0.84, 0.87)))
    }
    (found,) = differences.differences(scores, are_paired=True)
    assert not found.is_significant and found.low <= 0 <= found.high
    unknown = {"a": [{"loss": Score.mean(np.full(9, np.nan), -1)}]}
    unknown["b"] = [{"loss": Score.mean(np.ones(9), -1)}]
    (found,) = differences.differences(unknown, are_paired=True)
    assert not found.is_significant


def test_seeds_that_disagree_are_no_evidence():
    right = np.arange(1000) < 900
    wrong = np.arange(1000) < 700
    scores = {
        "a": [{"accuracy": Score.mean(values, 1)} for values in (right, wrong)],
        "b": [{"accuracy": Score.mean(values, 1)} for values in (wrong, right[::-1])],
    }
    (found,) = differences.differences(scores, are_paired=True)
    assert found.values == (0.8, 0.8) and found.better is None
    assert found.test == "paired bootstrap"
    scores["b"] = scores["b"][:1]
    (found,) = differences.differences(scores, are_paired=True)
    assert found.low < 0 and found.high == 0 and not found.is_significant


@pytest.mark.parametrize(("examples", "least"), [(1, 1), (2, 0.5), (5, 1 / 16)])
def test_a_few_examples_are_no_evidence(examples, least):
    first, second = [Score.mean(np.zeros(examples), 1)], [Score.mean([1] * examples, 1)]
    for are_paired in (True, False):
        assert differences.bootstrap(first, second, are_paired)[2] == least


def test_a_ratio_of_sums_is_compared_as_one():
    words = np.array([1.0, 1.0, 8.0, 10.0])
    few, many = np.array([1.0, 0, 0, 0]), np.array([0, 0, 4.0, 5.0])
    scores = {
        "a": [{"word_error_rate": Score(few, words, -1)}],
        "b": [{"word_error_rate": Score(many, words, -1)}],
    }
    (found,) = differences.differences(scores, are_paired=True)
    assert found.values == (1 / 20, 9 / 20)
    assert found.direction == -1 and found.value == pytest.approx(0.4)


def test_holm_multiplies_the_smallest_value_by_the_number_of_tests():
    assert differences.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert differences.holm([0.6, 0.9]) == [1, 1]
