"""Which labels a trained model doubts: confident learning on examples it was not trained on.

Northcutt, Jiang, Chuang, "Confident learning: estimating uncertainty in dataset labels", Journal
of Artificial Intelligence Research 2021, as the package cleanlab has it.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import UsageError

if TYPE_CHECKING:  # a missing package is told before TensorFlow is imported
    from pipeline.splits import Split

_AT_ONCE = 256  # examples


def require_cleanlab() -> None:
    """Raises UsageError unless the package is installed."""
    if importlib.util.find_spec("cleanlab") is None:
        raise UsageError(
            "--label-noise needs the package cleanlab: pip install cleanlab "
            "(or install this package with its extra: '.[clean]')"
        )


def rank(labels: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order in which a person should look at labels, and which of them are likely wrong.

    Args:
        labels: int64 (examples,), 0 ... classes - 1.
        probabilities: Of each class, by a model that was not trained on these examples, float
            (examples, classes).

    Returns:
        The most doubtful position first, int64 (examples,), and for each position whether
        confident learning takes its label for an error, bool (examples,). Those come first; within
        both parts the order is that of the probability of the given label.
    """
    from cleanlab.filter import find_label_issues

    wrong = np.asarray(find_label_issues(labels, probabilities, n_jobs=1), bool)
    own = probabilities[np.arange(len(labels)), labels]
    return np.lexsort((own, ~wrong)), wrong


def doubted(
    version: Path, splits: "Mapping[str, Split]", class_names: tuple[str, ...]
) -> dict[int, str]:
    """Id -> what is doubted, of the held-out examples, the most doubtful first.

    Args:
        version: An exported classifier of images.
        splits: Those of its run; `train` is not looked at.
        class_names: Of the labels.

    Raises:
        UsageError: Nothing was held out, or the model gives no probabilities.
    """
    import tensorflow as tf

    loaded = tf.saved_model.load(str(version))  # held, as a signature does not hold its weights
    served = loaded.signatures["serving_default"]
    takes = served.structured_input_signature[1]
    if "probabilities" not in served.structured_outputs or "images" not in takes:
        raise UsageError(f"--label-noise: {version} is no classifier of images")
    held_out = [split for name, split in splits.items() if name != "train"]
    if not held_out:
        raise UsageError("--label-noise: this run has held out no examples")
    answers = []
    for split in held_out:
        for start in range(0, len(split), _AT_ONCE):
            some = split.take(np.arange(start, min(start + _AT_ONCE, len(split))))
            answers.append(served(images=tf.constant(some["image"]))["probabilities"].numpy())
    probabilities = np.concatenate(answers)
    ids, labels = (np.concatenate([s.column(name) for s in held_out]) for name in ("id", "label"))
    order, wrong = rank(labels, probabilities)
    return {
        int(ids[at]): f"{probabilities[at, labels[at]]:.3f} for this label, "
        f"{probabilities[at].max():.3f} for {class_names[int(probabilities[at].argmax())]}"
        for at in order
        if wrong[at]
    }
