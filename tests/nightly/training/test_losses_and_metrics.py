"""Registered metrics of a run against NumPy."""

import json

import numpy as np
from metrics_by_numpy import METRICS, by_numpy

from pipeline.fit import fit


def test_metrics_are_in_history_and_result(tmp_path):
    """The history is from padded batches; the result comes from all predictions at once."""
    run = fit(
        "digits",
        run_directory=tmp_path / "run",
        data={"limit": 300},
        model={"name": "tiny"},
        train={"epochs": 2, "metrics": METRICS},
        export={"enabled": False},
        log={"progress": False, "tensorboard": False},
    )
    lines = [
        json.loads(line)
        for line in (run.directory / "log.jsonl").read_text().splitlines()
    ]
    for split in ("validation", "test"):
        columns = run.splits[split].take(np.arange(len(run.splits[split])))
        images = run.task.input.prepare({"image": columns["image"]})["image"]
        wanted = by_numpy(columns["label"], run.network(images, training=False).numpy())
        found = json.loads((run.directory / "result.json").read_text())[split]
        assert {name: found[name] for name in wanted} == wanted
        if split == "validation":
            assert {name: run.history[f"val_{name}"][-1] for name in wanted} == wanted
    for name in ("sparse_top_k_categorical_accuracy", "val_macro_recall"):
        assert run.history[name] == [line[name] for line in lines]
