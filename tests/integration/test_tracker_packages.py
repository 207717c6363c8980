"""The callbacks of `pipeline.trackers` without the packages that they need; with them:
nightly/test_trackers.py.
"""

import sys

import pytest
from conftest import run_module

from pipeline import trackers
from pipeline.utils.errors import UsageError


@pytest.mark.parametrize(
    ("tracker", "package"),
    [
        (trackers.MLflow, "mlflow"),
        (trackers.WandB, "wandb"),
        (trackers.Trackio, "trackio"),
    ],
)
def test_a_missing_package_is_one_line_with_its_extra(tracker, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError) as caught:
        tracker()
    assert str(caught.value) == (
        f"{tracker.__name__} needs the package {package}: pip install {package}"
        f" (or install this package with its extra: '.[{package}]')"
    )


def test_a_command_names_the_extra_before_it_trains(tmp_path):
    """The package is hidden by a file that Python finds first."""
    code = "raise ModuleNotFoundError('No module named mlflow', name='mlflow')"
    (tmp_path / "mlflow.py").write_text(code)
    words = "digits --limit 100 --no-export --model tiny --train.callbacks"
    tracker = "pipeline.trackers:MLflow"
    done = run_module("pipeline.fit", *words.split(), tracker, cwd=tmp_path)
    assert done.returncode == 2 and "tracing" not in done.stdout
    assert done.stderr.count("\n") == 1 and "its extra: '.[mlflow]'" in done.stderr
