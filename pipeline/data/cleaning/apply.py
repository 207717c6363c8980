"""What a run leaves out, and why: from a manifest that a person gave, or from looking itself."""

import dataclasses
import time
from collections import Counter
from typing import TYPE_CHECKING

from pipeline.config.config import Config
from pipeline.data.cleaning import manifest
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import files
from pipeline.utils.errors import UsageError

if TYPE_CHECKING:  # the front door stands before TensorFlow
    from pipeline.contracts import Decision, Source


class Found:
    """What is found in a source.

    Args:
        source: Where the examples come from.
        config: Its section `clean`.

    Raises:
        UsageError: These are no images, or they cannot even be read.
    """

    def __init__(self, source: "Source", config: Config) -> None:
        from pipeline.data.cleaning import issues, scan

        start = time.monotonic()
        self._source, self._config = source, config
        self._scan = scan.scan(source)
        self.entries = issues.find(source, self._scan, config.clean.near)
        self.entries = decided(self.entries, config)
        self.notes = [*source.info.notes, *issues.notes(source, self._scan, self.entries)]
        self.seconds = time.monotonic() - start

    def __len__(self) -> int:
        return len(self._scan)

    def doubt(self, details: dict[int, str]) -> None:
        """Lists labels that are probably wrong too: id -> what the models say of them."""
        from pipeline.data.cleaning import issues

        self.entries += issues.doubted(self._source, self._scan, details)

    def write(self, run: RunDirectory) -> None:
        """Manifest and gallery into a folder that is there."""
        from pipeline.data.cleaning import gallery, scan

        manifest.write(run.manifest, self.entries)
        shown = [id for e in gallery.shown(self.entries) for id in (e["id"], e.get("of", e["id"]))]
        rows = self._scan.rows(set(shown))
        pictures = scan.pictures(self._source, self._scan, rows, gallery.SIDE)
        of_ids = {int(self._scan.id[row]): png for row, png in pictures.items()}
        title = f"{files.collapse_home(self._config.source.title)}: {len(self):,} examples"
        files.write_text(run.gallery, gallery.page(title, self.entries, of_ids, self.notes))


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """What a run obeys."""

    dropped: dict[int, str] = dataclasses.field(default_factory=dict)
    """Id -> reason of the examples to leave out."""
    groups: dict[int, int] = dataclasses.field(default_factory=dict)
    """Id -> group of examples that are nearly the same; the others are like none."""
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
        entries = _known(manifest.read(options.manifest), source, config)
        entries, where = decided(entries, config), options.manifest
    elif before is not None and before.is_file():
        entries, where = manifest.read(before), "as this run began"
    else:
        found = Found(source, config)
        entries = found.entries
        notes = [note for note in found.notes if note not in source.info.notes]
        where = f"of {len(found):,} examples, looked at in {found.seconds:.0f} s"
    if stopping := manifest.stopping(entries):
        again = "python -m pipeline.clean with the same options shows them"
        raise UsageError(stop(stopping, again))
    left_out = [entry for entry in entries if entry["action"] == "drop"]
    counts = Counter(entry["reason"] for entry in left_out)
    if left_out:
        where = f"{where}; such as {left_out[0].get('file', left_out[0]['id'])}"
    value = ", ".join(f"{count:,} {reason}" for reason, count in counts.items()) or "nothing"
    decisions = [Decision("left out", value, str(where))]
    decisions += [Decision("note", note, "found while cleaning") for note in notes]
    return Cleaning(manifest.dropped(entries), manifest.groups(entries), tuple(decisions), found)


def decided(entries: list[manifest.Entry], config: Config) -> list[manifest.Entry]:
    """The entries with the action for leakage that the config asks for."""
    if config.clean.drop_leakage:
        return manifest.decided(entries, "drop")
    return manifest.decided(entries, "keep" if config.clean.allow_leakage else "stop")


def _known(entries: list[manifest.Entry], source: "Source", config: Config) -> list[manifest.Entry]:
    """The entries on examples that are there; UsageError if it is a manifest of other data."""
    ids = {id for split in source.info.splits for id in source.columns(split)["id"].tolist()}
    known = [
        entry
        for entry in entries
        if entry["id"] in ids and entry.get("file") in (None, source.location(entry["id"]))
    ]
    if entries and not known and config.data.limit is None:
        raise UsageError(
            f"--clean.manifest: none of the {len(entries):,} examples in {config.clean.manifest} "
            "is in this source; give the manifest of these data"
        )
    return known


def stop(stopping: list[manifest.Entry], shows: str) -> str:
    """Why no run goes on, and what to do; `shows` says where to see it."""
    first = stopping[0]
    twice = f" is also {first['of_split']}'s {first['of_file']}" if "of_file" in first else ""
    return (
        f"{first['reason']}: {first.get('split', 'example')}'s {first.get('file', first['id'])}"
        f"{twice} ({len(stopping):,} such examples); --clean.drop-leakage leaves them out, "
        f"--clean.allow-leakage goes on; {shows}"
    )
