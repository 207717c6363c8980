"""Runs of linear regression in which something is not finite: a row, a loss, soon the
weights.
"""

import dataclasses
import json

import numpy as np
import tensorflow as tf

from pipeline.data import batching, dataset
from pipeline.fit import fit
from pipeline.utils.errors import Diverged

KINDS = ("features", "loss", "rate")
CHANGES = {
    "data": {"test": 0.1},
    "train": {
        "epochs": 3,
        "batch_size": 16,
        "learning_rate": 0.01,
        "steps_per_execution": 8,
    },
    "export": {"enabled": False},
    "log": {"progress": False, "tensorboard": False},
}


def settings(**changes):
    """The options of `fit`: `CHANGES`, and these over them, section by section."""
    return {
        **CHANGES,
        **{s: {**CHANGES.get(s, {}), **options} for s, options in changes.items()},
    }


def spoil(store, row, field, value):
    """Puts a value into a row of what is in memory, behind the back of all checks."""
    numbers = store.columns[field].numpy()
    numbers[(row, *(0,) * (numbers.ndim - 1))] = value
    store.columns[field], store.short[field] = tf.constant(numbers), numbers


def injected(patch, folder, kind, engine, generator, **train):
    """One run with a fault at a random place: (what is wrong with it, or None; its
    folder).

    A row's features are NaN or infinite; or a finite target's squared error overflows;
    or the learning rate is 1e6.
    """
    load, seen = dataset.load, {}

    def loaded(config, source):
        found = load(config, source)
        split = found.splits["train"]
        seen["split"] = split
        row = int(generator.choice(split.rows))
        seen["id"] = int(split.store.short["id"][row])
        if kind == "features":
            spoil(split.store, row, kind, generator.choice([np.nan, np.inf, -np.inf]))
        elif kind == "loss":
            spoil(split.store, row, "target", 1e30)
        return found

    rate = {"learning_rate": 1e6} if kind == "rate" else {}
    options = settings(train={"engine": engine, **rate, **train})
    with patch.context() as inner:
        inner.setattr(dataset, "load", loaded)
        try:
            run = fit("regression_linear", run_directory=folder, **options)
        except Diverged:
            run = None
    if (run is None) != (kind == "rate"):
        return f"{kind}: {'diverged' if run is None else 'came to an end'}"
    return _unsound(folder) or _unnamed(folder, kind, seen)


def _unsound(folder):
    for path in folder.glob("checkpoints/step-*/state.index"):
        reader = tf.train.load_checkpoint(str(path.with_suffix("")))
        for name, dtype in reader.get_variable_to_dtype_map().items():
            if dtype.is_floating and not np.isfinite(reader.get_tensor(name)).all():
                return f"{path}: {name} is not finite"
    return None


def _unnamed(folder, kind, seen):
    lines = [
        json.loads(line)
        for line in (folder / "bad_steps.jsonl").read_text().splitlines()
    ]
    if kind != "rate":
        wanted = ([seen["id"]], [f"example {seen['id']}"])
        wrong = [line for line in lines if (line["ids"], line["files"]) != wanted]
        # Each epoch sees all rows but those of the remainder.
        return (
            f"named {wrong}, not {wanted}"
            if wrong or not 1 <= len(lines) <= 3
            else None
        )
    options = dataclasses.replace(_train_options(), epochs=3, batch_size=16)
    batches = batching.training(seen["split"], options, 0)
    for line in lines[:3]:
        (batch,) = batches.dataset(line["step"] - 1).take(1)
        ids = batch["id"].numpy().tolist()
        if not line["ids"] or not set(line["ids"]) <= set(ids):
            return (
                f"step {line['step']}: named {line['ids']}, which are not its examples"
            )
    return None if lines else "nothing was named"


def _train_options():
    from pipeline.config import command_line

    return command_line.recipe("regression_linear").train
