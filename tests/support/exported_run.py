"""A finished run with an export, and what two exports are compared by."""

import contextlib
from pathlib import Path

import numpy as np

from pipeline.export import proof
from pipeline.fit import fit


def trained_in(folder):
    """A folder with a finished run, its data in a file, and version 1 of its model."""
    generator = np.random.default_rng(7)
    labels = np.arange(300) % 3
    images = generator.integers(0, 100, (300, 8, 8, 1), np.uint8)
    images[:, :4, :4, 0] += (60 * labels[:, None, None]).astype(np.uint8)
    np.savez(folder / "examples.npz", images=images, labels=labels)
    with contextlib.chdir(folder):
        source = {"name": "arrays", "path": "examples.npz"}
        train = {
            "epochs": 2,
            "steps_per_execution": 10,
            "ema": 0.9,
            "checkpoint_steps": 5,
        }
        model = {"name": "tiny"}
        fit("digits", source=source, train=train, model=model, run_directory="mine")
    return folder


def contents(folder):
    """Path -> content of the files of a folder, except pictures and locks."""
    return {
        str(path): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and path.name != ".lock" and path.suffix != ".png"
    }


def predictions(version):
    """The golden predictions of a version."""
    return proof.read_golden(Path(version) / proof.GOLDEN)["serving_default"]["outputs"]
