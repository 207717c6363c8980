"""What a run leaves out, and why; `python -m pipeline.clean` looks for it and shows it."""

import dataclasses
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import command_line, manifest, run_directory, shelf
from pipeline.config import Config
from pipeline.errors import UsageError, run_command
from pipeline.run_directory import RunDirectory

if TYPE_CHECKING:  # the front door stands before TensorFlow
    from pipeline.contracts import Decision, Source

PROGRAM = "python -m pipeline.clean"
PURPOSE = """\
Looks at every image of a recipe's source: is it damaged, blank, there twice, under two labels, in
train and in test? Writes a manifest for --clean.manifest and a gallery of what it found, and
changes nothing else. Exit code 1: a picture stands in two splits, which stops a run.

--label-noise RUN_DIRECTORY, in place of a recipe, also ranks the labels that the model of a
finished run doubts, among the examples that it was not trained on (needs the package cleanlab)."""
CLEANED = Path("cleaned")


class Found:
    """What is found in a source.

    Args:
        source: Where the examples come from.
        config: Its section `clean`, and the limit of its data.

    Raises:
        UsageError: These are no images, or they cannot even be read.
    """

    def __init__(self, source: "Source", config: Config) -> None:
        from pipeline import findings, scan

        start = time.monotonic()
        self._source, self._config = source, config
        self._scan = scan.scan(source, config.data.limit)
        self.entries = findings.find(source, self._scan, config.clean.near)
        self.entries = _decided(self.entries, config)
        self.notes = [*source.info.notes, *findings.notes(source, self._scan, self.entries)]
        self.seconds = time.monotonic() - start

    def __len__(self) -> int:
        return len(self._scan)

    def doubt(self, details: dict[int, str]) -> None:
        """Lists labels that a model doubts too: id -> what it says of them."""
        from pipeline import findings

        self.entries += findings.doubted(self._source, self._scan, details)

    def write(self, run: RunDirectory) -> None:
        """Manifest and gallery into a folder that is there."""
        from pipeline import gallery, scan

        manifest.write(run.manifest, self.entries)
        shown = [id for e in gallery.shown(self.entries) for id in (e["id"], e.get("of", e["id"]))]
        rows = self._scan.rows(set(shown))
        pictures = scan.pictures(self._source, self._scan, rows, gallery.SIDE)
        of_ids = {int(self._scan.id[row]): png for row, png in pictures.items()}
        title = f"{self._config.recipe}: {len(self):,} examples"
        run_directory.write_text(run.gallery, gallery.page(title, self.entries, of_ids, self.notes))


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """What a run obeys."""

    dropped: dict[int, str] = dataclasses.field(default_factory=dict)
    """Id -> reason of the examples to leave out."""
    groups: dict[int, int] = dataclasses.field(default_factory=dict)
    """Id -> group of examples that no split may divide; the others are alone."""
    decisions: "tuple[Decision, ...]" = ()
    found: Found | None = None
    """What this run has found itself and is still to write."""

    def write(self, run: RunDirectory) -> None:
        """Manifest and gallery, if they are this run's own and not there yet."""
        if self.found is not None:
            self.found.write(run)


def clean(source: "Source", config: Config) -> Cleaning:
    """What the section `clean` of a config asks for; nothing is written yet.

    A run that is resumed keeps the manifest that it began with.

    Raises:
        UsageError: The manifest cannot be read, or something stops the run.
    """
    from pipeline.contracts import Decision

    options, notes = config.clean, []
    before = RunDirectory(config.run_directory).manifest if config.run_directory else None
    found = None
    if not options.enabled and options.manifest is None:
        return Cleaning()
    if not options.enabled:
        entries, where = _decided(manifest.read(options.manifest), config), options.manifest
    elif before is not None and before.is_file():
        entries, where = manifest.read(before), "as this run began"
    else:
        found = Found(source, config)
        entries, notes = found.entries, found.notes
        where = f"of {len(found):,} examples, looked at in {found.seconds:.0f} s"
    if stopping := manifest.stopping(entries):
        raise UsageError(_stop(stopping, config))
    counts = Counter(e["reason"] for e in entries if e["action"] == "drop")
    value = ", ".join(f"{count:,} {reason}" for reason, count in counts.items()) or "nothing"
    decisions = [Decision("left out", value, str(where))]
    decisions += [Decision("note", note, "found while cleaning") for note in notes]
    return Cleaning(manifest.dropped(entries), manifest.groups(entries), tuple(decisions), found)


def _decided(entries: list[manifest.Entry], config: Config) -> list[manifest.Entry]:
    if config.clean.drop_leakage:
        return manifest.decided(entries, "drop")
    return manifest.decided(entries, "keep" if config.clean.allow_leakage else "stop")


def _stop(stopping: list[manifest.Entry], config: Config) -> str:
    """Why no run goes on, and what to do."""
    first = stopping[0]
    twice = f" is also {first['of_split']}'s {first['of_file']}" if "of_file" in first else ""
    return (
        f"{first['reason']}: {first.get('split', 'example')}'s {first.get('file', first['id'])}"
        f"{twice} ({len(stopping):,} such examples); --clean.drop-leakage leaves them out, "
        f"--clean.allow-leakage goes on, {PROGRAM} {config.recipe} shows them"
    )


def _check(config: Config) -> None:
    """Raises UsageError unless manifest and gallery can be written, and not over others."""
    folder = config.clean.directory or CLEANED
    run_directory.check_writable(folder, "--clean.directory")
    data = config.source.path
    if data and data.is_dir() and folder.resolve().is_relative_to(data.resolve()):
        raise UsageError(f"{folder} lies in {data}, the data; give another --clean.directory")
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


def _configure(arguments: list[str]) -> tuple[Config, Path | None]:
    """The config, and the run whose model is to judge the labels."""
    words = list(arguments)
    trained = command_line.pop_path(words, "--label-noise", "a folder, such as runs/digits-1")
    if trained is None:
        return command_line.configure(words, PROGRAM, PURPOSE), None
    from pipeline import label_noise

    if words and not words[0].startswith("-"):
        raise UsageError(f"--label-noise {trained} has its own recipe; leave {words[0]!r} away")
    label_noise.require_cleanlab()
    words = ["--config", str(RunDirectory(trained).config), *words]
    return command_line.configure(words, PROGRAM, PURPOSE), trained


def _doubted(source: "Source", config: Config, trained: Path) -> dict[int, str]:
    """What the exported model of a run says of its held-out labels."""
    from pipeline import label_noise, splits, stream

    run, config = RunDirectory(trained), config.changed(run_directory=trained)
    result = run_directory.finished(config, run)
    if not result or not result["export"]:
        raise UsageError(
            f"--label-noise: {trained} has no export that is still there; repeat its command with "
            f"--run-directory {trained}"
        )
    facts = json.loads(run.facts.read_text(encoding="utf-8"))
    task = shelf.take("tasks", config.task)(facts)
    cleaning = clean(source, config)
    parts, _ = stream.load(source, task, config, cleaning.dropped, cleaning.groups)
    splits.require_same_examples(run.splits, parts, source.location)
    return label_noise.doubted(Path(result["export"]), parts, tuple(facts["class_names"]))


def main(arguments: list[str]) -> int:
    """`python -m pipeline.clean [RECIPE] [--section.option VALUE ...]`; 1 if something stops."""
    config, trained = _configure(arguments)
    _check(config)
    from pipeline import runtime
    from pipeline.config import Runtime

    runtime.start(Runtime(replicas=1))
    from pipeline.report import say

    source = shelf.take("sources", config.source.name)(**config.source.options())
    doubted = _doubted(source, config, trained) if trained else {}
    found = Found(source, config)
    found.doubt(doubted)
    folder = config.clean.directory or run_directory.make_next(CLEANED, config.recipe)
    folder.mkdir(parents=True, exist_ok=True)
    written = RunDirectory(folder)
    found.write(written)
    say("cleaning", f"{config.recipe}: {len(found):,} examples in {found.seconds:.1f} s")
    print(_table(found.entries) if found.entries else "nothing found")
    for note in found.notes:
        say("note", note)
    say("manifest", written.manifest)
    say("gallery", written.gallery)
    if stopping := manifest.stopping(found.entries):
        say("STOPS", _stop(stopping, config))
        return 1
    say("next", f"python -m pipeline.fit {config.recipe} --clean.manifest {written.manifest}")
    return 0


if __name__ == "__main__":
    # A run may be using the GPU, and this does not need it.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    run_command(main)
