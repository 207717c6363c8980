"""Answers of a classifier to random images, as an `Evaluation`."""

import numpy as np

from pipeline.config import registry
from pipeline.data.example_store import MemoryStore
from pipeline.data.splits import Split
from pipeline.evaluation.answers import Evaluation


def evaluation_of(names, wrong, shape=(8, 8, 1), count=60, dtype=np.uint8):
    """Answers to random images; those at the positions `wrong` are the next class, with
    probabilities that fall from 0.95."""
    labels = np.arange(count) % len(names)
    answered = labels.copy()
    answered[wrong] = (labels[wrong] + 1) % len(names)
    sure = np.full(count, 0.6, np.float32)
    sure[wrong] = 0.95 - 0.3 * np.arange(len(wrong)) / max(1, len(wrong))
    rest = (1 - sure) / (len(names) - 1)
    probabilities = np.repeat(rest[:, None], len(names), axis=1)
    probabilities[np.arange(count), answered] = sure
    columns = {
        "id": np.arange(count) + 1000,
        "truth": labels,
        "class": answered,
        "probabilities": probabilities,
        "outputs": np.log(probabilities),
        "loss": -np.log(probabilities[np.arange(count), labels]),
    }
    pixels = np.random.default_rng(0).integers(0, 256, (count, *shape)).astype(dtype)
    examples = {"id": columns["id"], "image": pixels, "label": labels}
    metadata = {"class_names": names, "image_shape": list(shape)}
    task = registry.load("tasks", "image_classification")(metadata)
    split = Split(MemoryStore(examples), np.arange(count))
    return Evaluation(
        "test",
        task,
        task.evaluate(columns),
        columns,
        split,
        lambda id: f"{names[0]}/{id}.jpg",
    )
