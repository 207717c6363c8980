"""`import pipeline`: its names, its cost, and what type checkers see."""

import sys

import pytest
from processes import REPOSITORY, run_python

import pipeline
from pipeline.runtime import environment

_HEAVY = ("tensorflow", "keras", "numpy", "pipeline.config", "pipeline.fit")
_PROGRAM = f"""
import pipeline, sys
dir(pipeline)
print([name for name in {_HEAVY!r} if name in sys.modules])
pipeline.Config, pipeline.SourceConfig
print([name for name in {_HEAVY[:3]!r} if name in sys.modules])
"""


def test_importing_imports_nothing_else(tmp_path):
    alone, with_config = run_python(
        "-c", _PROGRAM, cwd=tmp_path, fresh=True
    ).stdout.splitlines()
    assert alone == with_config == "[]", "a Config needs neither TensorFlow nor NumPy"


def test_every_name_exists_and_is_documented():
    for name in pipeline.__all__:
        value = getattr(pipeline, name)
        assert name == "__version__" or value.__doc__, f"{name} has no docstring"
    assert set(pipeline.__all__) <= set(dir(pipeline)), "tab completion"
    with pytest.raises(AttributeError, match="'pipeline' has no attribute 'Confg'"):
        _ = pipeline.Confg
    fields = pipeline.Config.__dataclass_fields__
    assert fields["source"].type is pipeline.SourceConfig
    assert fields["task"].type is pipeline.TaskConfig
    assert pipeline.fit is sys.modules["pipeline.fit"], "it stays the module"


def test_the_version_is_that_of_the_distribution():
    text = (REPOSITORY / "setup.cfg").read_text(encoding="utf-8")
    assert "version = attr: pipeline.__version__" in text
    assert environment.versions()["pipeline"] == pipeline.__version__
