"""Which labels are probably wrong: confident learning on out-of-fold predictions.

Northcutt, Jiang, Chuang, "Confident learning: estimating uncertainty in dataset labels", Journal of
Artificial Intelligence Research 2021, as the package cleanlab has it. Its list is cut where the
precision would fall below one half: with a model that is right in half the cases it has 4,000 of
12,000 labels, of which 40 % are wrong (benchmarks/label_noise.md).
"""

import datetime
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.config.config import Config
from pipeline.data.cleaning import manifest
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import safe_io
from pipeline.utils.errors import Terminated, UsageError

if TYPE_CHECKING:  # wrong options are reported before TensorFlow is imported
    from pipeline.contracts import Source
    from pipeline.data.splits import Split

# Expected precision of the list: of weak models half of it is wrong where 0.6 are expected.
_LEAST = 0.6
_SURE = 20  # one in so many examples, by the probability of a class, does surely not belong to it
Answers = dict[str, np.ndarray]


def require_cleanlab() -> None:
    """Raises UsageError unless the package is installed."""
    if importlib.util.find_spec("cleanlab") is None:
        raise UsageError(
            "--label-noise needs the package cleanlab: pip install cleanlab "
            "(or install this package with its extra: '.[clean]')"
        )


def rank(labels: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order in which a person should look at labels, and which of them to look at.

    Where the model is surest that an example is not of class i, the label i is given by mistake.
    The share of such labels there is the rate of these mistakes, r; a label whose probability is
    p > r is then wrong with a probability of about r / p.

    Args:
        labels: int64 (examples,), 0 ... classes - 1.
        probabilities: Of each class, by models that were not trained on these examples, float
            (examples, classes).

    Returns:
        The positions in their order, int64 (examples,): first those whose label confident learning
        takes for an error, within both parts the least probable label first. And for each position
        whether it is listed, bool (examples,): the longest beginning of the first part of which at
        least six in ten are expected to be wrong.
    """
    from cleanlab.filter import find_label_issues

    count, classes = probabilities.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes with hardly an example
        wrong = find_label_issues(labels, probabilities, filter_by="both", n_jobs=1)
    own = probabilities[np.arange(count), labels]
    order = np.lexsort((own, ~wrong))
    surely_not = max(1, count // _SURE)
    lowest = np.argpartition(probabilities, surely_not - 1, axis=0)[:surely_not]
    mistakes = (labels[lowest] == np.arange(classes)).sum() / surely_not
    # Counted over all classes: of a single one there are too few.
    rate = mistakes * np.bincount(labels, minlength=classes)[labels] / count
    expected = (rate / np.maximum(own, np.maximum(rate, 1e-9)))[order]
    precision = np.cumsum(expected) / np.arange(1, count + 1)
    good = np.flatnonzero(wrong[order] & (precision >= _LEAST))
    listed = np.zeros(count, bool)
    listed[order[: good[-1] + 1 if len(good) else 0]] = True
    return order, listed


def assigned(labels: np.ndarray, units: np.ndarray, folds: int) -> np.ndarray:
    """The fold of each example, 0 ... folds - 1, int64 (examples,).

    Depends on the labels and units alone, not on the order of the examples. Each class is dealt out
    evenly.

    Args:
        labels: int64 (examples,).
        units: Name of the unit that the example belongs to, int64 (examples,); a unit stays in one
            fold. Its label is that of one of its examples.
        folds: So many.
    """
    from pipeline.data import seeds

    order = np.lexsort((labels, units))
    names, first = np.unique(units[order], return_index=True)
    label = labels[order][first]
    place = seeds.uniform(seeds.example_seeds(0, label, names)).numpy()
    fold = np.empty(len(names), np.int64)
    fold[np.lexsort((place, label))] = np.arange(len(names)) % folds
    return fold[np.searchsorted(names, units)]


def out_of_fold(
    config: Config,
    trained: Path,
    source: "Source",
    entries: Sequence[manifest.Entry],
    folds: int,
    folder: Path,
    *,
    fit: Callable[..., Any],
) -> Answers:
    """What models say of examples that they were not trained on: of all examples of all splits.

    For each fold the config is trained on the other folds, in FOLDER/folds/N-of-FOLDS; what is
    finished there is not trained again.

    Args:
        config: Of the run, without its directory.
        trained: The run, whose speed is known.
        source: That of the config.
        entries: What has been found in it: what is dropped is not judged, near duplicates stay in
            one fold.
        folds: At least 2.
        folder: Of the command.
        fit: Trains a config: `pipeline.fit.fit`.

    Returns:
        `id` and the label, `truth`, int64 (examples,); `probabilities`, float32 (examples,
        classes).

    Raises:
        UsageError: A class has too few examples, the model gives no probabilities, or a fold was
            stopped by its time limit.
    """
    from pipeline.utils.console import say

    entries = _entries(config, entries)
    splits = _whole(config, source, entries)
    ids = np.concatenate([split.column("id") for split in splits])
    labels = np.concatenate([split.column("label") for split in splits])
    units = _units(ids, splits, manifest.groups(entries))
    _require_enough(labels, units, source.info.class_names or (), folds)
    expected = _expected(RunDirectory(trained), config, len(ids) * (folds - 1))
    again = f"the same command with --clean.directory {folder} goes on after an interrupt"
    say("folds", f"{folds}, each judged by a model trained on the others{expected}; {again}")
    fold, answers, seconds = assigned(labels, units, folds), [], 0.0
    for number in range(folds):
        where = folder / "folds" / f"{number + 1}-of-{folds}"
        held = ids[fold == number]
        try:
            some, took = _judged(config, splits, entries, held, where, fit)
        except (KeyboardInterrupt, Terminated):
            say("stopped", again)
            raise
        answers.append(some)
        seconds += took
        left = seconds / (number + 1) * (folds - number - 1)
        text = f"accuracy {_accuracy(some):.4f} on its {len(held):,} examples; {_clock(took)}"
        text += f", about {_clock(left)} left" * (left > 0)
        say("fold", f"{number + 1} of {folds}: {text}")
    return {name: np.concatenate([some[name] for some in answers]) for name in answers[0]}


def doubted(answers: Answers, names: Sequence[str]) -> dict[int, str]:
    """Id -> what the models say of each label that is probably wrong, the most doubtful first.

    Also prints how good the models are, and what that means for the list.

    Args:
        answers: Of `out_of_fold`.
        names: Of the classes.
    """
    from pipeline.utils.console import say

    labels, probabilities = answers["truth"].astype(np.int64), answers["probabilities"]
    count, right = len(labels), _accuracy(answers)
    usual = np.bincount(labels).max() / count
    say("accuracy", f"{right:.4f} out of fold; {usual:.4f} by always answering the commonest class")
    if right <= usual:
        say("note", "a model that has learned nothing cannot judge labels: none is listed")
        return {}
    order, listed = rank(labels, probabilities)
    say(
        "labels",
        f"{listed.sum():,} of the {round((1 - right) * count):,} that the models contradict are "
        "listed: more than half of these are expected to be wrong, the first ones most probably; "
        "models of higher accuracy find more of the wrong labels",
    )
    return {
        int(answers["id"][at]): f"{probabilities[at, labels[at]]:.3f} for this label, "
        f"{probabilities[at].max():.3f} for {names[int(probabilities[at].argmax())]}"
        for at in order[: listed.sum()]
    }


def _entries(config: Config, entries: Sequence[manifest.Entry]) -> list[manifest.Entry]:
    """These and those of `clean.manifest`. A picture in two splits stops no fold: both are in the
    same."""
    found = manifest.decided(entries, "keep")
    if config.clean.manifest is not None:
        found += manifest.decided(manifest.read(config.clean.manifest), "keep")
    return found


def _whole(config: Config, source: "Source", entries: Sequence[manifest.Entry]) -> list["Split"]:
    """All examples that are not dropped; each is decoded when it is asked for, as that is once."""
    from pipeline.data import batching, dataset

    task = dataset.task_of(config, source.info)
    config = config.changed(data={"cache": "none"})
    splits, _ = batching.load(source, task, config, manifest.dropped(entries))
    return list(splits.values())


def _units(ids: np.ndarray, splits: Sequence["Split"], groups: Mapping[int, int]) -> np.ndarray:
    """What stays in one fold, int64 (examples,): an example, or a group of the source or of near
    duplicates."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    named = all("group" in split.store.short for split in splits)
    own = np.concatenate([split.column("group") for split in splits]) if named else ids
    known = np.isin(ids, list(groups))
    if not known.any():
        return own
    # A graph of the source's groups, joined by those of near duplicates.
    names, node = np.unique(own, return_inverse=True)
    _, link = np.unique([groups[id] for id in ids[known].tolist()], return_inverse=True)
    size = len(names) + link.max() + 1
    edges = (np.ones(len(link), bool), (node[known], len(names) + link))
    part = connected_components(coo_array(edges, (size, size)), directed=False)[1]
    return part[node].astype(np.int64)


def _require_enough(
    labels: np.ndarray, units: np.ndarray, names: Sequence[str], folds: int
) -> None:
    """Raises UsageError unless each class can be in all folds."""
    pairs = np.unique(np.stack([labels, units]), axis=1)
    classes, counts = np.unique(pairs[0], return_counts=True)
    at = int(counts.argmin())
    if counts[at] < folds:
        raise UsageError(
            f"--folds {folds}: each fold needs an example of {names[classes[at]]!r}, of which "
            f"there are {counts[at]} (near duplicates and groups count once); use fewer folds, or "
            "add examples"
        )


def _expected(run: RunDirectory, config: Config, examples: int) -> str:
    """How long training all folds takes by the speed of the run, if that is known."""
    try:
        speed = safe_io.read_json(run.result)["examples_per_second"]
        seconds = examples * config.train.epochs / speed
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return ""
    return f", about {_clock(seconds)} in all by the speed of {run}"


def _clock(seconds: float) -> datetime.timedelta:
    """Shown as 0:01:23."""
    return datetime.timedelta(seconds=round(seconds))


def _judged(
    config: Config,
    splits: Sequence["Split"],
    entries: Sequence[manifest.Entry],
    held: np.ndarray,
    where: Path,
    fit: Callable[..., Any],
) -> tuple[Answers, float]:
    """What a run without the examples `held` says of them, and the seconds that it took."""
    from pipeline.data import batching
    from pipeline.data.splits import Split
    from pipeline.evaluation import evaluate

    where.parent.mkdir(exist_ok=True)
    without = where.with_suffix(".jsonl")
    fold = ({"id": id, "reason": "judged", "action": "drop"} for id in held.tolist())
    manifest.write(without, [*entries, *fold])
    # Nothing more is held out for a test: the fold is one. The cache is not that of the whole.
    run = fit(
        config,
        run_directory=where,
        dry_run=False,
        clean={"enabled": False, "manifest": without},
        data={"test": 0.0, "cache_directory": where.parent / "cache"},
        export={"enabled": False},
    )
    if run.result["stopped"]:
        raise UsageError(
            f"--label-noise: {where} reached --runtime.time-limit {config.runtime.time_limit}; the "
            f"same command with --clean.directory {where.parent.parent} goes on"
        )
    parts = []
    for split in splits:
        part = Split(split.store, split.rows[np.isin(split.column("id"), held)])
        if len(part):
            batches = batching.evaluation(part, config.train)
            parts.append(evaluate.answers(run.model, run.task, batches))
    wanted = ("id", "truth", "probabilities")
    if missing := [name for name in wanted if name not in parts[0]]:
        raise UsageError(f"--label-noise: the task {config.task.name} answers no {missing[0]}")
    answers = {name: np.concatenate([part[name] for part in parts]) for name in wanted}
    return answers, float(run.result["seconds"])


def _accuracy(answers: Answers) -> float:
    return float((answers["probabilities"].argmax(axis=1) == answers["truth"]).mean())
