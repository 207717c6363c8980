"""Predictions of a classifier to random images, as an `Evaluation`."""

import numpy as np
import tensorflow as tf

from pipeline.config import registry
from pipeline.data.example_store import MemoryStore
from pipeline.data.splits import Split
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.report.evaluation import Evaluation


def measure(target, outputs, batch, loss):
    """(metrics, table) of these outputs, as the evaluator and the table of a target give
    them in two batches."""
    evaluator = evaluation_of(target).evaluator()
    tables = []
    half = len(outputs) // 2
    for rows in (slice(0, half), slice(half, None)):
        if not len(outputs[rows]):
            continue
        part = {name: tf.constant(values[rows]) for name, values in batch.items()}
        results = tf.constant(outputs[rows])
        predictions = {
            **target.predict(results, part),
            "loss": tf.constant(loss[rows]),
        }
        evaluator.update(results, predictions, part)
        tables.append(evaluation_of(target).table(predictions, part))
    table = {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}
    return evaluator.result(), table


def evaluation_of_classes(names, wrong, shape=(8, 8, 1), count=60, dtype=np.uint8):
    """Predictions to random images; those at the positions `wrong` are the next class, with
    probabilities that fall from 0.95."""
    labels = np.arange(count) % len(names)
    answered = labels.copy()
    answered[wrong] = (labels[wrong] + 1) % len(names)
    sure = np.full(count, 0.6, np.float32)
    sure[wrong] = 0.95 - 0.3 * np.arange(len(wrong)) / max(1, len(wrong))
    rest = (1 - sure) / (len(names) - 1)
    probabilities = np.repeat(rest[:, None], len(names), axis=1)
    probabilities[np.arange(count), answered] = sure
    outputs = np.log(probabilities)
    ids = np.arange(count) + 1000
    pixels = np.random.default_rng(0).integers(0, 256, (count, *shape)).astype(dtype)
    examples = {"id": ids, "image": pixels, "label": labels}
    metadata = {"class_names": names, "image_shape": list(shape)}
    task = registry.load("tasks", "image_classification")(metadata)
    loss = -np.log(probabilities[np.arange(count), labels])
    metrics, table = measure(task.target, outputs, {"label": labels}, loss)

    def predict(examples):
        results = tf.constant(outputs[examples["id"] - 1000])
        predictions = task.target.predict(results, {})
        return {name: values.numpy() for name, values in predictions.items()}

    return Evaluation(
        "test",
        task,
        metrics,
        {"id": ids, **table},
        Split(MemoryStore(examples), np.arange(count)),
        lambda id: f"{names[0]}/{id}.jpg",
        predict,
    )
