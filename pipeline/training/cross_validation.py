"""Cross-validation: the runs of the folds, and a summary of their results."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from pipeline.config.config import Config
from pipeline.contracts import Decision, Source
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training.pretrained import set_weights
from pipeline.training.user_model import FUNCTIONAL
from pipeline.utils import console, files, npz, safe_io
from pipeline.utils.console import join_words, say
from pipeline.utils.errors import UsageError

_LISTED = 10  # folds in the table


def is_enabled(config: Config) -> bool:
    """Whether this run begins with the runs of its folds."""
    return config.data.folds is not None and config.data.fold is None


def check(config: Config, source: Source) -> None:
    """Raises UsageError if the folds cannot be trained one after the other."""
    folds = int(config.data.folds or 0)
    count = source.info.splits["train"]
    if folds > count:
        raise UsageError(
            f"--data.folds {folds}: train has only {count:,} examples; use fewer folds"
        )
    network = getattr(config.model.name, "value", None)
    is_rebuilt = type(network) in (keras.Sequential, FUNCTIONAL)
    if isinstance(network, keras.Model) and not is_rebuilt:
        raise UsageError(
            "--data.folds: each fold needs a new model, but a subclassed model cannot"
            " be copied; pass a function (input_shape, classes) that returns it"
        )


def with_initial_weights(config: Config) -> Config:
    """The config of the run, whose network has the weights that the run began with.

    They are saved when the run begins: a process that resumes it may have built the
    network anew, with other random weights, or have it after the training.

    Raises UsageError if their file is damaged.
    """
    network = getattr(config.model.name, "value", None)
    if not isinstance(network, keras.Model):  # a function is called with the seed
        return config
    path = _directory(config).initial_weights
    weights = network.get_weights()
    if not path.exists():
        arrays = {str(index): array for index, array in enumerate(weights)}
        npz.write(path, arrays)
        return config
    try:
        saved = [*npz.read(path, path.stat().st_size).values()]
        set_weights(network, saved)
    except (OSError, ValueError):
        raise UsageError(
            f"{path} is damaged; start again in a new --run-directory"
        ) from None
    if not all(map(np.array_equal, weights, saved)):
        say("weights", "the initial ones of this run, not those of the model now")
    return config.changed(model={"name": network})


def fold_configs(config: Config) -> Iterator[Config]:
    """Yields the config of the run of each fold; prints a line before each.

    Like the run of all training examples, they have no validation split, unless the
    source has one; with patience, a part of the other folds is held out.
    """
    data: dict[str, Any] = {}
    if config.train.patience is None:
        data["validation"] = 0.0
    count = int(config.data.folds or 0)
    for fold in range(1, count + 1):
        path = _directory(config).folds / str(fold)
        say("fold", f"{fold} of {count}, in {path}")
        yield config.changed(
            data={**data, "fold": fold}, run_directory=path, export={"enabled": False}
        )


def _directory(config: Config) -> RunDirectory:
    if config.run_directory is None:
        raise ValueError("the run of all folds has no directory yet")
    return RunDirectory(config.run_directory)


def finished(config: Config, source: Source) -> dict[str, Any] | None:
    """The result of the run of a fold, if it has ended with the same data and options;
    None: it is still to be trained. Prints its test metrics.
    """
    run = _directory(config)
    try:
        result = safe_io.read_json(run.result)
        is_same = safe_io.read_json(run.source)["fingerprint"] == source.fingerprint()
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if not is_same or run_directory.changes(config, run) or "test" not in result:
        return None
    say("finished", f"test {console.numbers(result['test'])}")
    return result


def finish(config: Config, results: Sequence[Mapping[str, Any]]) -> None:
    """Prints the summary of the folds, and writes it to the run that follows."""
    summary = summarize(results)
    files.write_json(_directory(config).cross_validation, summary)
    if not config.dry_run:
        _report(summary)


def summarize(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean, the sample standard deviation and the folds of each metric, and after
    how many epochs each fold was best, or else ended.

    A metric that a fold does not have, or that is not finite there, is NaN, and so are
    its mean and its deviation.
    """
    names: dict[str, None] = {}  # ordered, without duplicates
    for result in results:
        for name, value in result["test"].items():
            if isinstance(value, float):
                names[name] = None
    metrics = {}
    for name in names:
        values = [_finite(result["test"].get(name)) for result in results]
        metrics[name] = {
            "mean": float(np.mean(values)),
            "std": float(np.std(values, ddof=1)),
            "folds": values,
        }
    return {
        "folds": len(results),
        "metrics": metrics,
        "examples": [result["test"]["examples"] for result in results],
        "epochs": [result["best_epoch"] or result["epochs"] for result in results],
    }


def _finite(value: float | None) -> float:
    """The value, or NaN if it is infinite or missing, as in the JSON of such a run."""
    return value if value is not None and math.isfinite(value) else math.nan


def read(run: RunDirectory) -> dict[str, Any] | None:
    """The summary of the folds of a run; None if it has none."""
    try:
        return safe_io.read_json(run.cross_validation)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise UsageError(
            f"{run.cross_validation} is damaged; remove it, and repeat the command"
        ) from None


def _report(summary: Mapping[str, Any]) -> None:
    """Prints a table: the metrics of each fold, their mean and standard deviation."""
    count = summary["folds"]
    say("folds", f"{count}, each tested with a model trained on the others")
    numbers = range(count) if count <= _LISTED else ()
    header = ["metric", "mean", "std", *(f"fold {number + 1}" for number in numbers)]
    rows = []
    for name, metric in summary["metrics"].items():
        values = [metric["mean"], metric["std"]]
        values += [metric["folds"][number] for number in numbers]
        rows.append([name, *(f"{value:.4f}" for value in values)])
    table = console.table(rows, header, right=range(1, len(header)))
    console.say_lines("folds", table, metrics=summary["metrics"])


def with_epochs_of_folds(config: Config) -> tuple[Config, list[Decision]]:
    """The config of a run without a validation split, and why it was changed.

    If it has patience and follows the runs of its folds, it is trained for the mean of
    their best epochs.
    """
    if not is_enabled(config) or config.train.patience is None:
        return config, []
    summary = read(_directory(config)) if config.run_directory else None
    if summary is None:
        return config, []
    best = summary["epochs"]
    epochs = max(1, round(statistics.fmean(best)))
    config = config.changed(train={"epochs": epochs, "patience": None})
    reason = (
        f"the mean of the best epochs of the folds: {join_words([*map(str, best)])}"
    )
    return config, [Decision("epochs", str(epochs), reason)]
