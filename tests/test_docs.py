"""README and docs: they build without warnings, and what they name and show exists and
works.
"""

import ast
import contextlib
import html
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from conftest import REPOSITORY

import pipeline
from pipeline.__main__ import commands
from pipeline.config import cli_parser, registry
from pipeline.config.config import Config

README = REPOSITORY / "README.md"
TEXTS = [
    *(README, REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "saved_models/README.md"),
    *sorted(REPOSITORY.glob("docs/*.md")),
]
BENCHMARKS = sorted(REPOSITORY.glob("benchmarks/*.md"))
PACKAGE = REPOSITORY / "pipeline"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _blocks(path: Path, language: str) -> list[str]:
    found = re.findall(
        r"^```(\S*)\n(.*?)^```$", _read(path), flags=re.DOTALL | re.MULTILINE
    )
    return [block for kind, block in found if kind == language]


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


_FRAMES = """
<script>
addEventListener("load", async () => {
  const over = {}
  for (const width of [400, 1400]) for (const page of PAGES) {
    const frame = document.createElement("iframe")
    frame.style = `border: 0; height: 900px; width: ${width}px`
    frame.src = page
    await new Promise(loaded => { frame.onload = loaded; document.body.append(frame) })
    const text = frame.contentDocument.querySelector(".content")  // the theme cuts html
    const broken = [...frame.contentDocument.images].filter(i => !i.naturalWidth).length
    if (text.scrollWidth > text.clientWidth || broken || !text.innerText.trim())
      over[`${page} at ${width}`] = [text.scrollWidth, text.clientWidth, broken]
    frame.remove()
  }
  document.body.innerText = JSON.stringify(over)
})
</script>
<body>not finished</body>
"""


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_no_page_is_wider_than_the_window(site, pages, tmp_path):
    """At 400 and 1,400 pixels; what is wider, such as a table, scrolls by itself."""
    frames = site / "html/frames.html"
    names = json.dumps([path.relative_to(frames.parent).as_posix() for path in pages])
    frames.write_text(_FRAMES.replace("PAGES", names), encoding="utf-8")
    words = [
        *("--headless", "--no-sandbox", "--disable-gpu"),
        "--allow-file-access-from-files",
        "--virtual-time-budget=60000",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1500,900",
        "--dump-dom",
        frames.as_uri(),
    ]
    shown = subprocess.run(
        [CHROMIUM, *words], capture_output=True, text=True, timeout=300
    )
    assert re.search(r"<body>(.*?)</body>", shown.stdout, re.DOTALL)[1] == "{}"


def test_the_readme_lists_the_commands():
    listed = dict(
        re.findall(
            r"^\| `pipeline (\w+)[^|]*` \| (.*) \|$", _read(README), re.MULTILINE
        )
    )
    assert listed == commands()


def test_the_trees_of_readme_and_architecture_are_those_of_the_package():
    folders = {path.parent.name for path in PACKAGE.rglob("__init__.py")}
    registries = {Path(folder).name for folder, _ in registry.REGISTRIES.values()}
    for page in (README, REPOSITORY / "docs/architecture.md"):
        (tree,) = (
            block for block in _blocks(page, "") if block.startswith("pipeline/\n")
        )
        tree = tree.partition("\ntests/")[0]
        listed = set(re.findall(r"(\w+)/", tree))
        assert (
            {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
            <= listed
            <= folders
        )
        assert set(re.findall(r"(\w+)/ \*", tree)) == registries
        for name in re.findall(r"\w+\.py", tree):
            assert list(PACKAGE.rglob(name)), name
        if page == README:
            assert {path.name for path in PACKAGE.glob("[!_]*.py")} <= set(
                re.findall(r"\w+\.py", tree)
            )
    assert listed == folders, "docs/architecture.md lists all"


@pytest.mark.parametrize("path", [*TEXTS, *BENCHMARKS], ids=lambda path: path.name)
def test_links_files_commands_and_options_exist(path):
    text = _read(path)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert "://" in target or (path.parent / target).exists(), target
    for name in re.findall(r"(?:tests|benchmarks|pipeline)/[\w/]+\.(?:py|md)\b", text):
        assert (REPOSITORY / name).is_file() or "NAME" in name, name
    for module in re.findall(
        r"python -m ((?:pipeline|tests|benchmarks)[a-z_.]*[a-z_])", text
    ):
        file = REPOSITORY / module.replace(".", "/")
        assert file.with_suffix(".py").is_file() or (file / "__main__.py").is_file(), (
            module
        )
    for command in re.findall(r"(?:^|`)pipeline ([a-z]+) [^\n]", text, re.MULTILINE):
        assert command in commands(), command
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text):
        # The reader's own files.
        mine = name.startswith("mine") or name in ("pipeline.py", "make_digits.py")
        assert (PACKAGE / name).is_file() or (REPOSITORY / name).is_file() or mine, name
    siblings = [
        registry.find(k, n) for k in ("sources", "tasks") for n in registry.names(k)
    ]
    options = {option for sibling in siblings for option in sibling.options}
    for flag in re.findall(r"--[a-z]+\.[a-z][a-z-]*", text):
        section, _, option = flag.removeprefix("--").partition(".")
        known = section in ("source", "task") and option.replace("-", "_") in options
        assert (
            known or flag in cli_parser.flags(Config) or flag == "--section.option"
        ), flag
    short = {"--help", "--config", "--resume", "--lr", "--gpus", "--label-noise"}
    short |= cli_parser.flags(Config).keys() | cli_parser.short_flags(Config).keys()
    for line in re.findall(
        r"^pipeline (?:fit|clean|inspect) ([^#\n]*)", text, re.MULTILINE
    ):
        assert set(re.findall(r"(?<!\S)--[a-z-]+(?![\w.-])", line)) <= short, line


def test_every_promise_names_tests_that_exist():
    page = _read(REPOSITORY / "docs/promises.md")
    rows = re.findall(r"^\| (?!promise)(.*) \|$", page, re.MULTILINE)
    assert len(rows) > 80
    missing = []
    for promise, _, names in (row.rpartition(" | ") for row in rows):
        found = re.findall(r"`([\w/]+\.py)::(\w+)`", names)
        assert found, promise
        for file, name in found:
            path = REPOSITORY / "tests" / file
            tree = ast.parse(_read(path) if path.exists() else "")
            functions = {
                node.name for node in tree.body if isinstance(node, ast.FunctionDef)
            }
            missing += [] if name in functions else [f"{file}::{name} ({promise})"]
    assert not missing, "\n".join(["", *missing])


def test_the_first_example_of_the_readme_works(workplace):
    example, _ = _blocks(README, "python")  # the other: integration/test_own_keras.py
    assert len(example.strip().splitlines()) <= 11
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(example, {})
    *_, direct, served = (
        line for line in output.getvalue().splitlines() if line.strip()
    )
    assert "Run('runs/digits-1')" in output.getvalue() and direct == served
