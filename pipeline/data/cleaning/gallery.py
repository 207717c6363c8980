"""The gallery of a cleaning: what was found, with pictures, as one HTML page."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pipeline.data.cleaning.manifest import ACTIONS, Entry
from pipeline.utils import html_pages
from pipeline.utils.html_pages import Picture, Row, Section

MOST = 60
"""Entries shown for each reason."""
_ACTIONS = {"stop": "stops a run", "drop": "excluded", "keep": "kept, only listed"}


def shown(entries: Iterable[Entry]) -> list[Entry]:
    """The entries that a page shows: the first of each reason and action, `stop` before others."""
    return [entry for part in _by_reason(entries).values() for entry in part[:MOST]]


def page(
    title: str, entries: Sequence[Entry], pictures: Mapping[int, bytes], notes: Sequence[str] = ()
) -> str:
    """Renders the gallery as HTML.

    Args:
        title: The title of the page.
        entries: The entries of a manifest.
        pictures: Id -> PNG, for the examples that have one.
        notes: Paragraphs below the title.
    """
    sections = []
    for (reason, action), part in _by_reason(entries).items():
        first = f"; the first {MOST}" if len(part) > MOST else ""
        rows = [_row(entry, pictures) for entry in part[:MOST]]
        heading = f"{reason}: {len(part):,}, {_ACTIONS[action]}{first}"
        sections.append(Section(heading, rows=rows, layout="cards"))
    nothing = [] if sections else ["Nothing was found."]
    return html_pages.page(title, sections, [*notes, *nothing])


def _by_reason(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Entry]]:
    parts = defaultdict(list)
    for entry in entries:
        parts[str(entry["reason"]), entry["action"]].append(entry)
    return dict(sorted(parts.items(), key=lambda part: ACTIONS.index(part[0][1])))


def _row(entry: Entry, pictures: Mapping[int, bytes]) -> Row:
    """The example, and the other one if the entry is about a pair."""
    found = []
    for key, prefix in (("id", ""), ("of", "of_")):
        if key in entry:
            name = str(entry.get(f"{prefix}file", f"example {entry[key]}"))
            known = [str(entry[prefix + k]) for k in ("split", "label") if prefix + k in entry]
            picture = pictures.get(entry[key])
            source = None if picture is None else html_pages.data_uri(picture)
            found.append(Picture(source, name, [name, ", ".join(known)]))
    return Row(found, text=str(entry.get("detail", "")))
