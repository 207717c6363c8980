"""Looks for what no run should learn from: `python -m pipeline.clean [RECIPE]`."""

import os
import shlex
from collections import Counter
from pathlib import Path

from pipeline import command_line, files, manifest, outcome, run_directory
from pipeline.config import Config
from pipeline.errors import UsageError, run_command
from pipeline.run_directory import RunDirectory

PROGRAM = "python -m pipeline.clean"
PURPOSE = """\
Looks at every image of a recipe's source: is it damaged, blank, there twice, under two labels, in
train and in test? Writes a manifest for --clean.manifest and a gallery of what it found, and
changes nothing else. Exit code 1: a picture stands in two splits, which stops a run.

--label-noise RUN_DIRECTORY, in place of a recipe, also ranks the labels that the model of a
finished run doubts, among the examples that it was not trained on (needs the package cleanlab)."""
CLEANED = Path("cleaned")


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
    """A line for each reason: how many, what is done, the first one."""
    rows = [("reason", "examples", "action", "such as")]
    for (reason, action), count in Counter((e["reason"], e["action"]) for e in entries).items():
        first = next(e for e in entries if (e["reason"], e["action"]) == (reason, action))
        other = f" = {first['of_file']}" if "of" in first else ""
        detail = f" ({first['detail']})" if "detail" in first else ""
        rows.append((reason, f"{count:,}", action, first["file"] + other + detail))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:<{widths[2]}}  {d}" for a, b, c, d in rows
    )


def _configure(arguments: list[str]) -> tuple[Config, Path | None, list[str]]:
    """The config, the run whose model is to judge the labels, and the words without that."""
    words = list(arguments)
    trained = command_line.pop_path(words, "--label-noise", "a folder, such as runs/digits-1")
    if trained is None:
        return command_line.configure(words, PROGRAM, PURPOSE), None, words
    from pipeline import label_noise

    if words and not words[0].startswith("-"):
        raise UsageError(f"--label-noise {trained} has its own recipe; leave {words[0]!r} away")
    label_noise.require_cleanlab()
    words = ["--config", str(RunDirectory(trained).config), *words]
    return command_line.configure(words, PROGRAM, PURPOSE), trained, words


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


def _doubted(config: Config, trained: Path) -> dict[int, str]:
    """What the exported model of a run says of its held-out labels."""
    from pipeline import data, label_noise

    config = config.changed(run_directory=trained)
    result = outcome.finished(config, RunDirectory(trained))
    if not result or not result["export"]:
        raise UsageError(
            f"--label-noise: {trained} has no export that is still there; repeat its command with "
            f"--run-directory {trained}"
        )
    loaded = data.load(config)
    names = tuple(loaded.facts["class_names"])
    return label_noise.doubted(Path(result["export"]), loaded.splits, names)


def main(arguments: list[str]) -> int:
    """`python -m pipeline.clean [RECIPE] [--section.option VALUE ...]`; 1 if something stops."""
    config, trained, words = _configure(arguments)
    _check(config)
    from pipeline import runtime
    from pipeline.config import Runtime

    allowed = ("devices", "gpu_memory", "require_gpu")
    runtime.start(Runtime(replicas=1, **{n: getattr(config.runtime, n) for n in allowed}))
    from pipeline import cleaning, data
    from pipeline.report import say

    source, _ = data.opened(config)
    doubted = _doubted(config, trained) if trained else {}
    found = cleaning.Found(source, config)
    found.doubt(doubted)
    folder = config.clean.directory or files.make_next(CLEANED, config.recipe)
    folder.mkdir(parents=True, exist_ok=True)
    written = RunDirectory(folder)
    found.write(written)
    say("cleaning", f"{config.source.title}: {len(found):,} examples in {found.seconds:.1f} s")
    print(_table(found.entries) if found.entries else "nothing found")
    for note in found.notes:
        say("note", note)
    say("manifest", written.manifest)
    say("gallery", written.gallery)
    if stopping := manifest.stopping(found.entries):
        say("STOPS", cleaning.stop(stopping, f"{written.gallery} shows them"))
        return 1
    say("next", f"{command_line.PROGRAM} {_repeated(words)} --clean.manifest {written.manifest}")
    return 0


if __name__ == "__main__":
    # A run may be using the GPU, and this does not need it.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    run_command(main)
