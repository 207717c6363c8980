"""Sections about the run: training, choices, options, environment, its command."""

import datetime
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipeline.config import command_line, registry, type_hints
from pipeline.config.config import Config
from pipeline.export.verification import PROVED
from pipeline.report import blocks
from pipeline.report.blocks import Block, Card, Cards, Heading, TableBlock, Text
from pipeline.report.subject import Subject
from pipeline.runtime.run_directory import RunDirectory
from pipeline.serving import version_manifest
from pipeline.utils import console, safe_io
from pipeline.utils.columns import Columns
from pipeline.utils.errors import UsageError

_PICTURES = 6  # along training
_HIDDEN = ("skipped_steps", "gradient_norm_max")
_EXCLUDED = ("format", "recipe", "reasons", "run_directory", "dry_run", "force")
"""Entries of a config that are no options of its command."""


def setup(subject: Subject) -> Iterator[Block]:
    """What was trained on what, as a table."""
    run = subject.run
    if run is None:
        return
    config = run.config
    train = config.train
    chosen = {}
    path = RunDirectory(run.directory).decisions
    if path.is_file():
        for entry in safe_io.read_json(path):
            chosen[entry["name"]] = str(entry["value"])
    started = datetime.datetime.fromtimestamp(
        RunDirectory(run.directory).config.stat().st_mtime, datetime.UTC
    )
    network = _value(config, "model")
    if hasattr(subject.evaluation.network, "count_params"):
        network += f", {subject.evaluation.network.count_params():,} parameters"
    epochs = console.pluralize(len(run.history.get("loss", ())), "epoch")
    facts = {
        "date": f"{started:%Y-%m-%d %H:%M} UTC",
        "data": config.source.title,
        "task": subject.evaluation.task.title,
        "input": _input(subject.evaluation.task.metadata),
        "network": network,
        "optimizer": f"{train.optimizer}, {train.schedule} from {train.learning_rate}",
        "training": f"{epochs}, batches of {train.batch_size:,}",
        "weights": run.result.get("weights", ""),
        "device": chosen.get("device", ""),
        "precision": chosen.get("precision", ""),
        "seed": str(config.runtime.seed),
    }
    facts = {name: value for name, value in facts.items() if value}
    yield TableBlock(Columns(fact=list(facts), value=list(facts.values())))


def _input(metadata: Mapping[str, Any]) -> str:
    """The size of images, or the number of features; empty for other inputs."""
    if "image_shape" in metadata:
        return "image " + "x".join(map(str, metadata["image_shape"]))
    if "feature_names" in metadata:
        return console.pluralize(len(metadata["feature_names"]), "feature")
    return ""


def training(subject: Subject) -> Iterator[Block]:
    """Curves, folds, and where the time went."""
    run = subject.run
    if run is None:
        return
    history = run.history
    stems = dict.fromkeys(name.removeprefix("val_") for name in history)
    names = [name for name in stems if name not in _HIDDEN]
    names.sort(key=lambda name: name != "loss")
    figures = [_curve(name, history) for name in names]
    if figures:
        yield blocks.drawing(*figures)
    else:
        yield Text("No epoch is complete yet.")
    if cards := _pictures(RunDirectory(run.directory)):
        yield Heading("Predictions for the validation split")
        yield Cards(cards)
    if folds := run.result.get("cross_validation"):
        yield Heading(f"Cross-validation with {folds['folds']} folds")
        yield _folds(folds)
    if stages := run.result.get("stages"):
        yield Heading("Where the time went")
        total = sum(stages.values())
        shares = [f"{seconds / max(total, 1e-9):.0%}" for seconds in stages.values()]
        seconds = [f"{seconds:.1f} s" for seconds in stages.values()]
        yield TableBlock(Columns(stage=list(stages), time=seconds, share=shares))
        yield Text("If the run was resumed, the time before that is not included.")
    if speed := run.result.get("examples_per_second"):
        yield Text(f"The median speed of training was {speed:,.0f} examples/s.")


def _pictures(run: RunDirectory) -> list[Card]:
    """Some of the pictures of the epochs that were evaluated, with the last."""
    paths = sorted(run.pictures.glob("*-*.png"))
    every = -(-len(paths) // _PICTURES)
    cards = []
    for path in paths[::-1][:: max(1, every)][::-1]:
        name, _, epoch = path.stem.rpartition("-")
        content = blocks.image("png", path.read_bytes())
        cards.append(Card(content, f"{name}, epoch {int(epoch)}", is_wide=True))
    return cards


def _curve(name: str, history: Mapping[str, Sequence[float]]) -> Figure:
    """Draws a metric of each epoch, of training and validation."""
    figure = Figure(figsize=(3.6, 2.5), layout="constrained")
    axes = figure.subplots()
    for part, key in (("train", name), ("validation", f"val_{name}")):
        if values := history.get(key):
            epochs = np.arange(1, len(values) + 1)
            marker = "." if len(values) <= 50 else ""
            axes.plot(epochs, values, marker=marker, label=part)
    if f"val_{name}" in history:
        axes.legend(fontsize=8)
    axes.set_title(name.replace("_", " "), fontsize=10, parse_math=False)
    axes.set_xlabel("epoch", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def _folds(summary: Mapping[str, Any]) -> TableBlock:
    metrics = summary["metrics"]
    columns: dict[str, list[Any]] = {"metric": list(metrics)}
    for key in ("mean", "std"):
        columns[key] = [metric[key] for metric in metrics.values()]
    if summary["folds"] <= 10:
        for number in range(summary["folds"]):
            folds = [metric["folds"][number] for metric in metrics.values()]
            columns[f"fold {number + 1}"] = folds
    return TableBlock(Columns(columns))


def decisions(subject: Subject) -> Iterator[Block]:
    """What the run has chosen, and why."""
    if subject.run is None:
        return
    config = subject.run.config
    rows = []
    path = RunDirectory(subject.run.directory).decisions
    if path.is_file():
        for entry in safe_io.read_json(path):
            rows.append([entry["name"], entry["value"], entry["reason"]])
    for option, reason in config.reasons.items():
        rows.append([option, _value(config, option), reason])
    if rows:
        yield _table(["choice", "value", "reason"], rows)


def _value(config: Config, option: str) -> str:
    """The value of an option such as `train.epochs`, or `model`, as words."""
    section, _, name = option.partition(".")
    values = config.as_json()[section]
    return " ".join(type_hints.words(values[name or "name"]))


def options(subject: Subject) -> Iterator[Block]:
    """The options that differ from those of the recipe."""
    if subject.run is None:
        return
    config = subject.run.config
    recipe = _recipe(config)
    if recipe is not None:
        rows = []
        for option, (original, value) in differences(recipe, config).items():
            rows.append([option, _words(original), _words(value)])
        if rows:
            yield Text(f"What differs from the recipe {config.recipe}:")
            yield _table(["option", "recipe", "this run"], rows)
        else:
            yield Text(f"All options are those of the recipe {config.recipe}.")
    content = json.dumps(config.as_json(), indent=1, ensure_ascii=False)
    yield Text(content, is_code=True, summary="All options")


def repeat_evaluation(subject: Subject) -> Iterator[Block]:
    """The command of the evaluation."""
    if subject.measured is not None:
        yield Text(subject.measured.command, is_code=True)


def repeat(subject: Subject) -> Iterator[Block]:
    """The command of the run, and its environment."""
    run = subject.run
    if run is None:
        return
    config = run.config
    command = exact_command(config)
    if command is None and "<" in json.dumps(config.as_json()):
        yield Text(
            "The run began with Python objects: call fit with the same arguments and"
            f" the seed {config.runtime.seed}."
        )
    else:
        path = shlex.quote(str(RunDirectory(run.directory).config))
        yield Text(command or f"pipeline fit --config {path}", is_code=True)
        yield Text(
            "The same package, machine and data give the same weights. The run is in"
            f" {run.directory}."
        )
    if versions := run.result.get("versions"):
        yield Heading("Environment")
        yield TableBlock(
            Columns(package=list(versions), version=list(versions.values()))
        )


def exact_command(config: Config) -> str | None:
    """The command line with exactly this config; None if there is none without files
    of the run.
    """
    recipe = _recipe(config)
    if recipe is None:
        return None
    is_own = config.recipe in command_line.OWN_DATA
    words = [str(config.source.path) if is_own else config.recipe]
    if is_own and config.task.name != "supervised":
        words += ["--task", config.task.name]
    for option, (_, value) in differences(recipe, config).items():
        section, _, name = option.partition(".")
        if isinstance(value, bool):
            flag = name if value else f"no-{name}"
            words.append(f"--{section}.{flag}".replace("_", "-"))
            continue
        words += [f"--{option}".replace("_", "-"), *type_hints.words(value)]
    try:
        parsed = command_line.configure(words)
    except UsageError:
        return None
    if parsed.digest() != config.digest():
        return None
    return shlex.join(["pipeline", "fit", *words])


def _recipe(config: Config) -> Config | None:
    """The recipe of a config as it was before any option; None if it is not known."""
    try:
        if config.recipe in command_line.OWN_DATA:
            path = config.source.path
            task = config.task.name
            return command_line.path_request(path, task=task).config if path else None
        if config.recipe in registry.names("recipes"):
            return command_line.recipe(config.recipe)
    except UsageError:  # the data is gone
        return None
    return None


def differences(before: Config, config: Config) -> dict[str, tuple[Any, Any]]:
    """Option, such as `train.epochs` -> its values in both configs, if these differ."""
    differences = {}
    originals = before.as_json()
    for section, values in config.as_json().items():
        if section in (*_EXCLUDED, "log"):
            continue
        for name, value in values.items():
            original = originals[section][name]
            if value != original:
                differences[f"{section}.{name}"] = (original, value)
    return differences


def _words(value: Any) -> str:
    return " ".join(type_hints.words(value)) or "none"


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> TableBlock:
    columns = zip(*rows, strict=True)
    return TableBlock(Columns(zip(header, map(list, columns), strict=True)))


def _proof(manifest: Mapping[str, Any]) -> str:
    """What verification has shown, on how many examples, and how exactly."""
    if "compared" not in manifest:
        return PROVED
    compared = console.pluralize(manifest["compared"], "example")
    differences = manifest["difference"].values()
    floats = [value for value in differences if isinstance(value, float)]
    largest = max(floats, default=0.0)  # the others count classes that differ
    return f"{PROVED} ({compared}, largest difference {largest:.2g})"


def _served(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The effect of an export in a precision other than the training's."""
    if not manifest:
        return
    precision, trained = manifest["precision"], manifest["trained_precision"]
    if precision == trained.removeprefix("mixed_"):
        return
    yield (
        f"Precision: {precision} in the export, {trained} in training. As served:"
        f" {manifest['evaluated_split']} {console.numbers(manifest['metrics'])}.",
        "",
    )


def is_tested_by_folds(subject: Subject) -> bool:
    """Whether the folds say how good the model is, and the evaluation only how well it
    knows its training examples.
    """
    has_folds = subject.run is not None and "cross_validation" in subject.run.result
    return has_folds and subject.evaluation.split == "train" and not subject.measured


def lead(subject: Subject) -> Iterator[tuple[str, str]]:
    """The first sentences of the report about the run, each with its color."""
    run = subject.run
    if run is None:
        return
    if folds := run.result.get("cross_validation"):
        yield f"Of each fold: {console.spread(folds['metrics'], folds['folds'])}.", ""
    verification = run.result.get("verification") or {}
    if run.export is not None:
        manifest = version_manifest.properties(run.export)
        color = "" if subject.evaluation.warning else "good"
        yield f"Exported as {run.export} and verified: {_proof(manifest)}.", color
        yield from _served(manifest)
    elif verification:
        failed = [c for c in verification["checks"] if not c["passed"]]
        details = "; ".join(f"{c['name']}: {c['detail']}" for c in failed)
        yield f"Not exported. {details}", "bad"
    elif run.result:
        yield "Not exported (--export.no-enabled).", ""
    if whole := subject.evaluation.metrics.get("with_copies"):
        copies = whole["examples"] - subject.evaluation.metrics["examples"]
        yield (
            f"{copies:,} of {whole['examples']:,} test examples are exact copies of"
            " others in training or validation and left out; with them:"
            f" {console.numbers(whole)}.",
            "warn",
        )
    epochs = len(run.history.get("loss", ()))
    of = console.pluralize(run.config.train.epochs, "epoch")
    if not run.result:
        yield (
            f"Training is unfinished: {epochs} of {of}. pipeline fit --resume"
            f" {shlex.quote(str(run.directory))} continues it.",
            "bad",
        )
    elif run.result.get("stopped"):
        yield f"The time limit stopped training after {epochs} of {of}.", "bad"
    if subject.evaluation.split == "validation" and not run.config.train.final_test:
        yield "The test split was not measured (--train.no-final-test).", "warn"
    elif subject.evaluation.split == "validation":
        yield (
            "There is no test split: the validation split is measured, which training"
            " may have been tuned to.",
            "bad",
        )
    if subject.evaluation.split == "train":
        yield (
            "These are the examples on which the model was trained: new ones will be"
            " predicted worse.",
            "bad",
        )
