"""Label noise: wrong labels among real digits come first, by a model that did not see them."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from pipeline import clean, label_noise, manifest
from pipeline.errors import UsageError
from pipeline.fit import fit


def flipped(count, seed=0):
    """(images, labels, true labels) of scikit-learn's digits; `count` labels are wrong."""
    from sklearn.datasets import load_digits

    digits, generator = load_digits(), np.random.default_rng(seed)
    labels = digits.target.copy()
    wrong = generator.choice(len(labels), count, replace=False)
    labels[wrong] = (labels[wrong] + generator.integers(1, 10, count)) % 10
    return digits.images, labels, digits.target


def test_most_of_500_wrong_labels_come_first():
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.model_selection import cross_val_predict

    images, labels, truth = flipped(500)
    model = ExtraTreesClassifier(200, random_state=0)
    flat = images.reshape(len(images), -1)
    probabilities = cross_val_predict(model, flat, labels, method="predict_proba")
    order, wrong = label_noise.rank(labels, probabilities)
    assert sorted(order) == list(range(len(labels)))
    assert not np.diff(wrong[order].astype(int)).clip(0).any(), "the likely errors come first"
    hits = int((labels != truth)[order[:500]].sum())
    assert hits >= 470, hits  # 479 and 480 with seeds 0 to 2


def test_the_command_ranks_the_held_out_labels_of_a_run(workplace, capsys):
    images, labels, truth = flipped(200)
    names = [f"digit {n}" for n in range(10)]
    pixels = (images * 15).astype(np.uint8)
    np.savez("mine.npz", images=pixels, labels=labels, class_names=names)
    run = fit(
        "digits",
        source={"name": "arrays", "path": "mine.npz"},
        train={"epochs": 8},
        log={"progress": False, "tensorboard": False},
    )
    assert clean.main(["--label-noise", str(run.directory), "--clean.no-near"]) == 0
    entries = manifest.read(Path("cleaned/digits-1/manifest.jsonl"))
    entries = [entry for entry in entries if entry["reason"] == "label noise"]
    held_out = np.concatenate([run.splits[name].column("id") for name in ("validation", "test")])
    wrong = set(held_out[labels[held_out] != truth[held_out]].tolist())
    found = [entry["id"] for entry in entries]
    assert set(found) <= set(held_out.tolist()) and len(set(found)) == len(found)
    assert {entry["action"] for entry in entries} == {"keep"}
    assert len(wrong & set(found)) >= 0.8 * len(wrong)  # of these splits, 42 of 50
    assert len(wrong & set(found)) >= 0.8 * len(found)
    first = entries[0]
    assert f"for digit {truth[first['id']]}" in first["detail"]
    assert "label noise" in capsys.readouterr().out
    assert "label noise" in Path("cleaned/digits-1/gallery.html").read_text()
    Path(run.directory, "result.json").unlink()
    with pytest.raises(UsageError, match="has no export that is still there; repeat its command"):
        clean.main(["--label-noise", str(run.directory)])


def test_without_cleanlab_one_line_says_so(workplace, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "cleanlab" else real(name)
    )
    with pytest.raises(UsageError, match="--label-noise needs the package cleanlab: pip install"):
        clean.main(["--label-noise", "runs/digits-1"])
    with pytest.raises(UsageError, match="has its own recipe; leave 'digits' away"):
        clean.main(["digits", "--label-noise", "runs/digits-1"])
    with pytest.raises(UsageError, match="--label-noise needs a folder"):
        clean.main(["--label-noise"])
