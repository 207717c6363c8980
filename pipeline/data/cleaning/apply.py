"""Cleans a source: decides what a run excludes, and writes the findings to a page."""

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from pipeline.config.config import Config
from pipeline.contracts import Decision, Source, Task
from pipeline.data.cleaning import issues, manifest, scan
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import files, html_pages
from pipeline.utils.errors import UsageError
from pipeline.utils.html_pages import PageSection, Picture, Row

MAX_SHOWN = 60
"""Entries shown for each reason."""


class Findings:
    """The findings in a source; without a task, there are no near duplicates."""

    def __init__(
        self, source: Source, config: Config, task: Task | None = None
    ) -> None:
        start = time.monotonic()
        self._source = source
        self._title = config.source.title
        needs_task = task is not None and scan.needs_decoding(source)
        decode = task.decode if task is not None and needs_task else None
        target = config.task.target_options.get("field")
        similarity = None
        if task is not None and config.clean.near:
            similarity = task.input.similarity(source.info)
        self.scan = scan.scan(source, decode, target, similarity)
        entries = issues.find(source, self.scan, config.clean.near)
        self.entries = _resolve_leakage(entries, config)
        self.notes = issues.notes(self.scan, self.entries)
        self.seconds = time.monotonic() - start

    def write(self, run: RunDirectory) -> None:
        """Writes the manifest and the gallery to an existing run directory."""
        manifest.write(run.manifest, self.entries)
        title = f"{self._title}: {len(self.scan):,} examples"
        picture = None
        if self.scan.has_images:
            picture = scan.pictures(self._source, self.scan)
        notes = [*self._source.info.notes, *self.notes]
        files.write_text(run.gallery, gallery(title, self.entries, picture, notes))


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """The outcome of cleaning that a run applies."""

    excluded: dict[int, str] = dataclasses.field(default_factory=dict)
    """Maps the ids of examples to exclude to the reason."""
    groups: dict[int, int] = dataclasses.field(default_factory=dict)
    """Maps the ids of examples that have near duplicates to their group."""
    decisions: tuple[Decision, ...] = ()
    findings: Findings | None = None
    """What this run has found and not written yet; None if it reads a manifest."""


def clean(source: Source, config: Config, task: Task | None = None) -> Cleaning:
    """Applies the section `clean` of a config; a resumed run keeps its manifest.

    The task decodes examples that are not images, to find those that are damaged.

    Raises:
        UsageError: The manifest cannot be read, or a finding stops the run.
    """
    options = config.clean
    findings = None
    run = RunDirectory(config.run_directory) if config.run_directory else None
    if options.enabled and run is not None and run.manifest.is_file():
        entries = manifest.read(run.manifest)
        reason = "same as when this run started"
    elif options.enabled:
        findings = Findings(source, config, task)
        entries = findings.entries
        count = len(findings.scan)
        reason = f"found among {count:,} examples in {findings.seconds:.0f} s"
    elif options.manifest is not None:
        entries = _entries_of_source(manifest.read(options.manifest), source, config)
        entries = _resolve_leakage(entries, config)
        reason = str(options.manifest)
    else:
        return Cleaning()
    if stopping := manifest.stopping(entries):
        command = "pipeline clean with the same options shows them"
        raise UsageError(stop_message(stopping, command))
    counts = Counter(entry["reason"] for entry in entries if entry["action"] == "drop")
    value = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
    decisions = [Decision("cleaning", f"{value or 'nothing'} excluded", reason)]
    for note in findings.notes if findings else ():
        decisions.append(Decision("note", note, "found by cleaning"))
    return Cleaning(
        excluded=manifest.excluded_ids(entries),
        groups=manifest.groups(entries),
        decisions=tuple(decisions),
        findings=findings,
    )


def _resolve_leakage(
    entries: list[manifest.Entry], config: Config
) -> list[manifest.Entry]:
    """Replaces the action `stop` by the one that the config sets for leakage."""
    if config.clean.drop_leakage:
        return manifest.replace_stop(entries, "drop")
    if config.clean.allow_leakage:
        return manifest.replace_stop(entries, "keep")
    return entries


def _entries_of_source(
    entries: list[manifest.Entry], source: Source, config: Config
) -> list[manifest.Entry]:
    """The entries for examples of the source; UsageError if there are none."""
    ids: set[int] = set()
    for split in source.info.splits:
        ids.update(source.columns(split)["id"].tolist())
    matches = []
    for entry in entries:
        if entry["id"] not in ids:
            continue
        if entry.get("file") in (None, source.location(entry["id"])):
            matches.append(entry)
    if entries and not matches and config.data.limit is None:
        raise UsageError(
            f"--clean.manifest: none of the {len(entries):,} examples in"
            f" {config.clean.manifest} is in this source; choose a manifest for this"
            " data"
        )
    return matches


def stop_message(stopping: list[manifest.Entry], where: str) -> str:
    """Why no run can start, and the remedy; `where` says what shows the findings."""
    first = stopping[0]
    name = first.get("file", first["id"])
    split = first.get("split", "the data")
    copy = ""
    if "of_file" in first:
        copy = f" is also in {first['of_split']}: {first['of_file']}"
    return (
        f"{first['reason']}: {name} in {split}{copy} ({len(stopping):,} such examples);"
        " --clean.drop-leakage excludes them, --clean.allow-leakage accepts them;"
        f" {where}"
    )


def gallery(
    title: str,
    entries: Iterable[manifest.Entry],
    picture: Callable[[int], str | None] | None,
    notes: Sequence[str] = (),
) -> str:
    """An HTML page with the first findings of each reason; `stop` comes first.

    `picture` maps an id to a data URI, or None for an image that cannot be decoded; it
    is None if the examples are not images.
    """
    entries_by_reason = defaultdict(list)
    for entry in entries:
        action = manifest.ACTIONS.index(entry["action"])
        entries_by_reason[action, entry["reason"]].append(entry)
    sections = []
    for action, reason in sorted(entries_by_reason, key=lambda key: key[0]):
        group = entries_by_reason[action, reason]
        sections.append(
            PageSection(
                f"{reason}: {len(group):,}, action {manifest.ACTIONS[action]}",
                f"the first {MAX_SHOWN}" if len(group) > MAX_SHOWN else "",
                [_row(entry, picture) for entry in group[:MAX_SHOWN]],
            )
        )
    notes = [*notes] if sections else [*notes, "Nothing was found."]
    return html_pages.page(title, sections, notes)


def _row(entry: manifest.Entry, picture: Callable[[int], str | None] | None) -> Row:
    """A row that names an example or both examples of a pair, with their images."""
    pictures = []
    captions = []
    for key, prefix in (("id", ""), ("of", "of_")):
        if key not in entry:
            continue
        parts = [entry.get(prefix + name) for name in ("file", "split", "label")]
        caption = ", ".join(str(part) for part in parts if part is not None)
        if picture is not None:
            pictures.append(Picture(picture(entry[key]), caption))
        captions.append(caption)
    return Row(pictures, text=" = ".join(captions) + f" {entry.get('detail', '')}")
