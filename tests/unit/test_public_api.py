"""`import pipeline`: its names, its cost, and what type checkers see."""

import sys

import pytest
from processes import REPOSITORY

import pipeline
from pipeline.runtime import environment


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
