"""Occlusion: what a part adds is what the prediction loses without it."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config import registry
from pipeline.evaluation.occlusion import influence

WORDS = ["the", "good", "film", "is", "not", "bad"]
SCORES = {"good": 2.0, "bad": -1.0}
METADATA = {
    "input": "text",
    "unit": "words",
    "vocabulary": WORDS,
    "length": 8,
    "bytes": 64,
}
TARGETS = {
    "classes": {"class_names": ["a", "b"]},
    "labels": {"class_names": ["a", "b"]},
    "number": {"target_shape": []},
}


def task_of(target):
    metadata = {**METADATA, "target": target, **TARGETS[target]}
    return registry.load("tasks", "supervised")(metadata)


def outputs(examples):
    """The sum of the scores of the words, as the second of two logits."""
    table = np.array([0, 0, *(SCORES.get(word, 0) for word in WORDS)])
    total = table[examples["tokens"]].sum(axis=1)
    return tf.constant(np.stack([0 * total, total], axis=1), tf.float32)


def example_of(task, text, **fields):
    decoded, _ = task.input.decode({"text": tf.constant(text)})
    return {name: value.numpy() for name, value in decoded.items()} | fields


def test_the_influence_of_a_word_is_the_probability_that_the_answer_loses():
    task = task_of("classes")
    example = example_of(task, "The film, not bad: good!", id=7, label=1)
    result = influence(outputs, task, example)
    assert result.parts == ["the", "film", ",", "not", "bad", ":", "good", "!"]

    def probability(score):
        return 1 / (1 + np.exp(-score))

    expected = np.zeros(8)
    expected[4] = probability(1) - probability(2)
    expected[6] = probability(1) - probability(-1)
    np.testing.assert_allclose(result.values, expected, atol=1e-6)
    assert [word for word, _ in result.strongest(2)] == ["good", "bad"]


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_of_texts_names_the_output(target):
    task = task_of(target)
    result = influence(outputs, task, example_of(task, "good good", id=0))
    assert len(result.values) == 2 and np.isfinite(result.values).all()


def test_an_example_without_parts_has_none():
    task = task_of("classes")
    assert influence(outputs, task, example_of(task, "", id=0)) is None
    images = registry.load("tasks", "supervised")(
        {
            "input": "image",
            "image_shape": [8, 8, 1],
            "target": "classes",
            "class_names": ["a", "b"],
        }
    )
    example = {"id": 0, "image": np.zeros((8, 8, 1), np.uint8)}
    assert influence(outputs, images, example) is None


def test_many_words_are_answered_in_batches_of_one_size_at_most():
    sizes = []

    def count(examples):
        sizes.append(len(examples["id"]))
        return outputs(examples)

    task = registry.load("tasks", "supervised")(
        {**METADATA, "length": 300, "bytes": 4096, "target": "classes"}
        | TARGETS["classes"]
    )
    result = influence(count, task, example_of(task, "good film " * 150, id=0))
    assert len(result.parts) == 100 and sizes == [64, 37]
