"""What a cleaning found, as one page to look at: no other file, no network, phone or desk."""

import base64
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pipeline.data.cleaning.manifest import ACTIONS, Entry
from pipeline.utils import html_pages
from pipeline.utils.html_pages import safe

SIDE = 160
"""Largest height and width of a picture, in pixels."""
MOST = 60
"""Entries that are shown of each reason."""
_DONE = {"stop": "stops a run", "drop": "left out", "keep": "kept, only listed"}
_STYLE = """
h2 small { font-weight: normal; opacity: .7 }
.all { display: grid; gap: .75rem }
.all { grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)) }
article { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem; min-width: 0 }
article > div { display: grid; gap: .5rem; grid-auto-flow: column }
article > div { grid-auto-columns: minmax(0, 1fr) }
figure { margin: 0; min-width: 0 }
figcaption, p { font-size: .8rem; margin: .3rem 0 0; overflow-wrap: anywhere }
img, .none { width: 100%; height: 7rem; object-fit: contain; image-rendering: pixelated }
.none { display: grid; place-items: center; background: var(--line); opacity: .6 }
"""


def shown(entries: Iterable[Entry]) -> list[Entry]:
    """Those that a page shows: the first of each reason and action, what stops a run before all."""
    return [entry for part in _by_reason(entries).values() for entry in part[:MOST]]


def page(
    title: str, entries: Sequence[Entry], pictures: Mapping[int, bytes], notes: Iterable[str] = ()
) -> str:
    """The page as HTML; every text in it is escaped.

    Args:
        title: The first line.
        entries: Of a manifest.
        pictures: Id -> PNG, of those that have one.
        notes: Lines below the title.
    """
    parts = _by_reason(entries)
    links = [
        f'<li><a href="#part{number}">{safe(reason)}</a>: {len(part):,}, {_DONE[action]}'
        for number, ((reason, action), part) in enumerate(parts.items())
    ]
    sections = [
        f'<h2 id="part{number}">{safe(reason)} <small>{len(part):,}, {_DONE[action]}'
        f"{f'; the first {MOST}' if len(part) > MOST else ''}</small></h2>\n"
        f'<div class="all">{"".join(_article(entry, pictures) for entry in part[:MOST])}</div>'
        for number, ((reason, action), part) in enumerate(parts.items())
    ]
    index = f"<ul>{''.join(links)}</ul>" if links else html_pages.paragraph("Nothing was found.")
    return html_pages.page(title, [*map(html_pages.paragraph, notes), index, *sections], _STYLE)


def _by_reason(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Entry]]:
    parts = defaultdict(list)
    for entry in entries:
        parts[str(entry["reason"]), entry["action"]].append(entry)
    return dict(sorted(parts.items(), key=lambda part: ACTIONS.index(part[0][1])))


def _article(entry: Entry, pictures: Mapping[int, bytes]) -> str:
    figures = [_figure(entry, "", entry["id"], pictures)]
    if "of" in entry:
        figures.append(_figure(entry, "of_", entry["of"], pictures))
    detail = f"<p>{safe(entry['detail'])}</p>" if "detail" in entry else ""
    return f"<article><div>{''.join(figures)}</div>{detail}</article>\n"


def _figure(entry: Entry, prefix: str, id: int, pictures: Mapping[int, bytes]) -> str:
    name = safe(entry.get(f"{prefix}file", f"example {id}"))
    told = [safe(entry[f"{prefix}{key}"]) for key in ("split", "label") if prefix + key in entry]
    image = '<div class="none">no picture</div>'
    if id in pictures:
        data = base64.b64encode(pictures[id]).decode()
        image = f'<img src="data:image/png;base64,{data}" alt="{name}" loading="lazy">'
    return f"<figure>{image}<figcaption>{name}<br>{', '.join(told)}</figcaption></figure>"
