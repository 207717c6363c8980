"""One function is all that a new source, model, metric, ... costs, in the package or outside."""

import importlib
import json
import shutil
import sys

import extensions
import numpy as np
import pytest
from conftest import REPOSITORY, run_module
from extensions import NAMES

from pipeline import Client
from pipeline.config import command_line, registry
from pipeline.fit import fit
from pipeline.utils.errors import UsageError


@pytest.fixture
def lab(workplace, monkeypatch):
    """A package of the user's in the current folder, with one module for each registry."""
    package = workplace / "lab"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(workplace)
    extensions.write(lambda kind: package / f"{kind}.py", lambda kind, name: dotted(kind))
    importlib.invalidate_caches()
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "lab"]:
        del sys.modules[name]


def dotted(kind: str) -> str:
    return f"lab.{kind}.{NAMES[kind][0]}"


def test_every_registry_is_extended():
    assert set(NAMES) == set(extensions.SOURCES) == set(registry.REGISTRIES)


def test_one_of_each_by_dotted_names_trains_evaluates_and_exports(lab):
    """With touching nothing else; each option has a value that is not its default."""
    run = fit(dotted("recipes"))
    assert run.directory.name == "stripes_quick-1"
    assert run.test["accuracy"] > 0.9 and run.test["grade_error"] == 1 - run.test["accuracy"]
    assert {"share_right", "val_share_right"} < set(run.history)
    np.testing.assert_allclose(run.history["share_right"], run.history["accuracy"], rtol=1e-6)
    assert run.config.data.augment == {dotted("augment"): {"levels": 5}}
    assert 24 in [getattr(layer, "units", None) for layer in run.model.layers]
    assert float(run.model.optimizer.rho) == pytest.approx(0.8)
    steps = run.result["steps"]
    assert (lab.parent / "engine.txt").read_text() == str(steps)
    lines = (run.directory / "diary.txt").read_text().split("\n")
    assert [line.partition(" ")[0] for line in lines] == ["0", "2", ""]
    assert run.export.resolve() == lab.parent / "saved_models/stripes_quick/1"
    images = run.splits["test"].column("image")[:8]
    with Client(run.export) as exported:
        answers = exported.predict(images=images)
    np.testing.assert_array_equal(answers["class"], run.predict(images=images)["class"])
    again = fit(dotted("recipes"), run_directory=run.directory, export={"enabled": False})
    assert again.result["steps"] == steps, "a finished run was trained again"
    values = json.loads((run.directory / "config.json").read_text())
    assert values["model"]["name"] == dotted("models")


@pytest.mark.parametrize("kind", NAMES)
def test_options_are_described_and_near_misses_are_named(lab, kind):
    name, option = NAMES[kind]
    sibling = registry.find(kind, dotted(kind))
    assert sibling.summary.endswith(".") and sibling.path == lab / f"{kind}.py"
    with pytest.raises(UsageError, match=f"has no function '{name[:-1]}'; did you mean '{name}'"):
        registry.find(kind, dotted(kind)[:-1])
    if option is None:
        return
    assert sibling.options[option].meaning
    with pytest.raises(UsageError, match=f"has no option '{option}s'; did you mean '{option}'"):
        registry.check(kind, dotted(kind), {f"{option}s": 1}, "{}")
    with pytest.raises(UsageError, match=f"{option} of {dotted(kind)} must be .*received None"):
        registry.check(kind, dotted(kind), {option: None}, "{}")


def changes_of(kind: str, name: str) -> dict:
    """What a Config takes to use a function of a registry."""
    section, option = {
        "sources": ("source", "name"),
        "tasks": ("task", "name"),
        "models": ("model", "name"),
        "augment": ("data", "augment"),
        "engines": ("train", "engine"),
        "callbacks": ("train", "callbacks"),
        "losses": ("train", "loss"),
        "metrics": ("train", "metrics"),
        "optimizers": ("train", "optimizer"),
        "schedules": ("train", "schedule"),
    }[kind]
    return {section: {option: {name: {}} if isinstance(_current(section, option), dict) else name}}


def _current(section: str, option: str) -> object:
    return getattr(getattr(command_line.recipe("digits"), section), option)


@pytest.mark.parametrize("kind", [kind for kind in NAMES if kind != "recipes"])
def test_a_module_that_raises_is_named_with_its_line_and_nothing_is_written(lab, kind):
    path = lab / f"{kind}.py"
    text = path.read_text()
    path.write_text(f"{text}\n\nraise ZeroDivisionError('on purpose')\n")
    line = len(text.splitlines()) + 3 - (not text.endswith("\n"))
    with pytest.raises(UsageError) as caught:
        fit("digits", **changes_of(kind, dotted(kind)))
    assert f"{path}, line {line}, raises while it is imported" in str(caught.value)
    assert "ZeroDivisionError: on purpose" in str(caught.value)
    assert not (lab.parent / "runs").exists()


def test_a_recipe_that_raises_is_named_with_its_line(lab):
    (lab / "recipes.py").write_text("def mine():\n    ...\n\n\n1 / 0\n")
    with pytest.raises(UsageError, match=r"recipes.py, line 5, raises .*ZeroDivisionError"):
        fit("lab.recipes.mine")


@pytest.fixture
def copy(workplace):
    """A copy of the package in the current folder, which is the first place where Python looks."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "pipeline", workplace / "pipeline", ignore=ignored)
    return workplace / "pipeline"


def test_one_of_each_inside_the_package(copy):
    """Found by help texts, checks and `fit`, and by all that goes over a registry."""

    def place(kind):
        return copy / registry.REGISTRIES[kind][0] / f"{NAMES[kind][0]}.py"

    extensions.write(place, lambda kind, name: name)
    done = run_module(
        "pipeline.fit", "stripes_quick", "--export.no-enabled", cwd=copy.parent, fresh=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "share_right" in done.stdout and "grade_error" in done.stdout
    shown = run_module(
        "pipeline.fit", "stripes_quick", "--help", cwd=copy.parent, fresh=True
    ).stdout
    for kind in ("sources", "tasks", "models", "engines", "losses", "optimizers", "schedules"):
        assert NAMES[kind][0] in shown, kind
    wrong = run_module("pipeline.fit", "--model.name", "dens", cwd=copy.parent, fresh=True)
    assert wrong.returncode == 2 and "did you mean 'dense'" in wrong.stderr


def test_two_of_one_name_inside_the_package_end_with_both_places(copy):
    (copy / "models/another.py").write_text('"""Another."""\n\n\ndef tiny(x):\n    return x\n')
    done = run_module("pipeline.fit", "digits_tiny", cwd=copy.parent, fresh=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for place in ("models/another.py, line 4", "models/tiny.py, line "):
        assert place in done.stderr
    assert "both define 'tiny'" in done.stderr
    assert not (copy.parent / "runs").exists()
