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
from pipeline.contracts import Batches, Source, Task
from pipeline.data import batching, dataset
from pipeline.data import splits as data_splits
from pipeline.data.cleaning import manifest
from pipeline.data.folds import assign
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError

# Expected precision of the list; with weak models, the actual precision is about 0.5.
_PRECISION = 0.6
# One in this many examples, those with the lowest probabilities of a class, surely do
# not belong to it.
_SURELY_NOT = 20
Predictions = dict[str, np.ndarray]


def rank(
    labels: np.ndarray, probabilities: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks labels by how likely they are to be wrong, and selects those to list.

    Among the examples that are least likely to be of class i, a label i is a mistake.
    The fraction of labels i among them estimates the rate r of such mistakes; a label
    with probability p > r is then wrong with a probability of about r / p.

    Args:
        labels: int64 (examples,).
        probabilities: The probability of each class, float (examples, classes), by
            models that were not trained on these examples.

    Returns:
        The positions in order, int64 (examples,): first the labels that confident
        learning rejects, then the rest, both sorted by the probability of the label,
        lowest first. And whether the label at a position is listed, bool (examples,):
        as many of the rejected labels, from the first on, as keep the expected
        precision at 0.6 or more.
    """
    from cleanlab.filter import find_label_issues

    count, classes = probabilities.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about classes with few examples
        wrong = find_label_issues(labels, probabilities, filter_by="both", n_jobs=1)
    confidence = probabilities[np.arange(count), labels]
    order = np.lexsort((confidence, ~wrong))
    surely_not = max(1, count // _SURELY_NOT)
    lowest = np.argpartition(probabilities, surely_not - 1, axis=0)[:surely_not]
    mistakes = (labels[lowest] == np.arange(classes)).sum() / surely_not
    # Estimated over all classes, because a single class has too few examples.
    rate = mistakes * np.bincount(labels, minlength=classes)[labels] / count
    expected = (rate / np.maximum(confidence, np.maximum(rate, 1e-9)))[order]
    precision = np.cumsum(expected) / np.arange(1, count + 1)
    good = np.flatnonzero(wrong[order] & (precision >= _PRECISION))
    length = good[-1] + 1 if len(good) else 0
    listed = np.zeros(count, bool)
    listed[order[:length]] = True
    return order, listed


def has_classes(task: Task) -> bool:
    """Whether the task chooses one class for each example."""
    output = task.target.output
    is_class = output is not None and output.activation == "softmax"
    return output is not None and is_class and len(output.shape) == 1


def require_classes(task: Task) -> None:
    """Raises UsageError unless the task chooses one class for each example."""
    if not has_classes(task):
        raise UsageError(
            "--label-noise requires a task that chooses one class for each example;"
            f" the task of this run is {task.title}"
        )


def out_of_fold(
    config: Config,
    source: Source,
    entries: Sequence[manifest.Entry],
    folds: int,
    folder: Path,
    *,
    fit: Callable[..., Any],
) -> Predictions:
    """Predicts all examples of all splits with models that were not trained on them.

    For each of at least 2 folds, `fit` trains the config, without its directory, on the
    rest of the data, in FOLDER/folds/N-of-FOLDS; complete runs are not repeated.
    Examples that `entries` drops are excluded, and near duplicates stay in one fold.

    Returns `id` and `truth` (the label), int64 (examples,), and `probabilities`,
    float32 (examples, classes). Raises UsageError if a class has too few examples, or
    the task does not return probabilities.
    """
    # Leakage does not stop the folds, because both copies are in the same fold.
    entries = manifest.replace_stop(entries, "keep")
    if config.clean.manifest is not None:
        entries += manifest.replace_stop(manifest.read(config.clean.manifest), "keep")
    # Each example is decoded only once.
    uncached = config.changed(data={"cache": "none"})
    excluded = manifest.excluded_ids(entries)
    included = data_splits.included(source, excluded)
    parts, _ = data_splits.divide(included, config.data)

    def decode(task: Task) -> list[Split]:
        return [*batching.load(included, parts, task, uncached, excluded)[0].values()]

    task = dataset.create_task(config, source.info)
    metadata, _ = dataset.learn(task, parts["train"], None, config)
    splits = decode(dataset.create_task(config, metadata))
    if any("label" not in split.store.short for split in splits):
        raise UsageError("--label-noise: the decoded examples have no field 'label'")
    ids = np.concatenate([split.column("id") for split in splits])
    labels = np.concatenate([split.column("label") for split in splits])
    units = _units(ids, splits, entries)
    _require_enough(labels, units, source.info.class_names or (), folds)
    again = (
        f"the same command with --clean.directory {folder} continues after an"
        " interruption"
    )
    say("folds", f"{folds}, each predicted by a model trained on the others; {again}")
    fold = assign(units, labels, folds, seed=0)
    predictions = []
    for number in range(folds):
        run = folder / "folds" / f"{number + 1}-of-{folds}"
        held_out = ids[fold == number]
        predictions.append(_predict_fold(config, decode, entries, held_out, run, fit))
        text = (
            f"accuracy {_accuracy(predictions[-1]):.4f} on {len(held_out):,} examples"
        )
        say("fold", f"{number + 1} of {folds}: {text}")
    return {
        name: np.concatenate([a[name] for a in predictions]) for name in predictions[0]
    }


def suspicious(predictions: Predictions, names: Sequence[str]) -> dict[int, str]:
    """Lists labels that are probably wrong, the worst first.

    Returns id -> the models' predictions as a text. Takes the result of `out_of_fold`;
    prints the accuracy of the models and its consequence for the list.
    """
    labels = predictions["truth"].astype(np.int64)
    probabilities = predictions["probabilities"]
    count = len(labels)
    accuracy = _accuracy(predictions)
    baseline = np.bincount(labels).max() / count
    say(
        "accuracy",
        f"{accuracy:.4f} out of fold; always predicting the largest class:"
        f" {baseline:.4f}",
    )
    if accuracy <= baseline:
        say(
            "note",
            "no label is listed, because always predicting the largest class is as"
            " good",
        )
        return {}
    order, listed = rank(labels, probabilities)
    contradicted = round((1 - accuracy) * count)
    say(
        "labels",
        f"{listed.sum():,} of the {contradicted:,} that the models contradict are"
        " listed; more than half of the list is expected to be wrong, the first ones"
        " most likely",
    )
    texts = {}
    for position in order[: listed.sum()]:
        scores = probabilities[position]
        best = int(scores.argmax())
        texts[int(predictions["id"][position])] = (
            f"{scores[labels[position]]:.3f} for this label, {scores[best]:.3f} for"
            f" {names[best]}"
        )
    return texts


def _units(
    ids: np.ndarray, splits: Sequence[Split], entries: Sequence[manifest.Entry]
) -> np.ndarray:
    """Returns a number per example, shared by near duplicates and groups."""
    links = list(entries)
    if all("group" in split.store.short for split in splits):
        group = np.concatenate([split.column("group") for split in splits])
        _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
        pairs = zip(ids.tolist(), ids[first][inverse].tolist(), strict=True)
        links += [{"id": id, "of": original} for id, original in pairs]
    unit = manifest.groups(links)
    return np.array([unit.get(id, id) for id in ids.tolist()], np.int64)


def _require_enough(
    labels: np.ndarray, units: np.ndarray, names: Sequence[str], folds: int
) -> None:
    """Raises UsageError unless each class has a unit for every fold."""
    pairs = np.unique(np.stack([labels, units]), axis=1)
    classes, counts = np.unique(pairs[0], return_counts=True)
    rarest = int(counts.argmin())
    if counts[rarest] < folds:
        name = names[classes[rarest]]
        raise UsageError(
            f"--folds {folds}: each fold needs an example of {name!r}, which has only"
            f" {counts[rarest]} (near duplicates and groups count once); use fewer"
            " folds"
        )


def _predict_fold(
    config: Config,
    decode: Callable[[Task], Sequence[Split]],
    entries: Sequence[manifest.Entry],
    held_out: np.ndarray,
    folder: Path,
    fit: Callable[..., Any],
) -> Predictions:
    """Trains without the examples `held_out`, and predicts them."""
    folder.parent.mkdir(exist_ok=True)
    exclusions = folder.with_suffix(".jsonl")
    fold = [
        {"id": id, "reason": "held out", "action": "drop"} for id in held_out.tolist()
    ]
    manifest.write(exclusions, [*entries, *fold])
    # The fold is the test set. The cache of the config contains all examples.
    run = fit(
        config,
        run_directory=folder,
        dry_run=False,
        clean={"enabled": False, "manifest": exclusions},
        data={
            "folds": None,
            "test": 0.0,
            "test_groups": (),
            "validation_groups": (),
            "cache_directory": folder.parent / "cache",
        },
        export={"enabled": False},
        runtime={"time_limit": None},
    )
    parts = []
    for split in decode(run.task):  # each model has learned its own metadata
        part = Split(split.store, split.rows[np.isin(split.column("id"), held_out)])
        if len(part):
            batches = batching.evaluation(part, config.train)
            parts += _probabilities(run.network, run.task, batches)
    return evaluate.concatenate(parts)


def _probabilities(network: Any, task: Task, batches: Batches) -> list[Predictions]:
    """The probabilities of all classes for each batch, with `id` and `truth`."""
    parts = []
    for batch, _, outputs, _ in evaluate.outputs(network, task, batches):
        predictions = task.target.predict(task.target_outputs(outputs), batch)
        if "label" not in batch or "probabilities" not in predictions:
            raise UsageError("--label-noise: the task has no classes")
        part = {
            "id": batch["id"],
            "truth": batch["label"],
            "probabilities": predictions["probabilities"],
        }
        parts.append({name: values.numpy() for name, values in part.items()})
    return parts


def _accuracy(predictions: Predictions) -> float:
    return float(
        (predictions["probabilities"].argmax(axis=1) == predictions["truth"]).mean()
    )
