"""Finds labels that are probably wrong: confident learning on out-of-fold predictions.

Northcutt, Jiang, Chuang, "Confident learning: estimating uncertainty in dataset
labels", Journal of Artificial Intelligence Research 2021, implemented by the package
cleanlab. Its list is truncated where the precision would fall below one half: with a
model of 50% accuracy, cleanlab lists 4,000 of 12,000 labels, but only 40% of these are
wrong (benchmarks/README.md).
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.config import Config
from pipeline.contracts import Source
from pipeline.data import batching, dataset, seeds
from pipeline.data.cleaning import manifest
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError

# Expected precision of the list; with weak models, the actual precision is about one
# half.
_PRECISION = 0.6
# The one in this many examples with the lowest probability of a class surely do not
# belong to it.
_SURELY_NOT = 20
Answers = dict[str, np.ndarray]


def rank(
    labels: np.ndarray, probabilities: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The order in which to review labels, and which of them are listed.

    Among the examples that are least likely to be of class i, a label i is a mistake.
    The fraction of labels i among them estimates the rate r of such mistakes; a label
    with probability p > r is then wrong with a probability of about r / p.

    Takes labels, int64 (examples,), and the probability of each class, float (examples,
    classes), by models that were not trained on these examples. Returns the positions
    in order, int64 (examples,): first the labels that confident learning rejects, then
    all others, each part sorted by the probability of the label, lowest first. And for
    each position whether it is listed, bool (examples,): as many of the rejected
    labels, from the first on, as keeps the expected precision at 0.6 or more.
    """
    from cleanlab.filter import find_label_issues

    count, classes = probabilities.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about classes with few examples
        wrong = find_label_issues(labels, probabilities, filter_by="both", n_jobs=1)
    own = probabilities[np.arange(count), labels]
    order = np.lexsort((own, ~wrong))
    surely_not = max(1, count // _SURELY_NOT)
    lowest = np.argpartition(probabilities, surely_not - 1, axis=0)[:surely_not]
    mistakes = (labels[lowest] == np.arange(classes)).sum() / surely_not
    # Estimated over all classes, because a single class has too few examples.
    rate = mistakes * np.bincount(labels, minlength=classes)[labels] / count
    expected = (rate / np.maximum(own, np.maximum(rate, 1e-9)))[order]
    precision = np.cumsum(expected) / np.arange(1, count + 1)
    good = np.flatnonzero(wrong[order] & (precision >= _PRECISION))
    listed = np.zeros(count, bool)
    listed[order[: good[-1] + 1 if len(good) else 0]] = True
    return order, listed


def assign_folds(labels: np.ndarray, units: np.ndarray, folds: int) -> np.ndarray:
    """The fold of each example, 0 ... folds - 1, int64 (examples,).

    Depends on labels and units, both int64 (examples,), not on the order of the
    examples. Each class is spread evenly; the examples of a unit stay in one fold.
    """
    order = np.lexsort((labels, units))
    names, first = np.unique(units[order], return_index=True)
    label = labels[order][first]
    place = seeds.uniform(seeds.example_seeds(0, label, names)).numpy()
    fold = np.empty(len(names), np.int64)
    fold[np.lexsort((place, label))] = np.arange(len(names)) % folds
    return fold[np.searchsorted(names, units)]


def out_of_fold(
    config: Config,
    source: Source,
    entries: Sequence[manifest.Entry],
    folds: int,
    folder: Path,
    *,
    fit: Callable[..., Any],
) -> Answers:
    """Predictions for all examples of all splits, by models that were not trained on
    them.

    For each of at least 2 folds, `fit` trains the config, without its directory, on the
    others, in FOLDER/folds/N-of-FOLDS; complete runs are not repeated. Examples that
    `entries` drops are excluded, and near duplicates stay in one fold.

    Returns `id` and `truth` (the label), int64 (examples,), and `probabilities`,
    float32 (examples, classes). Raises UsageError if a class has too few examples, or
    the task does not return probabilities.
    """
    # Leakage does not stop the folds, because both copies are in the same fold.
    entries = manifest.replace_stop(entries, "keep")
    if config.clean.manifest is not None:
        entries += manifest.replace_stop(manifest.read(config.clean.manifest), "keep")
    uncached = config.changed(
        data={"cache": "none"}
    )  # each example is decoded only once
    task = dataset.create_task(config, source.info)
    excluded = manifest.excluded_ids(entries)
    splits = list(batching.load(source, task, uncached, excluded)[0].values())
    ids = np.concatenate([split.column("id") for split in splits])
    labels = np.concatenate([split.column("label") for split in splits])
    units = _units(ids, splits, entries)
    _require_enough(labels, units, source.info.class_names or (), folds)
    again = (
        f"the same command with --clean.directory {folder} continues after an"
        " interruption"
    )
    say("folds", f"{folds}, each predicted by a model trained on the others; {again}")
    fold, answers = assign_folds(labels, units, folds), []
    for number in range(folds):
        run = folder / "folds" / f"{number + 1}-of-{folds}"
        held_out = ids[fold == number]
        answers.append(_judged(config, splits, entries, held_out, run, fit))
        text = f"accuracy {_accuracy(answers[-1]):.4f} on {len(held_out):,} examples"
        say("fold", f"{number + 1} of {folds}: {text}")
    return {
        name: np.concatenate([some[name] for some in answers]) for name in answers[0]
    }


def suspicious(answers: Answers, names: Sequence[str]) -> dict[int, str]:
    """Id -> the models' predictions in words, for labels that are probably wrong, the
    worst first.

    Takes the result of `out_of_fold`; prints the accuracy of the models and what it
    means for the list.
    """
    labels, probabilities = answers["truth"].astype(np.int64), answers["probabilities"]
    count, right = len(labels), _accuracy(answers)
    usual = np.bincount(labels).max() / count
    say(
        "accuracy",
        f"{right:.4f} out of fold; always predicting the largest class: {usual:.4f}",
    )
    if right <= usual:
        say(
            "note",
            "no label is listed, because always predicting the largest class is as"
            " good",
        )
        return {}
    order, listed = rank(labels, probabilities)
    say(
        "labels",
        f"{listed.sum():,} of the {round((1 - right) * count):,} that the models"
        " contradict are listed; more than half of the list is expected to be wrong,"
        " the first ones most likely",
    )
    return {
        int(answers["id"][at]): (
            f"{probabilities[at, labels[at]]:.3f} for this label,"
            f" {probabilities[at].max():.3f} for"
            f" {names[int(probabilities[at].argmax())]}"
        )
        for at in order[: listed.sum()]
    }


def _units(
    ids: np.ndarray, splits: Sequence[Split], entries: Sequence[manifest.Entry]
) -> np.ndarray:
    """The unit of each example, int64 (examples,): its near duplicates and members of
    its group.
    """
    links = list(entries)
    if all("group" in split.store.short for split in splits):
        group = np.concatenate([split.column("group") for split in splits])
        _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
        pairs = zip(ids.tolist(), ids[first][inverse].tolist(), strict=True)
        links += [{"id": id, "of": other} for id, other in pairs]
    unit = manifest.groups(links)
    return np.array([unit.get(id, id) for id in ids.tolist()], np.int64)


def _require_enough(
    labels: np.ndarray, units: np.ndarray, names: Sequence[str], folds: int
) -> None:
    """Raises UsageError unless each class has a unit for every fold."""
    pairs = np.unique(np.stack([labels, units]), axis=1)
    classes, counts = np.unique(pairs[0], return_counts=True)
    at = int(counts.argmin())
    if counts[at] < folds:
        raise UsageError(
            f"--folds {folds}: each fold needs an example of {names[classes[at]]!r},"
            f" which has only {counts[at]} (near duplicates and groups count once); use"
            " fewer folds"
        )


def _judged(
    config: Config,
    splits: Sequence[Split],
    entries: Sequence[manifest.Entry],
    held_out: np.ndarray,
    folder: Path,
    fit: Callable[..., Any],
) -> Answers:
    """Trains without the examples `held_out`, and predicts them."""
    folder.parent.mkdir(exist_ok=True)
    without = folder.with_suffix(".jsonl")
    fold = (
        {"id": id, "reason": "held out", "action": "drop"} for id in held_out.tolist()
    )
    manifest.write(without, [*entries, *fold])
    # The fold is the test set. Another cache, because that of the run contains all
    # examples.
    run = fit(
        config,
        run_directory=folder,
        dry_run=False,
        clean={"enabled": False, "manifest": without},
        data={"test": 0.0, "cache_directory": folder.parent / "cache"},
        export={"enabled": False},
        runtime={"time_limit": None},
    )
    parts = []
    for split in splits:
        part = Split(split.store, split.rows[np.isin(split.column("id"), held_out)])
        if len(part):
            batches = batching.evaluation(part, config.train)
            parts.append(evaluate.answers(run.network, run.task, batches))
    wanted = ("id", "truth", "probabilities")
    if missing := [name for name in wanted if name not in parts[0]]:
        raise UsageError(
            f"--label-noise: the task {config.task.name} has no {missing[0]}"
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in wanted}


def _accuracy(answers: Answers) -> float:
    return float((answers["probabilities"].argmax(axis=1) == answers["truth"]).mean())
