"""What a run leaves out, and why: from a manifest that a person gave, or from looking itself."""

import dataclasses
import time
from collections import Counter
from typing import TYPE_CHECKING

from pipeline import files, manifest
from pipeline.config import Config
from pipeline.errors import UsageError
from pipeline.run_directory import RunDirectory

if TYPE_CHECKING:  # the front door stands before TensorFlow
    from pipeline.contracts import Decision, Source


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
        self.entries = decided(self.entries, config)
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
        files.write_text(run.gallery, gallery.page(title, self.entries, of_ids, self.notes))


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
        entries, where = decided(manifest.read(options.manifest), config), options.manifest
    elif before is not None and before.is_file():
        entries, where = manifest.read(before), "as this run began"
    else:
        found = Found(source, config)
        entries, notes = found.entries, found.notes
        where = f"of {len(found):,} examples, looked at in {found.seconds:.0f} s"
    if stopping := manifest.stopping(entries):
        raise UsageError(stop(stopping, config))
    counts = Counter(e["reason"] for e in entries if e["action"] == "drop")
    value = ", ".join(f"{count:,} {reason}" for reason, count in counts.items()) or "nothing"
    decisions = [Decision("left out", value, str(where))]
    decisions += [Decision("note", note, "found while cleaning") for note in notes]
    return Cleaning(manifest.dropped(entries), manifest.groups(entries), tuple(decisions), found)


def decided(entries: list[manifest.Entry], config: Config) -> list[manifest.Entry]:
    """The entries with the action for leakage that the config asks for."""
    if config.clean.drop_leakage:
        return manifest.decided(entries, "drop")
    return manifest.decided(entries, "keep" if config.clean.allow_leakage else "stop")


def stop(stopping: list[manifest.Entry], config: Config) -> str:
    """Why no run goes on, and what to do."""
    first = stopping[0]
    twice = f" is also {first['of_split']}'s {first['of_file']}" if "of_file" in first else ""
    return (
        f"{first['reason']}: {first.get('split', 'example')}'s {first.get('file', first['id'])}"
        f"{twice} ({len(stopping):,} such examples); --clean.drop-leakage leaves them out, "
        f"--clean.allow-leakage goes on, python -m pipeline.clean {config.recipe} shows them"
    )
