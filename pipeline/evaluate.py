"""Measures a run or an exported model on labelled data."""

import dataclasses
import itertools
import shlex
from pathlib import Path

from pipeline.config import cli_parser, command_line, help_text
from pipeline.config.config import Config
from pipeline.report.run import Run
from pipeline.serving import repository
from pipeline.utils import files
from pipeline.utils.console import say, say_result
from pipeline.utils.errors import UsageError, run_command

PROGRAM = "pipeline evaluate"
_PURPOSE = """\
Measures a run or an exported model on labelled data: prints its metrics and a table of
the classes, and writes report.html, pictures of the confusions and the worst
predictions, and all predictions."""
_ARGUMENTS = {
    "MODEL": (
        "The directory of a run, such as runs/digits-1; or of an exported version or"
        " model, such as saved_models/digits."
    ),
    "[--task.OPTION VALUE]": (
        "Options of the task of a run that decide how it is measured, such as"
        " --task.samples 10000 and --task.judge RUN for a model that draws pictures."
    ),
    "[--source.OPTION VALUE]": (
        "Options of the source of DATA, such as --source.label species for a table."
        " Default: columns have the names that the run used."
    ),
    "[DATA]": (
        "Class folders of images, an .npz file, ...; classes are matched by name."
        " Default: the test split of the run."
    ),
}


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """The split to measure, and the directory of the results."""

    split: str | None = None
    """The split of the data to measure. None: test, or else validation, or else all."""
    output: Path | None = None
    """Directory for the metrics, the pictures and the predictions. None: the next free
    evaluated/NAME-N."""


def _load(path: Path, words: list[str]) -> Run:
    """Opens a run, with other options of its task."""
    changes = cli_parser.changes(words, Config).get("task", {})
    config = command_line.read(path / "config.json", names_only=True)
    return Run.load(path, command_line.task_options(changes, config))


def main(arguments: list[str]) -> int:
    """`pipeline evaluate MODEL [DATA] [--option VALUE ...]`."""
    if {"--help", "-h"} & set(arguments):
        print(help_text.page(PROGRAM, _PURPOSE, EvaluateOptions(), _ARGUMENTS))
        return 0
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    of_task, rest = cli_parser.split(
        arguments[len(words) :], lambda flag: flag.startswith("--task.")
    )
    of_source, rest = cli_parser.split(rest, lambda flag: flag.startswith("--source."))
    source = cli_parser.changes(of_source, Config).get("source", {})
    options = EvaluateOptions(**cli_parser.changes(rest, EvaluateOptions))
    if len(words) not in (1, 2):
        raise UsageError(
            f"{PROGRAM} needs a run or an exported model, and perhaps data"
        )
    model = Path(words[0])
    data = Path(words[1]) if len(words) == 2 else None
    if not model.is_dir():
        raise UsageError(
            f"{model} is neither a run, such as runs/digits-1, nor an exported model"
        )
    run = _load(model, of_task) if (model / "config.json").is_file() else None
    if of_task and not run:
        raise UsageError(f"{of_task[0]} is for runs; {model} is an exported model")
    version = model if run else repository.select_version(model)
    if of_source and not data:
        raise UsageError(f"{of_source[0]} is for data: {PROGRAM} {model} DATA ...")
    if not run and not data:
        raise UsageError(f"{model} needs labelled data, or a run in its place")

    from pipeline.runtime import environment

    environment.import_tensorflow()
    from pipeline.evaluation import labelled_data
    from pipeline.report import results
    from pipeline.report.evaluation import Evaluation
    from pipeline.report.subject import Measured, Subject

    split = options.split
    if run:
        evaluation = run.evaluate(data, split, source)
    else:
        evaluated = labelled_data.evaluate_export(version, data, split, source)
        evaluation = Evaluation.of(evaluated)
    name = run.config.name if run else version.parent.name
    folder = options.output or files.make_next(Path("evaluated"), name)
    folder.mkdir(parents=True, exist_ok=True)
    say("evaluated", f"{model} on {data or 'its data'}")
    written = results.show(evaluation, folder)
    loaded = run.trainer.data if run and data is None else None
    command = shlex.join([*PROGRAM.split(), *arguments])
    measured = Measured(str(model), str(data or ""), command)
    subject = Subject(evaluation, run, loaded, measured)
    written += results.write_report(subject, folder)
    metrics = {"model": str(model), "split": evaluation.split, **evaluation.metrics}
    files.write_json(folder / "metrics.json", metrics)
    say("written", f"{folder}/: {', '.join(['metrics.json', *written])}")
    if evaluation.warning:
        say_result("warning", evaluation.warning)
    return 0


if __name__ == "__main__":
    run_command(main)
