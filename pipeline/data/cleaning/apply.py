"""Cleans a source, decides what a run excludes, and shows the findings with images on a
page.
"""

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from pipeline.config.config import Config
from pipeline.contracts import Decision, Source
from pipeline.data.cleaning import issues, manifest, scan
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import files, html_pages
from pipeline.utils.errors import UsageError
from pipeline.utils.html_pages import Picture, Row, Section

MOST_SHOWN = 60
"""Entries shown for each reason."""


class Found:
    """The findings in a source; UsageError if its examples are not images."""

    def __init__(self, source: Source, config: Config) -> None:
        start = time.monotonic()
        self._source, self._title = source, config.source.title
        self.scan = scan.scan(source)
        self.entries = _decided(
            issues.find(source, self.scan, config.clean.near), config
        )
        self.notes = issues.notes(self.scan, self.entries)
        self.seconds = time.monotonic() - start

    def write(self, run: RunDirectory) -> None:
        """Writes the manifest and the gallery to an existing directory."""
        manifest.write(run.manifest, self.entries)
        title = f"{self._title}: {len(self.scan):,} examples"
        picture = scan.pictures(self._source, self.scan)
        notes = [*self._source.info.notes, *self.notes]
        files.write_text(run.gallery, gallery(title, self.entries, picture, notes))


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """The outcome of cleaning that a run applies."""

    dropped: dict[int, str] = dataclasses.field(default_factory=dict)
    """Maps the ids of examples to exclude to the reason."""
    groups: dict[int, int] = dataclasses.field(default_factory=dict)
    """Maps the ids of examples that have near duplicates to their group."""
    decisions: tuple[Decision, ...] = ()
    found: Found | None = None
    """The run's own findings, not written yet."""


def clean(source: Source, config: Config) -> Cleaning:
    """Applies the section `clean` of a config; a run that is resumed keeps its
    manifest.

    Raises:
        UsageError: The manifest cannot be read, or a finding stops the run.
    """
    options, found = config.clean, None
    earlier = (
        RunDirectory(config.run_directory).manifest if config.run_directory else None
    )
    if options.enabled and earlier is not None and earlier.is_file():
        entries, why = manifest.read(earlier), "same as when this run started"
    elif options.enabled:
        found = Found(source, config)
        entries = found.entries
        why = f"found among {len(found.scan):,} examples in {found.seconds:.0f} s"
    elif options.manifest is not None:
        entries = _decided(
            _known(manifest.read(options.manifest), source, config), config
        )
        why = str(options.manifest)
    else:
        return Cleaning()
    if stopping := manifest.stopping(entries):
        where = "pipeline clean with the same options shows them"
        raise UsageError(stop(stopping, where))
    counts = Counter(entry["reason"] for entry in entries if entry["action"] == "drop")
    value = (
        ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
        or "nothing"
    )
    decisions = [Decision("cleaning", f"{value} excluded", why)]
    for note in found.notes if found else ():
        decisions.append(Decision("note", note, "found by cleaning"))
    return Cleaning(
        manifest.dropped(entries), manifest.groups(entries), tuple(decisions), found
    )


def _decided(entries: list[manifest.Entry], config: Config) -> list[manifest.Entry]:
    """The entries, with the action that the config sets for leakage."""
    kept = "keep" if config.clean.allow_leakage else "stop"
    return manifest.decided(entries, "drop" if config.clean.drop_leakage else kept)


def _known(
    entries: list[manifest.Entry], source: Source, config: Config
) -> list[manifest.Entry]:
    """The entries for examples of the source; UsageError if the manifest is for other
    data.
    """
    ids = {
        id
        for split in source.info.splits
        for id in source.columns(split)["id"].tolist()
    }
    known = [
        entry
        for entry in entries
        if entry["id"] in ids
        and entry.get("file") in (None, source.location(entry["id"]))
    ]
    if entries and not known and config.data.limit is None:
        raise UsageError(
            f"--clean.manifest: none of the {len(entries):,} examples in"
            f" {config.clean.manifest} is in this source; choose a manifest for this"
            " data"
        )
    return known


def stop(stopping: list[manifest.Entry], where: str) -> str:
    """Why no run can start, and the remedy; `where` describes where to see the
    findings.
    """
    first = stopping[0]
    copy = (
        f" is also in {first['of_split']}: {first['of_file']}"
        if "of_file" in first
        else ""
    )
    return (
        f"{first['reason']}: {first.get('file', first['id'])} in"
        f" {first.get('split', 'the data')}{copy} ({len(stopping):,} such examples);"
        " --clean.drop-leakage excludes them, --clean.allow-leakage accepts them;"
        f" {where}"
    )


def gallery(
    title: str,
    entries: Iterable[manifest.Entry],
    picture: Callable[[int], str | None],
    notes: Sequence[str] = (),
) -> str:
    """The gallery of a cleaning as HTML: the first entries of each reason, `stop`
    before others.

    `picture` maps an id to a data URI; None for an example without an image.
    """
    parts = defaultdict(list)
    for entry in entries:
        parts[manifest.ACTIONS.index(entry["action"]), entry["reason"]].append(entry)
    sections = [
        Section(
            f"{reason}: {len(part):,}, action {manifest.ACTIONS[action]}",
            f"the first {MOST_SHOWN}" if len(part) > MOST_SHOWN else "",
            [_row(entry, picture) for entry in part[:MOST_SHOWN]],
        )
        for (action, reason), part in sorted(parts.items(), key=lambda item: item[0][0])
    ]
    nothing = [] if sections else ["Nothing was found."]
    return html_pages.page(title, sections, [*notes, *nothing])


def _row(entry: manifest.Entry, picture: Callable[[int], str | None]) -> Row:
    """The example, and the other one if the entry is about a pair."""
    found, names = [], []
    for key, prefix in (("id", ""), ("of", "of_")):
        if key in entry:
            known = (entry.get(prefix + k) for k in ("file", "split", "label"))
            names.append(", ".join(str(text) for text in known if text is not None))
            found.append(Picture(picture(entry[key]), names[-1]))
    return Row(found, text=" = ".join(names) + f" {entry.get('detail', '')}")
