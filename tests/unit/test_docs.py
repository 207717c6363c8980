"""README and docs: what they name exists."""

import ast
import functools
import re
import runpy
from pathlib import Path

import pytest
from processes import REPOSITORY

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
COMMANDS = commands()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def flags() -> set[str]:
    return set(cli_parser.flags(Config))


@functools.cache
def function_options() -> set[str]:
    """Options of all sources and tasks."""
    functions = [
        registry.find(k, n) for k in ("sources", "tasks") for n in registry.names(k)
    ]
    return {option for function in functions for option in function.options}


def test_the_readme_lists_the_commands():
    listed = dict(
        re.findall(
            r"^\| `pipeline (\w+)[^|]*` \| (.*) \|$", _read(README), re.MULTILINE
        )
    )
    assert listed == COMMANDS


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_the_source_tree_is_that_of_the_docstrings(page):
    """`python docs/source_tree.py` writes it."""
    source_tree = runpy.run_path(str(REPOSITORY / "docs/source_tree.py"))
    text = _read(REPOSITORY / page)
    assert text == source_tree["updated"](page)
    assert "  training/ " in text and "  models/ *" in text


def test_each_module_and_package_says_what_it_is_for():
    for path in PACKAGE.rglob("*.py"):
        docstring = ast.get_docstring(ast.parse(_read(path))) or ""
        assert docstring.partition("\n\n")[0].rstrip().endswith((".", ":")), path
        if path.name == "__init__.py" and path.parent != PACKAGE:
            assert len(docstring.splitlines()) <= 5, path


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
        assert command in COMMANDS, command
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text):
        # The reader's own files.
        mine = name.startswith("mine") or name in ("pipeline.py", "make_digits.py")
        assert (PACKAGE / name).is_file() or (REPOSITORY / name).is_file() or mine, name
    for flag in re.findall(r"--[a-z]+\.[a-z][a-z-]*", text):
        section, _, option = flag.removeprefix("--").partition(".")
        known = (
            section in ("source", "task")
            and option.replace("-", "_") in function_options()
        )
        assert known or flag in flags() or flag == "--section.option", flag
    short = {"--help", "--config", "--resume", "--lr", "--gpus", "--label-noise"}
    short |= flags() | cli_parser.short_flags(Config).keys()
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
        found = re.findall(r"`([\w/.]+\.py)::(\w+)`", names)
        assert found, promise
        for file, name in found:
            path = REPOSITORY / "tests" / file
            tree = ast.parse(_read(path) if path.exists() else "")
            functions = {
                node.name for node in tree.body if isinstance(node, ast.FunctionDef)
            }
            missing += [] if name in functions else [f"{file}::{name} ({promise})"]
    assert not missing, "\n".join(["", *missing])
