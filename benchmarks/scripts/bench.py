"""Measures speed, start-up and memory on this machine, also beside Keras
and PyTorch.
"""

import contextlib
import dataclasses
import datetime
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from benchmarks.scripts.timing import processes, record
from benchmarks.scripts.timing.rounds import Line, MeasurementError
from pipeline.config import cli_parser, command_line, help_text
from pipeline.config.config import Config
from pipeline.config.request import Request
from pipeline.runtime import environment, environment_check, signals
from pipeline.training.resolve import resolve
from pipeline.utils import files, progress_bar, temp_files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, run_command

_Part = Literal["training", "serving", "startup", "memory"]
_PARTS: tuple[_Part, ...] = ("training", "serving", "startup", "memory")
PROGRAM = "python -m benchmarks.scripts.bench"
_RECIPE = ["cifar10_convnet", "--train.batch-size", "128"]
_ARGUMENTS = {
    "RECIPE": (
        f"A recipe, or the path of images; by default {' '.join(_RECIPE)}. Options of a"
        " run may follow, such as --data.augment flip crop."
    )
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Measures, in interleaved rounds, the training step on one batch that stays on the
    device, training with both engines, the input pipeline, evaluation, an export,
    start-up and memory. Prints one table with ratios and targets, and writes a record
    of it.
    """

    against: tuple[Literal["keras", "torch"], ...] = ()
    """Also train the same network with plain Keras or PyTorch, in processes of their
    own.
    """
    torch_python: str = ""
    """An interpreter with PyTorch; by default, this one."""
    only: tuple[_Part, ...] = _PARTS
    """Parts to measure."""
    synthetic: bool = False
    """Train on random images, as if the data of the recipe were not available."""
    rounds: Annotated[int, (1, 1000)] = 11
    """Number of rounds; with all parts and peers, 11 take about 20 minutes."""
    seconds: Annotated[float, "positive"] = 2.0
    """How long each line is measured in a round."""
    directory: Path = Path("benchmarks/records")
    """Where the record is written, in a directory named after the date and the
    machine.
    """


def measure(request: Request, options: Options) -> tuple[dict[str, Any], list[Line]]:
    """What the peers were, and the lines of the table.

    Processes come first: on Linux, their peak memory is at least that of this process.
    """
    lines: list[Line] = []
    facts: dict[str, Any] = {}
    if "startup" in options.only:
        with _failures_as_lines("start-up", lines):
            lines += processes.startup(options.rounds)
    if "memory" in options.only:
        with _failures_as_lines("memory", lines):
            lines += processes.memory(min(3, options.rounds))
    if {"training", "serving"} & {*options.only}:
        progress_bar.stage("importing", "TensorFlow")
        with _failures_as_lines("training", lines):
            _measure_model(request, options, facts, lines)
    return facts, lines


def _measure_model(
    request: Request, options: Options, facts: dict[str, Any], lines: list[Line]
) -> None:
    """Adds the lines of training and serving, which need TensorFlow."""
    machine = environment.start(request.config.runtime)
    from benchmarks.scripts.timing import peers, speed
    from pipeline.data import dataset

    rounds = (options.seconds, options.rounds)
    with temp_files.temporary() as folder:
        config, source = speed.choose_data(request.config, options.synthetic, folder)
        config = resolve(dataclasses.replace(request, config=config), machine)
        training = speed.Training(config, machine, dataset.load(config))
        shape = "x".join(map(str, training.model.input_shape[1:]))
        settings = [
            f"batch {config.train.batch_size} of {shape}",
            *map(str, training.machine.decisions),
        ]
        lines.append(Line("training", "data", note=source))
        lines.append(Line("training", config.model.name, note="; ".join(settings)))
        with training.machine.strategy.scope():
            if "training" in options.only:
                training_lines, facts["peers"] = peers.training_lines(
                    training, options.against, options.torch_python, *rounds
                )
                lines += training_lines
            if "serving" in options.only:
                lines += speed.serving_lines(training, folder / "export", *rounds)


@contextlib.contextmanager
def _failures_as_lines(part: str, lines: list[Line]) -> Iterator[None]:
    """Turns an error into a line of the table."""
    try:
        yield
    except (MeasurementError, UsageError) as error:
        lines.append(Line(part, "not measured", note=str(error)))


def _parse(arguments: list[str]) -> tuple[Request, Options]:
    """The request for the recipe, and the options of this script.

    An option may be misspelled: it is one of this script if it is near one, unless it
    could be one of a run.
    """
    own_flags = cli_parser.flags(Options)
    run_flags = cli_parser.flags(Config).keys()
    of_script: list[str] = []
    of_run: list[str] = []
    words = of_run
    for word in arguments:
        name = word.partition("=")[0]
        if name in own_flags:
            words = of_script
        elif name.startswith("--"):
            is_of_run = bool({*cli_parser.matching_flags(name, Config)} & run_flags)
            is_near = bool(cli_parser.similar_flags(name, own_flags))
            words = of_script if is_near and not is_of_run else of_run
        words.append(word)
    has_recipe = bool(of_run) and not of_run[0].startswith("-")
    if not has_recipe and "--config" not in of_run:
        of_run = [*_RECIPE, *of_run]
    options = Options(**cli_parser.changes(of_script, Options))
    return command_line.request(of_run, PROGRAM), options


def main(arguments: list[str]) -> int:
    """`python -m benchmarks.scripts.bench [RECIPE] [--option VALUE ...]`."""
    if arguments in (["--help"], ["-h"]):
        about = " ".join((Options.__doc__ or "").split())
        print(help_text.page(PROGRAM, about, Options(), _ARGUMENTS))
        return 0
    request, options = _parse(arguments)
    if options.torch_python and not shutil.which(options.torch_python):
        raise UsageError(f"--torch-python: {options.torch_python} is not a program")
    files.check_writable(options.directory, "--directory")
    if "torch" in options.against and (
        how := processes.torch_hint(options.torch_python)
    ):
        say("PyTorch", how)
    with signals.StopSignals().listening(), progress_bar.show(True):
        facts, lines = measure(request, options)
    print(record.table(lines))
    date = str(datetime.date.today())
    facts = {
        "command": f"{PROGRAM} {shlex.join(arguments)}",
        "date": date,
        "hardware": environment_check.hardware(),
        "versions": ", ".join(f"{k} {v}" for k, v in environment.versions().items()),
        **facts,
    }
    folder = options.directory / f"{date}-{record.machine()}"
    name = f"bench_{request.config.recipe}"
    say("written", record.write(folder, name, facts, lines))
    return int(any(line.name == "not measured" for line in lines))


if __name__ == "__main__":
    run_command(main)
