"""Label noise: wrong labels among real digits are ranked first by
out-of-fold models.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from pipeline import clean
from pipeline.data.cleaning import manifest
from pipeline.evaluation import label_noise
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


def test_most_of_500_wrong_labels_come_first():
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.model_selection import cross_val_predict

    images, labels, truth = flipped(500)
    model = ExtraTreesClassifier(200, random_state=0)
    flat = images.reshape(len(images), -1)
    probabilities = cross_val_predict(model, flat, labels, method="predict_proba")
    order, listed = label_noise.rank(labels, probabilities)
    assert sorted(order) == list(range(len(labels)))
    assert not np.diff(listed[order].astype(int)).clip(0).any(), "the list comes first"
    hits = int((labels != truth)[order[:500]].sum())
    assert hits >= 470, hits
    assert (labels != truth)[listed].mean() > 0.95 and listed.sum() > 400


@pytest.mark.long
def test_the_command_judges_all_labels_and_continues_after_an_interruption(
    workplace, capsys, monkeypatch
):
    from pipeline import fit

    images, labels, truth = flipped(200)
    images, labels, truth = images[:1200], labels[:1200], truth[:1200]
    # A copy in another split would stop a run; here both copies are in one fold.
    images[7], labels[7], truth[7] = images[600], labels[600], truth[600]
    run, folds = a_run(images, labels), []
    words = ["--label-noise", run, "--folds", "2", "--clean.no-near"]

    def once(config, **changes):
        if folds:
            raise KeyboardInterrupt
        folds.append(real(config, **changes))
        return folds[0]

    real = fit.fit
    monkeypatch.setattr(fit, "fit", once)
    with pytest.raises(KeyboardInterrupt):
        clean.main(words)
    said = capsys.readouterr().out
    assert "fold       1 of 2: accuracy 0." in said
    assert "with --clean.directory cleaned/digits-1 continues" in said
    assert not Path("cleaned/digits-1/manifest.jsonl").exists()
    monkeypatch.setattr(fit, "fit", real)
    assert clean.main([*words, "--clean.directory", "cleaned/digits-1"]) == 1, (
        "there is leakage"
    )
    said = capsys.readouterr().out
    assert (
        "1-of-2 was complete; nothing was trained" in said
        and "fold       2 of 2" in said
    )

    entries = manifest.read(Path("cleaned/digits-1/manifest.jsonl"))
    leaked = [entry for entry in entries if entry["reason"] == "leakage"]
    entries = [entry for entry in entries if entry["reason"] == "label noise"]
    found = np.array([entry["id"] for entry in entries])
    assert len(set(found.tolist())) == len(found)
    assert {entry["action"] for entry in entries} == {"keep"}
    assert {entry["split"] for entry in entries} == {"train", "test"}
    positions = np.array(
        [int(e["file"].split()[1]) + 400 * (e["split"] == "train") for e in entries]
    )
    wrong = labels != truth
    assert wrong[positions].mean() > 0.65  # 0.77; at least one half is promised
    assert wrong[positions].sum() > 0.8 * wrong.sum()
    assert f"for {truth[positions[0]]}" in entries[0]["detail"]
    ids = [
        np.concatenate(
            [*np.load(f"cleaned/digits-1/folds/{n}-of-2/splits.npz").values()]
        )
        for n in (1, 2)
    ]
    copies = {int(e[of]) for e in leaked for of in ("id", "of")}
    assert len(copies) == 2 and (copies <= set(ids[0]) or copies <= set(ids[1]))


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
