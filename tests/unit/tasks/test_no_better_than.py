"""What is said about a model that has learned nothing, and not about one that has."""

import numpy as np
import pytest
import tensorflow as tf
from random_evaluations import measure

from pipeline.data.in_memory import from_object
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.tasks.generation import generation
from pipeline.tasks.targets.boxes import BoxTarget
from pipeline.tasks.targets.classes import ClassTarget
from pipeline.tasks.targets.labels import LabelTarget
from pipeline.tasks.targets.mask import MaskTarget
from pipeline.tasks.targets.number import NumberTarget
from pipeline.tasks.targets.transcript import TranscriptTarget

RANDOM = np.random.default_rng(7)
COUNT = 200
CLASSES = RANDOM.choice(3, COUNT, p=[0.8, 0.1, 0.1])
LABELS = RANDOM.uniform(size=(COUNT, 4)) < [0.1, 0.3, 0.5, 0.7]
NUMBERS = RANDOM.normal(3, 2, (COUNT, 1)).astype(np.float32)
MASKS = (RANDOM.uniform(size=(COUNT, 4, 4)) < 0.1).astype(np.uint8)


def said(target, outputs, batch):
    metrics, _ = measure(target, outputs.astype(np.float32), batch, np.ones(COUNT))
    return evaluation_of(target).no_better_than(metrics)


def logits(classes, count):
    """Logits of confident predictions."""
    return 5.0 * np.eye(count)[classes]


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (logits(np.zeros(COUNT, int), 3), "always predicting 'a' (accuracy 0."),
        (RANDOM.normal(size=(COUNT, 3)), "always predicting 'a'"),
        (logits(CLASSES, 3) + RANDOM.normal(0, 3, (COUNT, 3)), ""),
        # The rare classes are found at the cost of accuracy.
        (logits(np.where(np.arange(COUNT) % 3, CLASSES, 1 + CLASSES % 2), 3), ""),
    ],
)
def test_classes(outputs, expected):
    target = ClassTarget({"class_names": ["a", "b", "c"]})
    found = said(target, outputs, {"label": CLASSES})
    assert found.startswith(expected) and bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("matrix", "is_useless"),
    [
        ([[2, 0], [0, 1]], False),  # perfect, of three examples
        ([[99, 0], [0, 1]], False),
        ([[83, 0], [1, 1]], False),  # a rare class is found
        ([[2, 0], [1, 0]], True),
        ([[83, 0], [2, 0]], True),
        ([[50, 10], [25, 15]], False),  # z = 2.4
        ([[40, 20], [25, 15]], True),  # z = 0.4
    ],
)
def test_classes_of_few_or_rare_examples(matrix, is_useless):
    pairs = [
        (true, predicted)
        for true, row in enumerate(matrix)
        for predicted, count in enumerate(row)
        for _ in range(count)
    ]
    true, predicted = np.array(pairs).T
    target = ClassTarget({"class_names": ["a", "b"]})
    outputs = logits(predicted, 2).astype(np.float32)
    loss = np.ones(len(true), np.float32)
    metrics, _ = measure(target, outputs, {"label": true}, loss)
    assert bool(evaluation_of(target).no_better_than(metrics)) == is_useless


def test_a_single_class_is_no_constant_answer():
    target = ClassTarget({"class_names": ["a", "b", "c"]})
    assert said(target, logits(CLASSES, 3), {"label": np.zeros(COUNT, int)}) == ""


@pytest.mark.parametrize("prediction", ["constant", "random", "informed"])
def test_labels(prediction):
    target = LabelTarget({"class_names": list("abcd")})
    outputs = {
        "constant": np.tile([-2.0, -1.0, 0.0, 1.0], (COUNT, 1)),
        "random": RANDOM.normal(size=(COUNT, 4)),
        "informed": LABELS + RANDOM.normal(size=(COUNT, 4)),
    }[prediction]
    found = said(target, outputs, {"labels": LABELS})
    assert found.startswith("chance") == (prediction != "informed")


@pytest.mark.parametrize("prediction", ["constant", "random", "informed"])
def test_numbers(prediction):
    outputs = {
        "constant": np.full((COUNT, 1), 3.1),
        "random": RANDOM.normal(3, 2, (COUNT, 1)),
        "informed": NUMBERS + RANDOM.normal(size=(COUNT, 1)),
    }[prediction]
    found = said(NumberTarget({}), outputs, {"target": NUMBERS[:, 0]})
    assert (found == "always predicting the mean") == (prediction != "informed")


@pytest.mark.parametrize("prediction", ["background", "random", "informed"])
def test_masks(prediction):
    target = MaskTarget({"class_names": ["ground", "cell"], "mask_shape": [4, 4]})
    noise = RANDOM.uniform(size=MASKS.shape)
    classes = {
        "background": np.zeros_like(MASKS),
        "random": (noise < 0.1).astype(np.uint8),
        # Most of what is found is ground, yet so is most of the cells found.
        "informed": np.maximum(MASKS, noise < 0.15),
    }[prediction]
    found = said(target, logits(classes, 2), {"mask": MASKS})
    assert found.startswith("always predicting 'ground' (9") == (
        prediction != "informed"
    )


@pytest.mark.parametrize(("ap50", "boxes"), [(0.004, 9), (0.4, 9), (0.0, 0)])
def test_boxes(ap50, boxes):
    target = BoxTarget({"class_names": ["cell"], "boxes_per_image": 5})
    metrics = {"ap50": ap50, "per_class": {"cell": {"boxes": boxes}}}
    expected = "finding no boxes (ap50 0.004)" if ap50 == 0.004 else ""
    assert evaluation_of(target).no_better_than(metrics) == expected


@pytest.mark.parametrize(
    ("truths", "predictions", "expected"),
    [
        (
            ("aaaaaa", "b", "b b"),
            ("", "a", ""),
            "always predicting an empty transcript",
        ),
        (("abba", "abba", "b"), ("a", "b", "a"), "always predicting 'abba'"),
        (("aaaaaa", "b", "b b"), ("aaaaa", "b", "b"), ""),
    ],
)
def test_transcripts(truths, predictions, expected):
    target = TranscriptTarget({"units": ["a", "b", " "], "transcript_length": 6})
    evaluator = evaluation_of(target).evaluator()
    for truth, prediction in zip(truths, predictions, strict=True):
        evaluator._add(truth, prediction)
    found = evaluation_of(target).no_better_than(evaluator.result())
    assert found.startswith(expected) and bool(found) == bool(expected)


@pytest.mark.parametrize("prediction", ["zero", "each pixel", "picture"])
def test_generated_pictures(prediction):
    """All pictures are one of two: to know which is to know all pixels."""
    kinds = RANDOM.integers(0, 256, (2, 6, 6, 1))
    labels = RANDOM.integers(0, 2, COUNT)
    noise = RANDOM.normal(0, 4, (COUNT, 6, 6, 1))
    images = (kinds[labels] + noise).clip(0, 255).astype(np.uint8)
    task = generation(from_object((images, labels)).info)
    batch = {
        "id": tf.range(COUNT, dtype=tf.int64),
        "image": tf.constant(images),
        "label": tf.constant(labels, tf.int64),
        "weight": tf.ones(COUNT),
    }
    inputs, velocity, _ = task.step_inputs(batch, batch["id"])
    time = inputs["time"].numpy()[:, None, None, None]
    noisy = inputs["image"].numpy()
    clean = task.input.prepare(batch)["image"].numpy()
    mean, variance = clean.mean(axis=0), clean.var(axis=0)
    share = (time * variance - (1 - time)) / (time**2 * variance + (1 - time) ** 2)
    outputs = {
        "zero": np.zeros_like(noisy),
        "each pixel": mean + share * (noisy - time * mean),
        "picture": clean - (noisy - time * clean) / np.maximum(1 - time, 0.01),
    }[prediction]
    loss = task.target.loss()(velocity, tf.constant(outputs, tf.float32))
    predictions = {
        **task.target.predict(tf.constant(outputs, tf.float32), batch),
        "loss": loss,
    }
    evaluator = evaluation_of(task.target).evaluator()
    evaluator.update(outputs, predictions, batch)
    metrics = evaluator.result()
    found = evaluation_of(task.target).no_better_than(metrics)
    assert found.startswith("drawing each pixel by itself") == (prediction != "picture")
    if prediction == "each pixel":
        independent = metrics["independent_pixels"]["loss"]
        assert metrics["loss"] == pytest.approx(independent, rel=0.15)
