"""The gallery of a cleaning: self-contained, escaped, limited, pairs side by side."""

import html
import re

from pipeline.data.cleaning import apply

PNG = "data:image/png;base64,AAAA"


def entry(id, reason="blank", action="drop", **options):
    return {
        "id": id,
        "file": f"{id}.png",
        "reason": reason,
        "action": action,
        **options,
    }


def test_names_are_text_and_never_markup():
    name = '<script>alert("1")</script>&/é \udcff.png'
    copy = {"of": 2, "of_file": name, "of_label": "<b>", "detail": "<img src=x>"}
    page = apply.gallery(
        name, [entry(1, name, **copy, label=name)], {1: PNG}.get, [name]
    )
    assert "<script" not in page and "<b>" not in page and page.count("<img") == 1
    assert PNG in page
    assert html.unescape(page).count('<script>alert("1")</script>&/é ?.png') >= 4
    assert not re.search(r"https?:|<link|@import|url\(", page), (
        "the page needs another file"
    )


def test_pairs_are_side_by_side_and_what_stops_a_run_comes_first():
    pair = entry(
        1, "leakage", "stop", split="train", of=2, of_file="2.png", of_split="test"
    )
    page = apply.gallery("title", [entry(0), pair], {1: PNG, 2: PNG}.get)
    assert page.count("<article") == 2
    assert page.count("<img") == 2 and page.count("no image") == 1
    assert page.index("leakage: 1, action stop") < page.index("blank: 1, action drop")
    assert page.index("1.png") < page.index("2.png") < page.index("0.png")


def test_many_entries_are_counted_and_the_first_shown():
    many = [entry(n) for n in range(1234)] + [entry(5000, "tiny")]
    page = apply.gallery("title", many, {}.get)
    assert page.count("<article") == apply.MAX_SHOWN + 1
    assert "1,234, action drop" in page and "the first 60" in page
    assert "Nothing was found." in apply.gallery("title", [], {}.get)


def test_examples_that_are_not_images_are_rows_of_text():
    pair = entry(1, "duplicate", split="train", label="2.5", of=2, of_file="2.png")
    page = apply.gallery("title", [pair], None)
    assert "<img" not in page and "no image" not in page
    assert "1.png, train, 2.5 = 2.png" in page
