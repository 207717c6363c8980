"""Every model of texts: any text has a finite prediction, and the model can be saved."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from registered_functions import TEXT_MODELS

from pipeline.config import registry
from pipeline.config.sections import ModelConfig
from pipeline.layers.tokens import importance
from pipeline.training.model_builder import copy_network, network
from pipeline.utils.errors import UsageError

WORDS = ["the", "good", "bad", "film", ","]


def task_of():
    metadata = {"input": "text", "target": "classes", "class_names": ["a", "b"]}
    metadata |= {"unit": "words", "vocabulary": WORDS, "length": 6, "bytes": 20}
    return registry.call("tasks", "supervised", {}, metadata)


def inputs_of(task, *texts):
    fields = [task.input.decode({"text": tf.constant(text)})[0] for text in texts]
    batch = {name: tf.stack([field[name] for field in fields]) for name in fields[0]}
    return task.input.network_inputs(task.input.prepare(batch))


ORDINARY = [
    name
    if name in ("bag", "text_transformer")
    else pytest.param(name, marks=pytest.mark.long)
    for name in TEXT_MODELS
]


@pytest.mark.parametrize("name", ORDINARY)
def test_texts_of_any_length_have_answers_that_padding_does_not_change(name):
    task = task_of()
    model = network(task, ModelConfig(name=name), "float32")
    generator = np.random.default_rng(0)
    model.set_weights([generator.normal(0, 0.3, w.shape) for w in model.get_weights()])
    texts = ["", "good", "The good, bad film", "film " * 50, "\U0001f600 \0 x"]
    predictions = model(inputs_of(task, *texts), training=False).numpy()
    assert predictions.shape == (5, 2) and np.isfinite(predictions).all()
    assert np.abs(predictions[0] - predictions[1]).max() > 1e-3
    for row, text in enumerate(texts):
        alone = model(inputs_of(task, text), training=False)
        np.testing.assert_allclose(alone[0], predictions[row], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ORDINARY)
def test_the_network_is_saved_with_layers_of_keras(name, tmp_path):
    task = task_of()
    model = network(task, ModelConfig(name=name), "mixed_bfloat16")
    copy = copy_network(model, task, ModelConfig(name=name))
    inputs = inputs_of(task, "good film")
    plain = keras.Model(copy.inputs, copy.outputs)
    plain.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(inputs), copy(inputs), atol=1e-6)
    assert model(inputs).dtype == "float32"


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_other_inputs_are_refused_in_a_line(name):
    with pytest.raises(UsageError, match=f"--model.name {name} is for texts"):
        registry.call("models", name, {}, keras.Input((4, 4, 3)))


def test_the_importance_of_an_ngram_is_its_log_count_ratio_times_its_rarity():
    layer = keras.layers.Embedding(5, 1)
    layer.build()
    # Bucket 1 is in both classes alike, 2 in the first one only; 0 is padding.
    ngrams = np.array([[1, 2, 0], [2, 2, 1], [1, 0, 0], [1, 3, 0]])
    shares = np.eye(2)[[0, 0, 1, 1]]
    importance(layer, [(ngrams[:3], shares[:3]), (ngrams[3:], shares[3:])])
    # Texts of a class with an n-gram plus 1, as shares of all n-grams.
    first = np.array([3, 3, 1, 1]) / 8
    second = np.array([3, 1, 2, 1]) / 7
    rarity = 1 + np.log((1 + 4) / (1 + np.array([4, 2, 1, 0])))
    expected = np.abs(np.log(first) - np.log(second)) * rarity
    np.testing.assert_allclose(layer.embeddings[1:, 0], expected, rtol=1e-6)
