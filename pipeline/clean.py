"""Finds examples that no run should learn from: damaged, duplicate, leaking or mislabeled."""

import os
import shlex
import sys
from collections import Counter
from pathlib import Path

from pipeline.config import command_line
from pipeline.config.config import Config
from pipeline.config.validation import require
from pipeline.data.cleaning import manifest
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import console, files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, run_command

PROGRAM = "python -m pipeline.clean"
PURPOSE = """\
Looks at every image of a recipe's source: is it damaged, blank, there twice, under two labels, in
train and in test? Writes a manifest for --clean.manifest and a gallery of what it found, and
changes nothing else. Exit code 1: a picture stands in two splits, which stops a run.

--label-noise RUN_DIRECTORY, in place of a recipe, also lists the labels that are probably wrong,
the most doubtful first (needs the package cleanlab). The run's config is trained --folds times
(default 3), each time without one part of the examples, of all splits, which that model then
judges."""
CLEANED = Path("cleaned")
_FOLDS = 3


def _check(config: Config) -> None:
    """Raises UsageError unless manifest and gallery can be written, and not over others."""
    run_directory.earlier_splits(config)
    folder = config.clean.directory or CLEANED
    files.check_writable(folder, "--clean.directory")
    files.require_outside(folder, config.source.path, "--clean.directory")
    if config.clean.directory and RunDirectory(folder).manifest.exists():
        raise UsageError(
            f"--clean.directory: {folder} holds a manifest, which may have been edited; "
            "give another folder"
        )


def _table(entries: list[manifest.Entry]) -> str:
    """For each reason: the number of examples, the action, and the first one."""
    counts = Counter((entry["reason"], entry["action"]) for entry in entries)
    rows = []
    for (reason, action), count in counts.items():
        first = next(e for e in entries if (e["reason"], e["action"]) == (reason, action))
        other = f" = {first['of_file']}" if "of" in first else ""
        detail = f" ({first['detail']})" if "detail" in first else ""
        rows.append((reason, f"{count:,}", action, first["file"] + other + detail))
    return console.table(rows, ["reason", "examples", "action", "such as"], right=[1])


def _configure(arguments: list[str]) -> tuple[Config, Path | None, int, list[str]]:
    """The config, the run whose recipe is to judge the labels, the folds, and the other words."""
    words = list(arguments)
    trained = command_line.pop_path(words, "--label-noise", "a folder, such as runs/digits-1")
    given = command_line.pop(words, "--folds", "a number, such as 3")
    if trained is None:
        if given is not None:
            raise UsageError("--folds belongs to --label-noise RUN_DIRECTORY; give both")
        return command_line.configure(words, PROGRAM, PURPOSE), None, 0, words
    from pipeline.evaluation import label_noise

    if words and not words[0].startswith("-"):
        raise UsageError(f"--label-noise {trained} has its own recipe; remove {words[0]!r}")
    folds = int(given) if given and given.isdecimal() else _FOLDS if given is None else 0
    require(2 <= folds <= 1000, "--folds", given, "a whole number from 2 to 1000")
    label_noise.require_cleanlab()
    saved = RunDirectory(trained).config
    if not saved.is_file():
        raise UsageError(f"--label-noise: {trained} is not a run directory: it has no {saved.name}")
    config = command_line.configure(["--config", str(saved), *words], PROGRAM, PURPOSE)
    if config.task.name == "regression":
        raise UsageError(f"--label-noise judges classes; the run {trained} is a regression")
    return config, trained, folds, ["--config", str(saved), *words]


def _repeated(words: list[str]) -> str:
    """The words for a run on the same data, which takes a manifest in place of `enabled`."""
    kept: list[str] = []
    value = False
    for word in words:
        flag, equals, _ = word.partition("=")
        if value and not flag.startswith("--"):
            value = False
        elif flag in ("--clean.directory", "--clean.manifest"):
            value = not equals
        elif flag not in ("--clean.enabled", "--clean.no-enabled"):
            kept.append(word)
    return shlex.join(kept or [command_line.DEFAULT_RECIPE])


def main(arguments: list[str]) -> int:
    """`python -m pipeline.clean [RECIPE] [--section.option VALUE ...]`; 1 if something stops."""
    config, trained, folds, words = _configure(arguments)
    _check(config)
    from pipeline.config.config import Runtime
    from pipeline.runtime import environment

    allowed = ("devices", "gpu_memory", "require_gpu")
    one = Runtime(replicas=1, **{n: getattr(config.runtime, n) for n in allowed})
    environment.start(config.runtime if trained else one)
    from pipeline.data import dataset
    from pipeline.data.cleaning import apply

    source, _ = dataset.opened(config)
    found = apply.Found(source, config)
    folder = config.clean.directory or files.make_next(CLEANED, config.recipe)
    folder.mkdir(parents=True, exist_ok=True)
    if trained:
        from pipeline.evaluation import label_noise
        from pipeline.fit import fit

        rest = (source, found.entries, folds, folder)
        answers = label_noise.out_of_fold(config, trained, *rest, fit=fit)
        found.doubt(label_noise.doubted(answers, source.info.class_names))
    written = RunDirectory(folder)
    found.write(written)
    say("cleaning", f"{config.source.title}: {len(found):,} examples in {found.seconds:.1f} s")
    print(_table(found.entries) if found.entries else "nothing found")
    for note in found.notes:
        say("note", note)
    say("manifest", written.manifest)
    say("gallery", written.gallery)
    if stopping := manifest.stopping(found.entries):
        say("STOPS", apply.stop(stopping, f"{written.gallery} shows them"))
        return 1
    say("next", f"{command_line.PROGRAM} {_repeated(words)} --clean.manifest {written.manifest}")
    return 0


if __name__ == "__main__":
    # A run may be using the GPU, and only training the folds needs it.
    if not any(word.startswith("--label-noise") for word in sys.argv):
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    run_command(main)
