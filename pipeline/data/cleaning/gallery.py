"""The gallery of a cleaning: what was found, with images, as one HTML page."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from pipeline.data.cleaning.manifest import ACTIONS, Entry
from pipeline.utils import html_pages
from pipeline.utils.html_pages import Picture, Row, Section

MOST = 60
"""Entries shown for each reason."""


def page(
    title: str,
    entries: Iterable[Entry],
    picture: Callable[[int], str | None],
    notes: Sequence[str] = (),
) -> str:
    """Renders the gallery as HTML: the first entries of each reason, `stop` before others.

    `picture` maps an id to a data URI; None for an example without an image.
    """
    parts = defaultdict(list)
    for entry in entries:
        parts[ACTIONS.index(entry["action"]), entry["reason"]].append(entry)
    sections = [
        Section(
            f"{reason}: {len(part):,}, action {ACTIONS[action]}",
            f"the first {MOST}" if len(part) > MOST else "",
            [_row(entry, picture) for entry in part[:MOST]],
        )
        for (action, reason), part in sorted(parts.items(), key=lambda item: item[0][0])
    ]
    nothing = [] if sections else ["Nothing was found."]
    return html_pages.page(title, sections, [*notes, *nothing])


def _row(entry: Entry, picture: Callable[[int], str | None]) -> Row:
    """The example, and the other one if the entry is about a pair."""
    found, names = [], []
    for key, prefix in (("id", ""), ("of", "of_")):
        if key in entry:
            known = (entry.get(prefix + k) for k in ("file", "split", "label"))
            names.append(", ".join(str(text) for text in known if text is not None))
            found.append(Picture(picture(entry[key]), names[-1]))
    return Row(found, text=" = ".join(names) + f" {entry.get('detail', '')}")
