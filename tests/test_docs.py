"""README and docs: they build without warnings, and what they show and name exists and works."""

import contextlib
import dataclasses
import importlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

import pipeline
from pipeline.__main__ import commands
from pipeline.config import cli_parser, command_line, registry
from pipeline.config.config import Config

README = REPOSITORY / "README.md"
PAGES = sorted((REPOSITORY / "docs").glob("*.md"))
TEXTS = [README, REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "saved_models/README.md", *PAGES]


BENCHMARKS = sorted((REPOSITORY / "benchmarks").glob("*.md"))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _blocks(path: Path, language: str) -> list[str]:
    found = re.findall(r"^```(\S*)\n(.*?)^```$", _read(path), flags=re.DOTALL | re.MULTILINE)
    return [block for kind, block in found if kind == language]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation as Sphinx builds it; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "text", "docs", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.txt")}


def test_the_command_reference_has_every_command_option_and_function(site):
    page = " ".join(site["commands"].split())
    for flag in cli_parser.flags(Config):
        negated = "no-" in flag and flag not in ("--source", "--task", "--model")
        assert f'"{flag}"' in page or negated or "." not in flag, flag
    for kind in registry.REGISTRIES:
        for name in registry.names(kind):
            assert f"{name} ~~~" in page
            for option, about in registry.find(kind, name).options.items():
                assert f'"{option}"' in page
                assert " ".join(about.meaning.replace("`", '"').split())[:30] in page
    for name, summary in commands().items():
        assert f"{name} {'-' * len(name)} {summary}" in page
    assert "usage: python -m pipeline.fit [RECIPE]" in page


def test_the_api_page_has_every_public_name(site):
    for name in pipeline.__all__:
        value = getattr(pipeline, name)
        if isinstance(value, type):
            module = (
                "pipeline.contracts" if value.__module__ == "pipeline.contracts" else "pipeline"
            )
            assert re.search(rf"^class {module}\.{name}\b", site["api"], re.MULTILINE), name
    for name in ("fit.fit(", "inspect.inspect(", "contracts.Source\n", "contracts.Task("):
        assert f"pipeline.{name}" in site["api"]


def test_the_readme_is_short_and_lists_the_commands():
    lines = _read(README).splitlines()
    assert len(lines) <= 200
    listed = dict(re.findall(r"^\| `pipeline (\w+)[^|]*` \| (.*) \|$", _read(README), re.MULTILINE))
    assert listed == commands()


def test_the_tree_of_the_readme_is_that_of_the_package():
    (tree,) = (block for block in _blocks(README, "") if block.startswith("pipeline/\n"))
    package = REPOSITORY / "pipeline"
    listed = set(re.findall(r"^  (?:  )?(\w+)/", tree, flags=re.MULTILINE))
    listed |= set(re.findall(r"(\w+\.py)", tree))
    there = {path.parent.name for path in package.glob("*/__init__.py")}
    there |= {path.name for path in package.glob("[!_]*.py")}
    assert listed - {"optim"} == there
    starred = set(re.findall(r"(\w+)/ \*", tree))
    folders = {Path(folder).name for folder, _ in registry.REGISTRIES.values()}
    assert starred == folders


def test_the_tree_of_the_architecture_is_that_of_the_package():
    (tree,) = (
        block
        for block in _blocks(REPOSITORY / "docs/architecture.md", "")
        if block.startswith("pipeline/\n")
    )
    names, listed, starred = [], set(), set()
    for line in tree.splitlines():
        if found := re.match(r"( *)(\w+)/( \*)?", line):
            names = [*names[: len(found[1]) // 2], found[2]]
            listed.add(REPOSITORY.joinpath(*names))
            starred |= {REPOSITORY.joinpath(*names)} if found[3] else set()
        elif re.match(r"  \w", line):
            names = ["pipeline"]
        for name in re.findall(r"\w+\.py", line):
            assert REPOSITORY.joinpath(*names, name).is_file(), line
    package = REPOSITORY / "pipeline"
    assert listed == {package, *(path.parent for path in package.rglob("__init__.py"))}
    assert starred == {package / folder for folder, _ in registry.REGISTRIES.values()}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_links_lead_somewhere_and_named_files_exist(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", _read(path)):
        assert "://" in target or (path.parent / target).exists(), target
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", _read(path)):
        inside = REPOSITORY / "pipeline" / name
        mine = name.startswith("mine") or name == "pipeline.py"  # the reader's own files
        assert inside.is_file() or (REPOSITORY / name).is_file() or mine, name


@pytest.mark.parametrize("path", [*TEXTS, *BENCHMARKS], ids=lambda path: path.name)
def test_commands_that_are_named_exist(path):
    text = _read(path)
    for module in re.findall(r"python -m ((?:pipeline|tests)[a-z_.]*[a-z_])", text):
        file = REPOSITORY / module.replace(".", "/")
        assert file.with_suffix(".py").is_file() or (file / "__main__.py").is_file(), module
    for command in re.findall(r"(?:^|`)pipeline ([a-z]+) [^\n]", text, re.MULTILINE):
        assert command in commands(), command
    for name in re.findall(r"(?:tests|benchmarks|pipeline)/[\w/]+\.(?:py|md)\b", text):
        assert (REPOSITORY / name).is_file() or "NAME" in name, name


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_options_that_are_named_exist(path):
    flags = cli_parser.flags(Config)
    siblings = [
        registry.find(kind, n) for kind in ("sources", "tasks") for n in registry.names(kind)
    ]
    options = {option for sibling in siblings for option in sibling.options}
    for flag in re.findall(r"--[a-z]+\.[a-z][a-z-]*", _read(path)):
        section, _, option = flag.removeprefix("--").partition(".")
        known = flag in flags or (section in ("source", "task") and option in options)
        assert known or flag == "--section.option", flag


def test_the_first_example_of_the_readme_works(workplace):
    (example,) = _blocks(README, "python")
    assert len(example.strip().splitlines()) <= 10
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(example, {})
    *_, ran, direct, served = (line for line in said.getvalue().splitlines() if line.strip())
    assert ran.startswith("Run(directory='runs/digits-1'") and direct == served


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The examples of docs/extending.md as the module `mine`."""
    page = REPOSITORY / "docs/extending.md"
    (tmp_path / "mine.py").write_text("\n".join(_blocks(page, "python")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("mine")
    del sys.modules["mine"]


def test_the_examples_of_extending_work(mine):
    config = command_line.recipe("mine.small_digits").changed(
        source={"name": "mine.stripes", "options": {"count": 300}},
        task={"name": "mine.ordered_classes"},
        model={"options": {"width": 16}},
        data={"augment": {"mine.invert": {"one_in": 3}}},
        train={
            "epochs": 9,
            "optimizer": "mine.rmsprop",
            "schedule": "mine.halving",
            "loss": "mine.focal",
            "metrics": {"mine.top_k": {"k": 1}},
            "callbacks": {"mine.stop_at": {"accuracy": 0.6}},
        },
        export={"enabled": False},
    )
    from pipeline.fit import fit

    run = fit(config)
    assert run.test["accuracy"] > 0.6 and run.test["rank_error"] == 1 - run.test["accuracy"]
    accuracies = run.history["accuracy"]
    assert accuracies == run.history["top_1"] and len(accuracies) < 9
    assert max(accuracies[:-1], default=0) < 0.6 <= accuracies[-1]
    metadata = {"class_names": ["a", "b", "c"]}
    assert _cross_entropy(mine.focal(metadata, gamma=0.0))
    metric = mine.top_k(metadata, k=2)
    metric.update_state([0, 1], [[1.0, 2, 3], [1, 2, 3]], sample_weight=[1.0, 1.0])
    assert metric.result() == 0.5


def test_extending_says_what_a_callback_is_given():
    page = _read(REPOSITORY / "docs/extending.md")
    table = page.partition("| attribute | what it is |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| ([^|]*)", table, re.MULTILINE))))
    from pipeline.training.callback_context import CallbackContext

    assert named == {field.name for field in dataclasses.fields(CallbackContext)}


def _cross_entropy(loss) -> bool:
    """Whether a loss is that of Keras, for class numbers and for shares of classes."""
    import keras
    import numpy as np
    import tensorflow as tf

    logits = tf.constant(np.random.default_rng(0).normal(size=(4, 3)), tf.float32)
    y = tf.constant([0, 2, 1, 1])
    wanted = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    found = loss(y, logits), loss(tf.one_hot(y, 3), logits)
    return all(np.allclose(one, wanted, rtol=1e-5) for one in found)
