"""Label noise: wrong labels among real digits are ranked first by
out-of-fold models.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from pipeline import clean
from pipeline.utils.errors import UsageError

QUICK = """{
    "recipe": "digits", "source": {"name": "arrays", "options": {"path": "mine"}},
    "model": {"name": "linear"}, "data": {"augment": {}},
    "train": {"epochs": 8, "optimizer": "adam", "learning_rate": 0.02, "schedule": "cosine"},
    "log": {"progress": false, "tensorboard": false}
}"""


def flipped(count, seed=0):
    """(images, labels, true labels) of scikit-learn's digits; `count`
    labels are wrong.
    """
    from sklearn.datasets import load_digits

    digits, generator = load_digits(), np.random.default_rng(seed)
    labels = digits.target.copy()
    wrong = generator.choice(len(labels), count, replace=False)
    labels[wrong] = (labels[wrong] + generator.integers(1, 10, count)) % 10
    return digits.images, labels, digits.target


def a_run(images, labels, path="runs/digits-1", held_out=400, **more):
    """The config of a run on images in two splits, of which `held_out` are the test."""
    for name, part in {"train": slice(held_out, None), "test": slice(held_out)}.items():
        Path("mine", name).mkdir(parents=True)
        np.save(f"mine/{name}/images.npy", (images[part] * 15).astype(np.uint8))
        np.save(f"mine/{name}/labels.npy", labels[part])
    Path(path).mkdir(parents=True)
    Path(path, "config.json").write_text(json.dumps({**json.loads(QUICK), **more}))
    return path


def test_bad_requests_are_reported_in_one_line(workplace, monkeypatch):
    run = a_run(*flipped(0)[:2])
    source = {"name": "scikit_learn", "options": {"dataset": "diabetes"}}
    Path("regression").mkdir()
    values = {"task": {"name": "regression"}, "source": source}
    Path("regression/config.json").write_text(json.dumps(values))
    for words, message in [
        (["--folds", "1"], "--folds must be a whole number from 2 to 1000; got 1"),
        (
            ["--folds", "300"],
            "--folds 300: each fold needs an example of '8', which has only 174",
        ),
        (["--label-noise", "mine"], "mine is not a run: it has no config.json; choose"),
        (
            ["--label-noise", "regression"],
            "one class for each example; the task of this run is number from features",
        ),
    ]:
        given = words if "--label-noise" in words else ["--label-noise", run, *words]
        with pytest.raises(UsageError, match=message):
            clean.main(given)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="--label-noise.*cleanlab"):
        clean.main(["--label-noise", run])
