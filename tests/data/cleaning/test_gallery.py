"""The gallery of a cleaning: self-contained, escaped, limited, pairs side by side."""

import base64
import re
from html.parser import HTMLParser

from pipeline.data.cleaning import gallery

PNG = b"\x89PNG\r\n\x1a\n of a kind"


def entry(id, reason="blank", action="drop", **more):
    return {"id": id, "file": f"{id}.png", "reason": reason, "action": action, **more}


class Page(HTMLParser):
    """The elements of a page, and its text."""

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
    assert not re.search(r"https?:|<link|@import|url\(", text), "the page needs another file"


def test_pairs_are_side_by_side_and_what_stops_a_run_comes_first():
    pair = entry(1, "leakage", "stop", split="train", of=2, of_file="2.png", of_split="test")
    page = Page(gallery.page("title", [entry(0), pair], {1: PNG, 2: PNG}))
    assert len(page.all("article")) == 2
    assert len(page.all("img")) == 2 and page.text.count("no picture") == 1
    assert page.text.index("leakage: 1, action stop") < page.text.index("blank: 1, action drop")
    assert page.text.index("1.png") < page.text.index("2.png") < page.text.index("0.png")


def test_many_entries_are_counted_and_the_first_shown():
    many = [entry(n) for n in range(1234)] + [entry(5000, "tiny")]
    page = Page(gallery.page("title", many, {}))
    assert len(page.all("article")) == gallery.MOST + 1 == len(gallery.shown(many))
    assert "1,234, action drop" in page.text and "the first 60" in page.text
    assert "Nothing was found." in Page(gallery.page("title", [], {})).text
