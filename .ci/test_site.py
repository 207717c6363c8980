"""The site: it builds without warnings and shows every command, option and function."""

import html
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import pipeline
from pipeline.__main__ import commands
from pipeline.config import cli_parser, registry
from pipeline.config.config import Config

REPOSITORY = Path(__file__).parents[1]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The docs as Sphinx builds them, as text and as HTML; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    for builder in ("text", "html"):
        options = ["-W", "-q", "-b", builder, "-d", folder / "doctrees"]
        command = ["sphinx", *options, "docs", folder / builder]
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def pages(site):
    """The pages of the site as HTML, without those that Sphinx generates."""
    texts = REPOSITORY.glob("docs/**/*.md")
    names = [
        path.relative_to(REPOSITORY / "docs").with_suffix(".html") for path in texts
    ]
    return [site / "html" / name for name in names]


def test_the_site_has_every_command_option_function_and_public_name(site):
    site /= "text"
    page = " ".join(_read(site / "commands.txt").split())
    for flag in cli_parser.flags(Config):
        negated = "no-" in flag and flag not in ("--source", "--task", "--model")
        assert f'"{flag}"' in page or negated or "." not in flag, flag
    for kind in registry.REGISTRIES:
        for name in registry.names(kind):
            assert f"{name} {'~' * len(name)}" in page
            for option, about in registry.find(kind, name).options.items():
                assert f'"{option}"' in page
                assert " ".join(about.meaning.replace("`", '"').split())[:30] in page
    for name, summary in commands().items():
        assert f"{name} {'-' * len(name)} {summary}" in page
    assert "usage: pipeline fit [RECIPE or PATH]" in page
    api = _read(site / "api.txt")
    for name in pipeline.__all__:
        value = getattr(pipeline, name)
        if isinstance(value, type):
            contract = value.__module__ == "pipeline.contracts"
            module = "pipeline.contracts" if contract else "pipeline"
            assert re.search(rf"^class {module}\.{name}\b", api, re.MULTILINE), name
    for name in (
        "fit.fit(",
        "inspect.inspect(",
        "contracts.Source\n",
        "contracts.Task(",
    ):
        assert f"pipeline.{name}" in api


def test_links_within_the_site_work(pages):
    """Also those to headings and terms."""
    ids = {page: set(re.findall(r' id="([^"]+)"', _read(page))) for page in pages}
    for page in pages:
        links = re.findall(r'(?:href|src)="([^"]+)"', _read(page))
        assert len(links) > 20
        for link in links:
            target, _, anchor = html.unescape(link).partition("#")
            if "://" in target or target.startswith("data:"):
                continue
            path = (
                (page.parent / target.partition("?")[0]).resolve() if target else page
            )
            assert path.is_file(), (page.name, link)
            if anchor and path in ids:
                assert unquote(anchor) in ids[path], (page.name, link)
