"""Occlusion: how much each part of an example, such as a word, adds to the prediction.

Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014,
section 4.2, cover parts of an image; Li, Monroe and Jurafsky, "Understanding Neural
Networks through Representation Erasure", arXiv:1612.08220, leave out words.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pipeline.contracts import Task

_BATCH = 64
_ACTIVATIONS = {"softmax": tf.nn.softmax, "sigmoid": tf.sigmoid}


class Influence(NamedTuple):
    """The parts of an example, and what each adds to the prediction."""

    parts: list[str]
    values: np.ndarray
    """The explained output, as a probability if it is a logit, minus that without the
    part; float32 (parts,).
    """

    def strongest(self, count: int) -> list[tuple[str, float]]:
        """The parts with the largest absolute values, the largest first."""
        order = np.argsort(-np.abs(self.values), kind="stable")[:count]
        return [(self.parts[row], float(self.values[row])) for row in order]


def influence(
    outputs_of: Callable[[Mapping[str, np.ndarray]], Any],
    task: Task,
    example: Mapping[str, Any],
) -> Influence | None:
    """How much each part of a decoded example adds to its prediction.

    Args:
        outputs_of: Calls the network with decoded examples; None if its outputs are not
            known.
        task: Its task.
        example: The fields of one example.

    Returns:
        None if the example has no parts, the task names no output, or the outputs are
        not known.
    """
    occluded = task.occlusions(example)
    if occluded is None or not occluded[0] or task.output is None:
        return None
    parts, variants = occluded
    examples = {}
    for field, value in example.items():
        whole = np.asarray(value)[None]
        changed = variants.get(field, np.repeat(whole, len(parts), axis=0))
        examples[field] = np.concatenate([whole, changed])
    batches = []
    for start in range(0, len(parts) + 1, _BATCH):
        rows = {name: v[start : start + _BATCH] for name, v in examples.items()}
        part = outputs_of(rows)
        if part is None:
            return None
        batches.append(tf.cast(part, tf.float32))
    outputs = tf.concat(batches, axis=0)
    if task.output.activation in _ACTIVATIONS:
        outputs = _ACTIVATIONS[task.output.activation](outputs)
    answered = tf.repeat(outputs[:1], len(parts) + 1, axis=0)
    scores = task.explained_output(outputs, answered)
    if scores is None:
        return None
    scores = scores.numpy()
    return Influence(parts, scores[0] - scores[1:])
