"""Measures a run or an exported model on labelled data."""

import dataclasses
import os
from pathlib import Path

from pipeline.config import cli_parser, command_line, data_path, help_text
from pipeline.config.sections import Runtime
from pipeline.config.validation import require_path
from pipeline.report.run import Run
from pipeline.utils import files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, run_command

PROGRAM = "python -m pipeline.evaluate"
_ABOUT = """\
Measures a run or an exported model on labelled data: prints its metrics and a table of the classes,
and writes pictures of the confusions and the worst answers, and all predictions."""
_ARGUMENTS = {
    "MODEL": "The directory of a run, such as runs/digits-1; or of an exported version or model, "
    "such as saved_models/digits.",
    "[DATA]": "Class folders of images, an .npz file, ...; classes are matched by name. Default: "
    "the test split of the run.",
}
_EVALUATED = Path("evaluated")


@dataclasses.dataclass(frozen=True)
class Options:
    """What to measure, and where to write it."""

    split: str | None = None
    """The split of the data to measure. None: test, or else validation, or else train."""
    output: Path | None = None
    """Directory for the metrics, the pictures and the predictions. None: the next free
    evaluated/NAME-N."""


def main(arguments: list[str]) -> int:
    """`python -m pipeline.evaluate MODEL [DATA] [--option VALUE ...]`."""
    if {"--help", "-h"} & set(arguments):
        print(help_text.page(PROGRAM, _ABOUT, Options(), _ARGUMENTS))
        return 0
    words = list(arguments)
    named = [Path(words.pop(0)) for word in arguments[:2] if words and words[0][:1] != "-"]
    options = Options(**cli_parser.changes(words, Options))
    if not named:
        raise UsageError(f"{PROGRAM} needs a run or an exported model, such as runs/digits-1")
    model, data = named[0], (*named[1:], None)[0]
    for path, name in ((model, "MODEL"), (data, "DATA"), (options.output, "--output")):
        require_path(path or Path(), name)
    files.check_writable(options.output or _EVALUATED, "--output")
    if not model.is_dir():
        raise UsageError(f"{model} is neither a run, such as runs/digits-1, nor an exported model")
    if data and not data.exists():
        data_path.source(data)  # the error, before TensorFlow is imported
    run = Run.load(model) if (model / "config.json").is_file() else None
    if run and not data:
        command_line.read(model / "config.json")  # an error now if the data is gone

    from pipeline.runtime import environment

    environment.start(dataclasses.replace(run.config.runtime, replicas=1) if run else Runtime())
    from pipeline.report import results, stored, tables

    name, found = (
        (run.config.recipe, run.evaluate(data, options.split))
        if run
        else stored.evaluated_export(model, data, options.split)
    )
    folder = options.output or files.make_next(_EVALUATED, name)
    folder.mkdir(parents=True, exist_ok=True)
    say("evaluated", f"{model} on {found.split} of {data or 'its data'}")
    say(found.split, tables.numbers(found.metrics))
    results.show(found, folder, None)
    files.write_json(folder / "metrics.json", {"model": str(model), **found.metrics})
    say("written", f"{folder}/: metrics.json, predictions.csv, pictures")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    run_command(main)
