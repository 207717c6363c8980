"""Measures how a temperature fitted on few examples changes the loss of other examples.

    python benchmarks/scripts/calibration.py DIRECTORY

DIRECTORY contains `cifar10` and `fashion_mnist` as prepared by TensorFlow Datasets.
Each network trains for a minute or less. A temperature is then fitted on 200 random
subsets of its test logits, with the likelihood alone and with priors of several widths,
and evaluated on 2,000 of the other test examples (or on all others).
"""

import sys

import numpy as np

from pipeline.data import batching
from pipeline.evaluation import evaluate
from pipeline.fit import fit
from pipeline.utils import calibration

DRAWS = 200
SIZES = (10, 20, 50, 100, 200)
WIDTHS = (np.inf, 1.0, 0.5, 0.35, 0.25)
QUIET = {"export": {"enabled": False}, "log": {"progress": False, "tensorboard": False}}


def networks(directory):
    """Yields the name and the run of each network."""
    few = {"limit": 300, "test": 0.6, "validation": 0.05}
    source = {"path": directory}
    yield "digits", fit("digits", train={"epochs": 10}, **QUIET)
    yield "digits, 300", fit("digits", train={"epochs": 20}, data=few, **QUIET)
    options = {"source": source, "data": {"limit": 4000}, "train": {"epochs": 8}}
    yield "cifar10, 4,000", fit("cifar10_convnet", **options, **QUIET)
    options = {"source": source, "data": {"limit": 6000}, "train": {"epochs": 6}}
    yield "fashion_mnist, 6,000", fit("fashion_mnist_lenet", **options, **QUIET)


def changes(logits, truth, size, width):
    """Returns, for each draw, the change of the loss on examples not used for fitting,
    in nats.
    """
    generator, differences = np.random.default_rng(size), []
    for _ in range(DRAWS):
        order = generator.permutation(len(truth))
        subset, others = order[:size], order[size:][:2000]
        fitted = calibration.fit_temperature(logits[subset], truth[subset], width)
        before, after = (
            calibration.loss_and_error(logits[others], truth[others], t)["loss"]
            for t in (1.0, fitted)
        )
        differences.append(after - before)
    return np.array(differences)


def main():
    """Prints the table of `benchmarks/README.md`."""
    lines = [
        f"| network | loss | best T | fitted on | {' | '.join(map(str, WIDTHS))} |"
    ]
    lines.append("|---" * (4 + len(WIDTHS)) + "|")
    for name, run in networks(sys.argv[1]):
        test = batching.evaluation(run.splits["test"], run.config.train)
        parts = []
        for batch, _, outputs, _ in evaluate.outputs(run.network, run.task, test):
            truth = batch["label"].numpy()
            parts.append({"logits": outputs.numpy(), "truth": truth})
        logits, truth = evaluate.concatenate(parts).values()
        loss = calibration.loss_and_error(logits, truth)["loss"]
        best = calibration.fit_temperature(logits, truth, np.inf)
        for size in (size for size in SIZES if size <= len(truth) / 2):
            found = [changes(logits, truth, size, width) for width in WIDTHS]
            cells = " | ".join(
                f"{values.mean():+.3f}, {values.max():+.3f}" for values in found
            )
            lines.append(f"| {name} | {loss:.3f} | {best:.2f} | {size} | {cells} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
