"""The gallery of a cleaning: what was found, with pictures, as one HTML page."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pipeline.data.cleaning.manifest import ACTIONS, Entry
from pipeline.utils import html_pages
from pipeline.utils.html_pages import Picture, Row, Section

MOST = 60
"""Entries shown for each reason."""


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
    sections = [
        Section(
            f"{reason}: {len(part):,}, action {action}",
            f"the first {MOST}" if len(part) > MOST else "",
            [_row(entry, pictures) for entry in part[:MOST]],
        )
        for (reason, action), part in _by_reason(entries).items()
    ]
    nothing = [] if sections else ["Nothing was found."]
    return html_pages.page(title, sections, [*notes, *nothing])


def _by_reason(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Entry]]:
    parts = defaultdict(list)
    for entry in entries:
        parts[str(entry["reason"]), entry["action"]].append(entry)
    return dict(sorted(parts.items(), key=lambda part: ACTIONS.index(part[0][1])))


def _row(entry: Entry, pictures: Mapping[int, bytes]) -> Row:
    """The example, and the other one if the entry is about a pair."""
    found, names = [], []
    for key, prefix in (("id", ""), ("of", "of_")):
        if key in entry:
            known = (entry.get(prefix + k) for k in ("file", "split", "label"))
            names.append(", ".join(str(text) for text in known if text is not None))
            picture = pictures.get(entry[key])
            source = None if picture is None else html_pages.data_uri(picture)
            found.append(Picture(source, names[-1]))
    return Row(found, text=" = ".join(names) + f" {entry.get('detail', '')}")
