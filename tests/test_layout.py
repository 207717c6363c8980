"""The house keeps its own rules: layers, size of rooms, a README that tells the truth."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ROOMS = sorted((REPOSITORY / "pipeline").rglob("*.py"))
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_imports_point_downward_and_the_front_door_is_light():
    script = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([script], cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:]
    assert "Contracts: 3 kept, 0 broken" in result.stdout


def test_ruff_finds_nothing():
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "."]
        result = subprocess.run(ruff, cwd=REPOSITORY, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.parametrize("path", ROOMS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_a_room_is_small_and_says_what_it_owns(path):
    text = path.read_text(encoding="utf-8")
    if path.name == "__init__.py":
        assert text == "", "package files import nothing"
        return
    assert len(text.splitlines()) <= 400
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno <= 70, f"{node.name} is longer than a screen"


def test_readme_lists_every_room_and_nothing_else():
    listed = set(re.findall(r"^ *([a-z0-9_/]+\.py) ", README, flags=re.MULTILINE))
    there = {p.name for p in ROOMS if p.name != "__init__.py"}
    assert listed == there


def test_ci_runs_the_readme_test_command():
    commands = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    script = (REPOSITORY / ".ci/run").read_text(encoding="utf-8")
    assert "pipeline.fit" in commands[0] and "pytest" in commands[1]
    assert commands[1].strip() in script


def test_the_pinned_keras_has_the_security_fixes():
    import keras

    assert tuple(int(part) for part in keras.__version__.split(".")[:3]) >= (3, 15, 1)
