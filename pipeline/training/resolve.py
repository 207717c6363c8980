"""From what was asked for to the config of a run."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config import type_hints
from pipeline.config.config import Config
from pipeline.config.request import Request
from pipeline.runtime import run_directory
from pipeline.utils.console import say

if TYPE_CHECKING:
    from pipeline.runtime.environment import Machine


def resolve(
    request: Request,
    machine: "Machine",
    seconds: float | None = None,
    folder: Path | None = None,
) -> Config:
    """Turns what was asked for into the config of a run. A command calls this once,
    before it decodes data and builds a model.

    A plan of the recipe chooses the options that were not set; a resumed run keeps
    those that it began with. Prints what was chosen, with the reasons.

    Args:
        request: From a command line or a call in Python.
        machine: What the run uses of this machine.
        seconds: What is left of the time limit; None: there is no limit.
        folder: Where a dry run writes its files.

    Raises:
        UsageError: The data, which a plan looks at, cannot be opened.
    """
    config = request.config
    if request.planned and run_directory.is_new(config):
        from pipeline.training import plan  # imports TensorFlow

        config = plan.photos(request, machine, seconds)
    elif request.planned:
        config = run_directory.with_saved_plan(config, request.planned)
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
        say("plan", f"{flag:21} {' '.join(type_hints.words(value))} ({reason})")


def _dry_run(config: Config, folder: Path) -> Config:
    """The config of a dry run: two steps on about four batches, with all files in
    `folder`.
    """
    share = 1 - config.data.validation - config.data.test
    few = math.ceil(4 * config.train.batch_size / share)
    return config.changed(
        run_directory=Path(folder, "run"),
        export={"directory": Path(folder, "saved_models")},
        data={"limit": min(few, config.data.limit or few)},
        train={"steps": 2},
    )
