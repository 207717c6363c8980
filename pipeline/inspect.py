"""Shows a recipe's data: counts, sizes, pictures, and how fast they reach training."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import command_line, registry
from pipeline.config.config import Config
from pipeline.runtime import run_directory
from pipeline.utils import console, files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, run_command

if TYPE_CHECKING:  # configs are checked before TensorFlow is imported
    from pipeline.contracts import Source
    from pipeline.data.dataset import Data
    from pipeline.data.splits import Split
    from pipeline.runtime.environment import Runtime

INSPECTED = Path("inspected")
PROGRAM = "python -m pipeline.inspect"
PURPOSE = "Shows a recipe's data: counts, sizes, pictures; how fast they are fed, what is faster."


def inspect(recipe: str | Config = "digits", **changes: Any) -> Path:
    """Prints what there is to say of a recipe's data, and writes a page with pictures of them.

    Args:
        recipe: Name of a registered function, a dotted name, or a Config.
        changes: As for `Config.changed`: `inspect("digits", data={"limit": 100})`.

    Returns:
        The page, `inspected/RECIPE-N/index.html`, which needs no other file.

    Raises:
        UsageError: The request cannot be carried out. Where it is the training that could not be,
            the data have been shown by then.
    """
    config = command_line.recipe(recipe) if isinstance(recipe, str) else recipe
    config = config.changed(**changes)
    run_directory.earlier_splits(config)
    files.check_writable(INSPECTED, "the folder of the page")
    if config.source.name == "folder":
        files.require_outside(INSPECTED, config.source.path, "the folder of the page")
    from pipeline.runtime import environment

    machine = environment.start(config.runtime)  # imports TensorFlow; all that follows may, too
    from pipeline.data import dataset
    from pipeline.utils import html_pages

    said = _Said()
    try:
        loaded = dataset.load(config)
    except UsageError:
        _census(said, registry.call("sources", config.source.name, config.source.options))
        raise
    for decision in (*machine.decisions, *loaded.decisions):
        said(decision.name, decision)
    _census(said, loaded.source, loaded)
    wrong = None
    try:
        _speed(said, config, machine, loaded)
    except UsageError as error:  # the data are shown all the same
        wrong = error
        said("fit", f"would stop: {error}")
    folder = files.make_next(INSPECTED, config.recipe)
    parts = [html_pages.table(said.lines), *_exhibits(config, loaded)]
    files.write_text(
        folder / "index.html", html_pages.page(f"{config.recipe}: {config.source.title}", parts)
    )
    said("written", f"{folder / 'index.html'}: this, and pictures")
    if wrong:
        raise wrong
    return folder / "index.html"


class _Said:
    """Prints lines of a key and a text, and keeps them."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, name: str, text: object) -> None:
        self.lines.append((name, str(text)))
        say(name, text)


def _classes(data: "Data") -> list[str] | None:
    """Names of the classes, where the examples have labels."""
    labelled = "label" in data.splits["train"].store.short
    return data.metadata.get("class_names") if labelled else None


def _census(said: _Said, source: "Source", data: "Data | None" = None) -> None:
    """What the data are; without `data` what can be known of them before any is decoded."""
    from pipeline.evaluation import dataset_stats

    for note in source.info.notes:
        said("note", note)
    counts = {name: len(split) for name, split in data.splits.items()} if data else None
    counts = counts or source.info.splits
    said("examples", ", ".join(f"{name} {count:,}" for name, count in counts.items()))
    names = _classes(data) if data else source.info.class_names
    if names:
        labels = (
            dataset_stats.classes(data.splits, names)
            if data
            else dataset_stats.labels(source, names)
        )
        said("classes", f"{len(names):,}, {dataset_stats.balance(labels, names)}")
        header, *rows = dataset_stats.table(labels, names)
        for line in console.table(rows, header, right=range(1, len(header))).splitlines():
            said("", line)
    if (files := dataset_stats.files(source)) is not None:
        said("files", files)
    for field in dataset_stats.fields(data.splits["train"]) if data else ():
        said("field", field)


def _speed(said: _Said, config: Config, machine: "Runtime", data: "Data") -> None:
    """How fast a training would be fed, and step: measured as it would take place.

    Raises UsageError for what a training could not do either.
    """
    from pipeline.data import augmentation, batching
    from pipeline.evaluation import throughput
    from pipeline.runtime.watchdog import Watchdog
    from pipeline.training import autotune
    from pipeline.training.model_builder import build

    # A second pass to measure, even of a recipe that has one.
    train = dataclasses.replace(config.train, epochs=max(2, config.train.epochs), steps=None)
    plain = batching.training(data.splits["train"], train, config.runtime.seed)
    batches, decisions = augmentation.placed(plain, config.data, config.runtime.seed, data.cache)
    for decision in decisions:
        said(decision.name, decision)

    def built(machine: "Runtime") -> Any:
        return build(data.task, config, machine, plain, augment_in_step=batches is plain)

    if config.runtime.precision == "auto":
        with Watchdog(config.runtime.hang_timeout, None) as watchdog:
            machine, model = autotune.precision(machine, built, batches, None, watchdog)
        said("precision", machine.decisions[-1])
    else:
        model = built(machine)
    with machine.strategy.scope():
        first, later = throughput.passes(batches)
        if data.cache != "none":  # then all have been decoded before any is fed
            first = sum(map(len, data.splits.values())) / data.seconds
        measured = throughput.speed(model, batches)
    kind = "images/s" if "image" in data.splits["train"].store.specs else "examples/s"
    said("feed", f"{first:,.0f} {kind} in the first pass, {later:,.0f} in the second")
    said("step", f"{measured.step:,.0f} {kind}, {config.model.name} on one batch that is there")
    said("training", f"{measured.training:,.0f} {kind}, the step with its feed")
    place = decisions[0].value if decisions else "device"
    remedies = _remedies(config, machine, data.cache, place, data.splits["train"])
    said("bottleneck", throughput.verdict(measured, later, remedies))


def _remedies(
    config: Config, machine: "Runtime", cache: str, place: str, train: "Split"
) -> dict[str, str]:
    """What would make the step faster, and what the feed."""
    import tensorflow as tf

    gpu = bool(tf.config.list_logical_devices("GPU"))
    images = "image" in train.store.specs
    smaller = "a smaller model or --data.image-size" if images else "a smaller model"
    step = smaller if gpu else f"a GPU or {smaller}"
    if gpu and machine.precision == "float32":
        step = "--runtime.precision mixed_bfloat16"
    if cache == "none":
        feed = "--data.cache memory or disk, which decode once,"
    elif place == "host":
        feed = "--data.augment-on device"
    elif cache == "disk":
        feed = "--data.cache memory"
    elif not gpu and 2 * config.train.batch_size <= len(train):
        feed = f"a larger --train.batch-size than {config.train.batch_size}"
    elif cache == "memory":
        feed = "--data.cache device"
    else:
        feed = "nothing but longer steps"
    return {"step": step, "feed": feed}


def _exhibits(config: Config, data: "Data") -> list[str]:
    """The pictures of the page."""
    from pipeline.evaluation import dataset_gallery

    train, source, names = data.splits["train"], data.source, _classes(data)
    parts: list[str] = []
    if "image" in train.store.specs:
        if names:
            parts += dataset_gallery.examples(train, names, source.location)
        parts += dataset_gallery.augmentations(
            train, config.data.augment, config.runtime.seed, source.location
        )
    else:
        parts += dataset_gallery.histograms(train, {"features": source.info.feature_names or ()})
    return parts


def main(arguments: list[str]) -> int:
    """`python -m pipeline.inspect [RECIPE] [--section.option VALUE ...]`."""
    inspect(command_line.configure(arguments, PROGRAM, PURPOSE))
    return 0


if __name__ == "__main__":
    run_command(main)
