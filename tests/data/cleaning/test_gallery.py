"""The gallery: whole in one file, escaped, bounded, each pair side by side."""

import base64
import re
from html.parser import HTMLParser

from pipeline.data.cleaning import gallery

PNG = b"\x89PNG\r\n\x1a\n of a kind"


def entry(id, reason="blank", action="drop", **more):
    return {"id": id, "file": f"{id}.png", "reason": reason, "action": action, **more}


class Page(HTMLParser):
    """Counts of elements, and all texts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def test_names_are_text_and_never_markup():
    name = '<script>alert("1")</script>&\'/é \udcff.png'
    other = {"of": 2, "of_file": name, "of_label": "<b>", "detail": "<img src=x>"}
    text = gallery.page(name, [entry(1, name, **other, label=name)], {1: PNG}, [name])
    page = Page(text)
    assert not page.all("script") and not page.all("b")
    (image,) = page.all("img")
    assert image["src"] == "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert page.text.count('<script>alert("1")</script>&\'/é ?.png') >= 4
    text.encode()


def test_the_page_needs_nothing_else():
    text = gallery.page("title", [entry(n) for n in range(3)], {0: PNG})
    assert not re.search(r"https?:|<link|@import|url\(", text)
    page = Page(text)
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all(
        "meta"
    )
    assert "color-scheme: light dark" in text
    assert len(page.all("article")) == 3 and len(page.all("img")) == 1
    assert page.text.count("no picture") == 2


def test_pairs_stand_side_by_side_and_what_stops_a_run_comes_first():
    pair = entry(1, "leakage", "stop", split="train", of=2, of_file="2.png", of_split="test")
    page = Page(gallery.page("title", [entry(0), pair], {1: PNG, 2: PNG}))
    assert len(page.all("figure")) == 3 and len(page.all("img")) == 2
    first, second = page.text.index("leakage"), page.text.index("blank")
    assert first < second
    assert "stops a run" in page.text and "left out" in page.text
    assert page.text.index("1.png") < page.text.index("2.png") < page.text.index("0.png")


def test_many_entries_are_counted_and_the_first_shown():
    many = [entry(n) for n in range(1234)] + [entry(5000, "tiny")]
    page = Page(gallery.page("title", many, {}))
    assert len(page.all("article")) == gallery.MOST + 1 == len(gallery.shown(many))
    assert "1,234, left out; the first 60" in page.text


def test_a_clean_set_has_a_page_too():
    assert "Nothing was found." in Page(gallery.page("title", [], {})).text
