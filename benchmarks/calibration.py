"""What a temperature fitted on few examples does to the others' loss: `calibration.py FOLDER`.

FOLDER holds TensorFlow Datasets' `cifar10` and `fashion_mnist`. Networks are trained for a minute
or less; of the logits of their test examples 200 random parts are taken to fit a temperature, by
their likelihood alone and with priors of several widths; it is judged on 2,000 others, or all.
"""

import sys

import numpy as np

from pipeline.data import batching
from pipeline.evaluation import evaluate
from pipeline.fit import fit
from pipeline.tasks import _calibration

DRAWS = 200
SIZES = (10, 20, 50, 100, 200)
WIDTHS = (np.inf, 1.0, 0.5, 0.35, 0.25)
QUIET = {"export": {"enabled": False}, "log": {"progress": False, "tensorboard": False}}


def networks(folder):
    few = {"limit": 300, "test": 0.6, "validation": 0.05}
    source = {"path": folder}
    yield "digits", fit("digits", train={"epochs": 10}, **QUIET)
    yield "digits, 300", fit("digits", train={"epochs": 20}, data=few, **QUIET)
    given = {"source": source, "data": {"limit": 4000}, "train": {"epochs": 8}}
    yield "cifar10, 4,000", fit("cifar10_convnet", **given, **QUIET)
    given = {"source": source, "data": {"limit": 6000}, "train": {"epochs": 6}}
    yield "fashion_mnist, 6,000", fit("fashion_mnist_lenet", **given, **QUIET)


def changes(logits, truth, size, width):
    """Of the loss of examples that were not fitted on, in nats; one for each draw."""
    generator, found = np.random.default_rng(size), []
    for _ in range(DRAWS):
        order = generator.permutation(len(truth))
        part, others = order[:size], order[size:][:2000]
        fitted = _calibration.temperature(logits[part], truth[part], width)
        before, after = (
            _calibration.measured(logits[others], truth[others], t)["loss"] for t in (1.0, fitted)
        )
        found.append(after - before)
    return np.array(found)


def main():
    lines = [f"| network | loss | best T | fitted on | {' | '.join(map(str, WIDTHS))} |"]
    lines.append("|---" * (4 + len(WIDTHS)) + "|")
    for name, run in networks(sys.argv[1]):
        test = batching.evaluation(run.splits["test"], run.config.train)
        said = evaluate.answers(run.model, run.task, test)
        logits, truth = said["outputs"], said["truth"]
        loss = _calibration.measured(logits, truth)["loss"]
        best = _calibration.temperature(logits, truth, np.inf)
        for size in (size for size in SIZES if size <= len(truth) / 2):
            found = [changes(logits, truth, size, width) for width in WIDTHS]
            cells = " | ".join(f"{of.mean():+.3f}, {of.max():+.3f}" for of in found)
            lines.append(f"| {name} | {loss:.3f} | {best:.2f} | {size} | {cells} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
