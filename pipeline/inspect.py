"""Shows a recipe's data: counts, sizes, examples, input pipeline speed."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import command_line
from pipeline.config.config import Config
from pipeline.config.request import Request
from pipeline.runtime.signals import StopSignals
from pipeline.training.resolve import resolve
from pipeline.utils import files, progress_bar
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, run_command

if TYPE_CHECKING:  # configs are checked before TensorFlow is imported
    from pipeline.data.dataset import LoadedData
    from pipeline.runtime.environment import Machine

INSPECTED = Path("inspected")
PROGRAM = "pipeline inspect"
PURPOSE = """\
Shows a recipe's data: counts, sizes and examples. Measures the speed of the input
pipeline and of training, and reports how to increase it."""


def inspect(recipe: str | Config = "digits", **changes: Any) -> Path:
    """Prints statistics of a recipe's data, and writes an HTML page with examples.

    Args:
        recipe: Name of a registered function, a dotted name, or a Config.
        changes: Changes to the config, as in `inspect("digits", data={"limit": 100})`;
            see `Config.changed`.

    Returns:
        The path of the page, `inspected/NAME-N/index.html`, which does not depend on
        other files.

    Raises:
        UsageError: The request cannot be carried out.
    """
    if isinstance(recipe, str):
        request = command_line.recipe_request(recipe, PROGRAM)
    else:
        request = Request(recipe)
    return _inspect(request.changed(**changes))


def _inspect(request: Request) -> Path:
    """Carries out a request; see `inspect`."""
    files.check_writable(INSPECTED, "the directory of the page")
    source = request.config.source
    if source.name == "folder":
        files.require_outside(INSPECTED, source.path, "the directory of the page")
    from pipeline.runtime import environment

    machine = environment.start(request.config.runtime)  # imports TensorFlow
    from pipeline.data import dataset
    from pipeline.report import dataset_report
    from pipeline.utils import html_pages

    opened = dataset.create_source(request.config)
    config = resolve(request, machine, source=opened)
    lines: list[tuple[str, str]] = []

    def report(facts: Iterable[tuple[str, object]]) -> None:
        for name, text in facts:
            lines.append((name, str(text)))
            say(name, text)

    try:
        loaded = dataset.load(config, opened)
    except UsageError:
        report(dataset_report.files(opened))
        raise
    for decision in (*machine.decisions, *loaded.decisions):
        report([(decision.name, decision)])
    report(dataset_report.statistics(loaded))
    report(_speed(config, machine, loaded))
    page = files.make_next(INSPECTED, config.name) / "index.html"
    title = f"{config.name}: {config.source.title}"
    pictures = dataset_report.pictures(loaded, config)
    files.write_text(page, html_pages.page(title, pictures, table=lines))
    say("written", f"{page}: this report, with examples")
    return page


def _speed(
    config: Config, machine: "Machine", data: "LoadedData"
) -> Iterator[tuple[str, object]]:
    """Measures the input pipeline and the training step."""
    from pipeline.training import speed
    from pipeline.training.run_setup import RunSetup

    # At least two epochs, because the feed is measured after the first.
    longer = {"epochs": max(2, config.train.epochs), "steps": None}
    setup = RunSetup(config.changed(train=longer), machine, data, StopSignals())
    for decision in setup.decisions:
        yield decision.name, decision
    built = setup.build()
    for decision in built.machine.decisions[len(machine.decisions) :]:
        yield decision.name, decision
    progress_bar.stage("measuring", "the input pipeline and the training step")
    with machine.strategy.scope():
        feed = speed.input_speed(setup.batches)
        step = speed.step_speed(built.model, setup.batches)
    yield "feed", f"{feed:,.0f} examples/s, the input pipeline alone"
    yield "step", f"{step:,.0f} examples/s, the model on one batch on the device"
    yield "bottleneck", speed.bottleneck(step, feed, built.machine.precision)


def main(arguments: list[str]) -> int:
    """`pipeline inspect [RECIPE or PATH] [--section.option VALUE ...]`."""
    request = command_line.request(arguments, PROGRAM, PURPOSE)
    with progress_bar.show(True):
        progress_bar.stage("importing", "TensorFlow")
        _inspect(request)
    return 0


if __name__ == "__main__":
    run_command(main)
