"""Finds examples to exclude from training: damaged, duplicate, leaking or
mislabeled.
"""

import dataclasses
import importlib.util
import os
import shlex
import sys
from collections import Counter
from pathlib import Path

from pipeline.config import command_line
from pipeline.config.config import Config
from pipeline.config.validation import require
from pipeline.data.cleaning import manifest
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import console, files, progress_bar
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, run_command

PROGRAM = "python -m pipeline.clean"
PURPOSE = """\
Finds images of a recipe's source that are damaged, blank, duplicate, have two different
labels, or are in two splits. Writes a manifest for --clean.manifest and a gallery of
the findings; changes nothing else. The exit code is 1 if an image is in two splits,
because this stops a run.

--label-noise RUN_DIRECTORY, instead of a recipe, also lists the labels that are
probably wrong, the most suspicious first (needs the package cleanlab). It trains the
run's config --folds times (default: 3), each time without one part of the examples, and
evaluates the model on that part."""
CLEANED = Path("cleaned")


def _check(config: Config) -> None:
    """Raises UsageError if the manifest or the gallery cannot be written or already
    exists.
    """
    folder = config.clean.directory or CLEANED
    files.check_writable(folder, "--clean.directory")
    files.require_outside(folder, config.source.path, "--clean.directory")
    if config.clean.directory and RunDirectory(folder).manifest.exists():
        raise UsageError(
            f"--clean.directory: {folder} contains a manifest, which may have been"
            " edited; choose another directory"
        )


def _table(entries: list[manifest.Entry]) -> str:
    """A table with the number of examples, the action and the first example for each
    reason.
    """
    counts = Counter((entry["reason"], entry["action"]) for entry in entries)
    rows = []
    for (reason, action), count in counts.items():
        first = next(
            e for e in entries if (e["reason"], e["action"]) == (reason, action)
        )
        other = f" = {first['of_file']}" if "of" in first else ""
        detail = f" ({first['detail']})" if "detail" in first else ""
        rows.append((reason, f"{count:,}", action, first["file"] + other + detail))
    return console.table(
        rows, ["reason", "examples", "action", "first example"], right=[1]
    )


def _configure(arguments: list[str]) -> tuple[Config, int, list[str]]:
    """The config, the number of folds (0 without --label-noise), and the words for
    `fit`.
    """
    words = list(arguments)
    trained = command_line.pop_path(
        words, "--label-noise", "a directory, such as runs/digits-1"
    )
    given = command_line.pop(words, "--folds", "a number, such as 3")
    if trained is None:
        if given is not None:
            raise UsageError("--folds requires --label-noise RUN_DIRECTORY")
        return command_line.configure(words, PROGRAM, PURPOSE), 0, words
    if words and not words[0].startswith("-"):
        raise UsageError(
            f"--label-noise {trained} uses the run's recipe; remove {words[0]!r}"
        )
    folds = 3 if given is None else int(given) if given.isdecimal() else 0
    require(2 <= folds <= 1000, "--folds", given, "a whole number from 2 to 1000")
    if importlib.util.find_spec("cleanlab") is None:
        raise UsageError(
            "--label-noise requires the package cleanlab: pip install cleanlab"
        )
    saved = command_line.config_file(trained)
    words = ["--config", str(saved), *words]
    config = command_line.configure(words, PROGRAM, PURPOSE)
    if config.task.name == "regression":
        raise UsageError(
            f"--label-noise requires classes, but the task of {trained} is regression"
        )
    return config, folds, words


def main(arguments: list[str]) -> int:
    """`python -m pipeline.clean [RECIPE or PATH] [--option VALUE ...]`; returns 1 if a
    finding stops runs.
    """
    config, folds, words = _configure(arguments)
    _check(config)
    from pipeline.runtime import environment

    runtime = (
        config.runtime if folds else dataclasses.replace(config.runtime, replicas=1)
    )
    with progress_bar.shown(True):
        progress_bar.stage("importing", "TensorFlow")
        environment.start(runtime)
        from pipeline.data import dataset
        from pipeline.data.cleaning import apply, issues

        source = dataset.open_source(config)
        found = apply.Findings(source, config)
    folder = config.clean.directory or files.make_next(CLEANED, config.name)
    folder.mkdir(parents=True, exist_ok=True)
    if folds:
        from pipeline.evaluation import label_noise
        from pipeline.fit import fit

        answers = label_noise.out_of_fold(
            config, source, found.entries, folds, folder, fit=fit
        )
        noise = label_noise.suspicious(answers, source.info.class_names or ())
        found.entries += issues.label_noise(source, found.scan, noise)
    written = RunDirectory(folder)
    found.write(written)
    say(
        "cleaning",
        f"{config.source.title}: {len(found.scan):,} examples in {found.seconds:.1f} s",
    )
    print(_table(found.entries) if found.entries else "nothing found")
    for note in (*source.info.notes, *found.notes):
        say("note", note)
    say("manifest", written.manifest)
    say("gallery", written.gallery)
    if stopping := manifest.stopping(found.entries):
        say("STOPS", apply.stop_message(stopping, f"{written.gallery} shows them"))
        return 1
    # Later options override earlier ones; a run uses either a manifest or its own
    # cleaning.
    words = words or [command_line.DEFAULT_RECIPE]
    words += ["--clean.no-enabled"] if config.clean.enabled else []
    words += ["--clean.manifest", str(written.manifest)]
    if found.entries:
        say("next", f"{command_line.PROGRAM} {shlex.join(words)}")
    return 0


if __name__ == "__main__":
    # Another run may be using the GPU; only training the folds needs it.
    if not any(word.startswith("--label-noise") for word in sys.argv):
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    run_command(main)
