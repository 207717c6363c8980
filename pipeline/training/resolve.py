"""Turns a request into the config of a run."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config import registry, type_hints
from pipeline.config.config import Config
from pipeline.config.request import Request
from pipeline.runtime import run_directory
from pipeline.utils.console import say

if TYPE_CHECKING:
    from pipeline.contracts import Source
    from pipeline.runtime.environment import Machine

_DRAWN = 8  # samples of a dry run, by a task that draws some


def resolve(
    request: Request,
    machine: "Machine",
    seconds: float | None = None,
    folder: Path | None = None,
    source: "Source | None" = None,
) -> Config:
    """Turns a request into the config of a run, and prints choices with reasons.

    A command calls this once, before it decodes data and builds a model. A plan of the
    recipe chooses the options that were not set; a resumed run keeps the options that
    it began with.

    Args:
        request: From a command line or a call in Python.
        machine: Where the run is going to be trained.
        seconds: Remaining time; None: there is no limit.
        folder: Where a dry run writes its files.
        source: The data of the request, if they are open already, with all examples.

    Raises:
        UsageError: A plan cannot open the data.
    """
    config = request.config
    if request.planned and run_directory.is_new(config):
        from pipeline.data import dataset  # imports TensorFlow
        from pipeline.training import plan

        source = source or dataset.create_source(config)
        if request.plan == "epochs":
            config = plan.enough_epochs(request, source)
        elif request.plan == "rows":
            config = plan.rows(request, source)
        else:
            config = plan.photos(request, machine, source, seconds)
    elif request.planned:
        config = run_directory.with_saved_plan(config, request.planned)
    if machine.cluster and config.train.engine == "model_fit":
        config = config.changed(train={"engine": "gradient_tape"})
        if machine.is_chief:
            say("engine", "gradient_tape, since Keras's fit fails with several workers")
    if machine.is_chief:
        _print_choices(config)
    if folder is not None:
        config = _dry_run(config, folder)
    return config


def _print_choices(config: Config) -> None:
    for name, reason in config.reasons.items():
        section, _, option = name.partition(".")
        part = getattr(config, section)
        value = getattr(part, option) if option else {part.name: part.options}
        flag = f"--{name}".replace("_", "-")
        say("plan", f"{flag:23} {' '.join(type_hints.words(value))} ({reason})")


def _dry_run(config: Config, folder: Path) -> Config:
    """Returns the config of a dry run: two steps on about four batches.

    It writes all files in `folder`.
    """
    task = {}
    if "samples" in registry.find("tasks", config.task.name).options:
        task["samples"] = _DRAWN
    train_fraction = 1 - config.data.validation - config.data.test
    limit = math.ceil(4 * config.train.batch_size / train_fraction)
    return config.changed(
        run_directory=Path(folder, "run"),
        export={"directory": Path(folder, "saved_models")},
        data={"limit": min(limit, config.data.limit or limit)},
        train={"steps": 2},
        task=task,
    )
