"""`import pipeline`: what it offers, what it costs, and what type checkers see."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

import pipeline

_HEAVY = ("tensorflow", "keras", "numpy", "pipeline.config", "pipeline.fit")
_MEASURE = f"""
import sys, time
before = time.perf_counter()
import pipeline
seconds = time.perf_counter() - before
names = dir(pipeline)
print(seconds, [name for name in {_HEAVY!r} if name in sys.modules])
pipeline.Config, pipeline.Source
print([name for name in {_HEAVY[:3]!r} if name in sys.modules])
"""


def _python(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_importing_takes_less_than_a_tenth_of_a_second_and_imports_nothing_else(tmp_path):
    lines = min((_python(_MEASURE, tmp_path) for _ in range(3)), key=lambda text: text.split()[0])
    first, with_config = lines.splitlines()
    seconds, _, imported = first.partition(" ")
    assert float(seconds) < 0.1 and imported == "[]"
    assert with_config == "[]", "a Config needs neither TensorFlow nor NumPy"


def test_every_name_is_there_and_documented():
    for name in pipeline.__all__:
        value = getattr(pipeline, name)
        assert name == "__version__" or value.__doc__, f"{name} has no docstring"
    assert set(pipeline.__all__) <= set(dir(pipeline)), "tab completion"
    with pytest.raises(AttributeError, match="'pipeline' has no attribute 'Confg'"):
        _ = pipeline.Confg


def test_sections_and_contracts_of_one_name_are_two_classes():
    assert pipeline.Config.__dataclass_fields__["source"].type is pipeline.Source
    assert pipeline.Config.__dataclass_fields__["task"].type is pipeline.Task
    assert pipeline.contracts.Source is not pipeline.Source
    assert pipeline.contracts.Info is pipeline.Info


def test_fit_remains_the_module():
    from pipeline import fit

    assert fit is pipeline.fit is sys.modules["pipeline.fit"]
    assert pipeline.Run is fit.Run and callable(fit.fit)


def test_type_checkers_see_the_same_names_at_the_same_places():
    tree = ast.parse(Path(pipeline.__file__).read_bytes())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: f"pipeline.{alias.name}" if node.module == "pipeline" else node.module
        for node in block.body
        for alias in node.names
    }
    assert seen == pipeline._MODULES


def test_the_version_is_that_of_the_distribution():
    from pipeline.runtime import environment

    text = (REPOSITORY / "setup.cfg").read_text(encoding="utf-8")
    assert "version = attr: pipeline.__version__" in text
    assert environment.versions()["pipeline"] == pipeline.__version__
