"""The words of a report."""

import html
import re

FAILED = "This part could not be made"


def text_of(content):
    """The words of a page, without tags."""
    body = content[content.index("<h1>") :]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def written(run):
    """The report of a run, and its words."""
    content = (run.directory / "report.html").read_text(encoding="utf-8")
    return content, text_of(content)
