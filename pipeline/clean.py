"""Finds examples to exclude from training: damaged, duplicate, leaking or
mislabeled.
"""

import dataclasses
import importlib.util
import os
import shlex
import sys
from pathlib import Path

from pipeline.config import command_line
from pipeline.config.config import Config
from pipeline.config.validation import require
from pipeline.data.cleaning import manifest
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import console, files, progress_bar
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, run_command

PROGRAM = "pipeline clean"
_ANY_SIZE = {"image_size": (32, 32)}
PURPOSE = """\
Finds examples of a recipe's source that are damaged, duplicate, have two different
labels, or are in two splits; images and texts that are nearly duplicate, and images
that are blank. Writes a manifest for --clean.manifest and a gallery of the findings;
changes nothing else. The exit code is 1 if an example is in two splits, because this
stops a run.

--label-noise RUN_DIRECTORY, instead of a recipe, also lists the labels that are
probably wrong, the most suspicious first (needs the package cleanlab). It trains the
run's config --folds times (default: 3), each time without a part of the examples, and
evaluates the model on this part."""
CLEANED = Path("cleaned")
_LABELS = (
    "not checked, except of copies; once a run is trained on this data, pipeline clean"
    " --label-noise RUN_DIRECTORY lists those that are probably wrong"
)


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
    """A table of the reasons: number of examples, action and the first example."""
    groups: dict[tuple[str, str], list[manifest.Entry]] = {}
    for entry in entries:
        groups.setdefault((entry["reason"], entry["action"]), []).append(entry)
    rows = []
    for (reason, action), group in groups.items():
        first = group[0]
        example = first["file"]
        if "of" in first:
            example += f" = {first['of_file']}"
        if "detail" in first:
            example += f" ({first['detail']})"
        rows.append((reason, f"{len(group):,}", action, example))
    headers = ["reason", "examples", "action", "first example"]
    return console.table(rows, headers, right=[1])


def _configure(arguments: list[str]) -> tuple[Config, int, list[str]]:
    """The config, the number of folds (0 without --label-noise), and the words for
    `fit`.
    """
    words = list(arguments)
    run = command_line.pop_path(
        words, "--label-noise", "a directory, such as runs/digits-1"
    )
    folds_word = command_line.pop(words, "--folds", "a number, such as 3")
    if run is None:
        if folds_word is not None:
            raise UsageError("--folds requires --label-noise RUN_DIRECTORY")
        return command_line.configure(words, PROGRAM, PURPOSE), 0, words
    if words and not words[0].startswith("-"):
        raise UsageError(
            f"--label-noise {run} uses the run's recipe; remove {words[0]!r}"
        )
    folds = _parse_folds(folds_word or "3")
    if importlib.util.find_spec("cleanlab") is None:
        raise UsageError(
            "--label-noise requires the package cleanlab: pip install cleanlab"
        )
    saved = command_line.config_file(run)
    words = ["--config", str(saved), *words]
    return command_line.configure(words, PROGRAM, PURPOSE), folds, words


def _parse_folds(word: str) -> int:
    folds = int(word) if word.isdecimal() else 0
    require(2 <= folds <= 1000, "--folds", word, "a whole number from 2 to 1000")
    return folds


def main(arguments: list[str]) -> int:
    """`pipeline clean [RECIPE or PATH] [--option VALUE ...]`.

    Returns 1 if a finding stops runs.
    """
    config, folds, words = _configure(arguments)
    _check(config)
    from pipeline.runtime import environment

    runtime = config.runtime
    if not folds:
        runtime = dataclasses.replace(runtime, replicas=1)
    with progress_bar.show(True):
        progress_bar.stage("importing", "TensorFlow")
        environment.start(runtime)
        from pipeline.data import dataset
        from pipeline.data.cleaning import apply, issues
        from pipeline.evaluation import label_noise

        source = dataset.open_source(config)
        if "image" in source.info.fields and config.data.image_size is None:
            # Images of any sizes are searched, but a task needs one size.
            task = dataset.create_task(config.changed(data=_ANY_SIZE), source.info)
        else:
            task = dataset.create_task(config, source.info)
        if folds:
            label_noise.require_classes(task)
        findings = apply.Findings(source, config, task)
    folder = config.clean.directory or files.make_next(CLEANED, config.name)
    folder.mkdir(parents=True, exist_ok=True)
    if folds:
        from pipeline.fit import fit

        predictions = label_noise.out_of_fold(
            config, source, findings.entries, folds, folder, fit=fit
        )
        noise = label_noise.suspicious(predictions, source.info.class_names or ())
        findings.entries += issues.label_noise(source, findings.scan, noise)
    directory = RunDirectory(folder)
    findings.write(directory)
    count = f"{len(findings.scan):,} examples in {findings.seconds:.1f} s"
    say("cleaning", f"{config.source.title}: {count}")
    print(_table(findings.entries) if findings.entries else "nothing found")
    if not folds and label_noise.has_classes(task):
        say("labels", _LABELS)
    for note in (*source.info.notes, *findings.notes):
        say("note", note)
    say("manifest", directory.manifest)
    say("gallery", directory.gallery)
    stopping = manifest.stopping(findings.entries)
    if stopping:
        say("STOPS", apply.stop_message(stopping, f"{directory.gallery} shows them"))
        return 1
    # Later options override earlier ones; a run uses either a manifest or its own
    # cleaning.
    words = words or [command_line.DEFAULT_RECIPE]
    if config.clean.enabled:
        words.append("--clean.no-enabled")
    words += ["--clean.manifest", str(directory.manifest)]
    if findings.entries:
        say("next", f"{command_line.PROGRAM} {shlex.join(words)}")
    return 0


if __name__ == "__main__":
    # Another run may be using the GPU; only training the folds needs it.
    if not any(word.startswith("--label-noise") for word in sys.argv):
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    run_command(main)
