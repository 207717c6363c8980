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

from pipeline.config import cli_parser, command_line, help_text
from pipeline.config.config import Config
from pipeline.config.request import Request
from pipeline.runtime import environment, environment_check, signals
from pipeline.timing import processes, record
from pipeline.timing.rounds import Failed, Line
from pipeline.training.resolve import resolve
from pipeline.utils import files, progress_bar, temp_files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, run_command

_Part = Literal["training", "serving", "startup", "memory"]
_PARTS: tuple[_Part, ...] = ("training", "serving", "startup", "memory")
PROGRAM = "python -m pipeline.bench"
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
    directory: Path = Path("benchmarks")
    """Where the record is written, as Markdown and as JSON."""


def measured(request: Request, options: Options) -> tuple[dict[str, Any], list[Line]]:
    """Facts about what was measured, and the lines of the table.

    Processes come first: on Linux, their peak memory is at least that of this process.
    """
    lines: list[Line] = []
    facts: dict[str, Any] = {}
    measure = (options.seconds, options.rounds)
    if "startup" in options.only:
        with _noted("start-up", lines):
            lines += processes.startup(options.rounds)
    if "memory" in options.only:
        with _noted("memory", lines):
            lines += processes.memory(min(3, options.rounds))
    if not {"training", "serving"} & {*options.only}:
        return facts, lines
    progress_bar.stage("importing", "TensorFlow")
    machine = environment.start(request.config.runtime)
    from pipeline.data import dataset
    from pipeline.timing import peers, speed

    with temp_files.temporary() as folder, _noted("training", lines):
        asked, source = speed.available(request.config, options.synthetic, folder)
        config = resolve(dataclasses.replace(request, config=asked), machine)
        training = speed.Training(config, machine, dataset.load(config))
        shape = "x".join(map(str, training.model.input_shape[1:]))
        decided = [
            f"batch {config.train.batch_size} of {shape}",
            *training.machine.decisions,
        ]
        about = {"data": source, config.model.name: "; ".join(map(str, decided))}
        lines += [Line("training", name, note=note) for name, note in about.items()]
        with training.machine.strategy.scope():
            if "training" in options.only:
                against = (options.against, options.torch_python)
                found, facts["peers"] = peers.training_lines(
                    training, *against, *measure
                )
                lines += found
            if "serving" in options.only:
                lines += speed.serving_lines(training, folder / "export", *measure)
    return facts, lines


@contextlib.contextmanager
def _noted(part: str, lines: list[Line]) -> Iterator[None]:
    """Turns an error into a line of the table."""
    try:
        yield
    except (Failed, UsageError) as error:
        lines.append(Line(part, "not measured", note=str(error)))


def _configured(arguments: list[str]) -> tuple[Request, Options]:
    """The config of the recipe, and the options of this command."""
    words: dict[bool, list[str]] = {False: [], True: []}
    known, is_own = cli_parser.flags(Options), False
    for word in arguments:
        name = word.partition("=")[0]
        if name.startswith("--"):
            of_run = {*cli_parser.meant(name, Config)} & cli_parser.flags(Config).keys()
            is_own = name in known or bool(cli_parser.near(name, known) and not of_run)
        words[is_own].append(word)
    if not words[False] or (
        words[False][0].startswith("-") and "--config" not in words[False]
    ):
        words[False][:0] = _RECIPE
    options = Options(**cli_parser.changes(words[True], Options))
    return command_line.request(words[False], PROGRAM), options


def main(arguments: list[str]) -> int:
    """`python -m pipeline.bench [RECIPE] [--option VALUE ...]`."""
    if arguments in (["--help"], ["-h"]):
        about = " ".join((Options.__doc__ or "").split())
        print(help_text.page(PROGRAM, about, Options(), _ARGUMENTS))
        return 0
    request, options = _configured(arguments)
    if options.torch_python and not shutil.which(options.torch_python):
        raise UsageError(f"--torch-python: {options.torch_python} is not a program")
    files.check_writable(options.directory, "--directory")
    if "torch" in options.against and (
        how := processes.missing_torch(options.torch_python)
    ):
        say("PyTorch", how)
    with signals.Stops().listening(), progress_bar.shown(True):
        facts, lines = measured(request, options)
    print(record.table(lines))
    date = str(datetime.date.today())
    facts = {
        "command": f"{PROGRAM} {shlex.join(arguments)}",
        "date": date,
        "hardware": environment_check.hardware(),
        "versions": ", ".join(f"{k} {v}" for k, v in environment.versions().items()),
        **facts,
    }
    say(
        "written",
        record.write(
            options.directory, f"bench_{request.config.recipe}_{date}", facts, lines
        ),
    )
    return int(any(line.name == "not measured" for line in lines))


if __name__ == "__main__":
    run_command(main)
