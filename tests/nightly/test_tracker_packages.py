"""The callbacks of `pipeline.trackers` without the packages that they need; with them:
nightly/test_trackers.py.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import run_python

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


def test_fit_names_the_extra_before_it_imports_tensorflow_or_writes(tmp_path):
    code = """
import sys
sys.modules["mlflow"] = None  # as if it were not installed
from pipeline import UsageError, fit
try:
    fit.main(["digits", "--train.callbacks", "pipeline.trackers:MLflow"])
except UsageError as error:
    print(error, "tensorflow" in sys.modules)
"""
    done = run_python("-c", code, cwd=tmp_path, fresh=True)
    assert done.stdout == (
        "MLflow needs the package mlflow: pip install mlflow (or install this package"
        " with its extra: '.[mlflow]') False\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("runs/digits-1", "digits-1"),
        ("/digits", "digits"),
        ("trials/mine", "mine"),
        ("runs/digits-1/folds/2", "digits-1 fold 2"),
        ("sweeps/digits-3/trials/004", "digits-3 trial 004"),
    ],
)
def test_a_record_names_the_run_of_a_fold_or_trial(directory, name):
    assert trackers._name(SimpleNamespace(directory=Path(directory))) == name
