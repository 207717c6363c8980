"""Tests whether two models differ, from their scores on test examples."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.evaluation.target_evaluation import Score

LEVEL = 0.05  # of significance
_DRAWS = 10_000
_MIN_DRAWS = 500
_AT_A_TIME = 1_000_000  # random numbers in memory
_NUMBERS = 100_000_000  # random numbers of a bootstrap, which take about a second


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of a metric between two models, second - first."""

    metric: str
    models: tuple[str, str]
    values: tuple[float, float]
    low: float
    """Lower end of the 95 % confidence interval, corrected for all pairs of
    models (Bonferroni): if it excludes 0, the models differ significantly.
    """
    high: float
    p: float
    """Probability of a difference at least as large if there were none, corrected for
    all pairs of models (Holm, 1979).
    """
    test: str
    direction: int
    """1 if higher is better, or -1 if lower is better."""

    @property
    def value(self) -> float:
        """The second value minus the first."""
        return self.values[1] - self.values[0]

    @property
    def is_significant(self) -> bool:
        """Whether the models differ at the level of 5 %."""
        return self.p < LEVEL

    @property
    def better(self) -> str | None:
        """The model that is significantly better; None if none is."""
        if not self.is_significant:
            return None
        return self.models[self.value * self.direction > 0]


def differences(
    scores: Mapping[str, Sequence[Mapping[str, Score]]], are_paired: bool
) -> list[Difference]:
    """The differences of all metrics between all pairs of models.

    Args:
        scores: Name of a model -> the scores of each of its runs, which differ in seed.
        are_paired: Whether all runs predicted the same examples, in the same order.
    """
    found = []
    metrics = next(iter(scores.values()))[0]
    for metric in metrics:
        pairs = []
        combinations = list(itertools.combinations(scores, 2))
        level = LEVEL / len(combinations)
        for models in combinations:
            first, second = ([run[metric] for run in scores[name]] for name in models)
            pairs.append(_difference(metric, models, first, second, are_paired, level))
        corrected = holm([pair.p for pair in pairs])
        for pair, p in zip(pairs, corrected, strict=True):
            found.append(dataclasses.replace(pair, p=p))
    return found


def _difference(
    metric: str,
    models: tuple[str, str],
    first: Sequence[Score],
    second: Sequence[Score],
    are_paired: bool,
    level: float,
) -> Difference:
    values = _mean(first), _mean(second)
    low, high, p = bootstrap(first, second, are_paired, level)
    test = "paired bootstrap" if are_paired else "bootstrap"
    if min(len(first), len(second)) > 1:
        p_runs = _welch(first, second)
        if p < level <= p_runs:  # the bootstrap of a few runs is too certain
            low, high = min(low, 0.0), max(high, 0.0)
        p = max(p, p_runs)
    is_single = len(first) == len(second) == 1
    if are_paired and is_single and _is_binary(first[0]) and _is_binary(second[0]):
        low, high, p = mcnemar(first[0].values, second[0].values, level)
        test = "McNemar's test"
    return Difference(metric, models, values, low, high, p, test, first[0].direction)


def _welch(first: Sequence[Score], second: Sequence[Score]) -> float:
    """The p-value of Welch's t-test of the metric of runs; 0 if all of a model are
    equal.
    """
    from scipy import stats

    means = [[_mean([run]) for run in runs] for runs in (first, second)]
    if not any(np.ptp(values) for values in means):
        return 0.0
    return float(stats.ttest_ind(*means, equal_var=False).pvalue)


def _mean(runs: Sequence[Score]) -> float:
    """The mean of a metric over the runs of a model."""
    return float(np.mean([run.values.sum() / run.weights.sum() for run in runs]))


def _is_binary(score: Score) -> bool:
    return bool(np.isin(score.values, (0, 1)).all() and (score.weights == 1).all())


def mcnemar(
    first: np.ndarray, second: np.ndarray, level: float = LEVEL
) -> tuple[float, float, float]:
    """The confidence interval of the difference of two accuracies (1: correct), and the
    p-value of the exact test of McNemar.

    McNemar, "Note on the sampling error of the difference between correlated
    proportions or percentages", Psychometrika 1947, with the binomial distribution. The
    interval is that of Clopper and Pearson, Biometrika 1934, for the predictions that
    differ, so that it excludes 0 exactly if the p-value is below `level`.
    """
    from scipy import stats

    gained = int(((first == 0) & (second == 1)).sum())
    lost = int(((first == 1) & (second == 0)).sum())
    total = gained + lost
    if total == 0:
        return 0.0, 0.0, 1.0
    test = stats.binomtest(gained, total)
    low, high = test.proportion_ci(1 - level)
    scale = total / len(first)
    return (2 * low - 1) * scale, (2 * high - 1) * scale, float(test.pvalue)


def bootstrap(
    first: Sequence[Score],
    second: Sequence[Score],
    are_paired: bool,
    level: float = LEVEL,
) -> tuple[float, float, float]:
    """The interval of the difference of a metric, and its p-value.

    Examples are drawn with replacement, the same for both models if they are paired;
    and so are the runs of a model that has several. Efron and Tibshirani, "An
    Introduction to the Bootstrap", 1993.
    """
    generator = np.random.default_rng(0)
    sizes = len(first[0].values), len(second[0].values)
    draws = int(np.clip(_NUMBERS // max(sizes), _MIN_DRAWS, _DRAWS))
    rows = max(1, _AT_A_TIME // max(sizes))
    parts = []
    for start in range(0, draws, rows):
        count = min(rows, draws - start)
        drawn = generator.integers(sizes[0], size=(count, sizes[0]))
        before = _drawn(generator, first, drawn)
        if not are_paired:
            drawn = generator.integers(sizes[1], size=(count, sizes[1]))
        parts.append(_drawn(generator, second, drawn) - before)
    values = np.concatenate(parts)
    if np.isnan(values).all():
        return float("nan"), float("nan"), 1.0
    low, high = np.nanquantile(values, (level / 2, 1 - level / 2))
    below = (np.count_nonzero(values <= 0) + 1) / (draws + 1)
    above = (np.count_nonzero(values >= 0) + 1) / (draws + 1)
    # That all of n examples differ in the same direction has this probability if
    # either direction is as likely; the bootstrap of a single one would be certain.
    least = 2.0 ** (1 - min(sizes))
    if least >= level:  # the examples are too few
        low, high = min(low, 0.0), max(high, 0.0)
    return float(low), float(high), float(min(1.0, max(least, 2 * min(below, above))))


def _drawn(
    generator: np.random.Generator, runs: Sequence[Score], drawn: np.ndarray
) -> np.ndarray:
    """The mean metric of drawn runs on drawn examples: (draws, examples) -> (draws,)"""
    ratios = []
    for run in runs:
        weights = np.maximum(run.weights[drawn].sum(axis=1), 1e-12)
        ratios.append(run.values[drawn].sum(axis=1) / weights)
    chosen = generator.integers(len(runs), size=(len(drawn), len(runs)))
    return np.take_along_axis(np.stack(ratios, axis=1), chosen, axis=1).mean(axis=1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p-values of several tests; Holm, "A simple sequentially rejective
    multiple test procedure", Scandinavian Journal of Statistics 1979.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = largest
    return corrected
