"""Caching changes no bit; an example that cannot be decoded is named."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_problem import CLASSES, SIDE, TASK, loaded, machine, settings_of

from pipeline.config import registry
from pipeline.contracts import Info, Source
from pipeline.data import batching
from pipeline.training.model_builder import build
from pipeline.utils.errors import UsageError

COUNT = 40


class Pictures(Source):
    """Images in memory; if `damaged` is given, as PNG files of which that one is
    truncated.
    """

    def __init__(self, damaged=None, made_of="these"):
        self.made_of = made_of
        pixels = np.random.default_rng(0).integers(
            0, 256, (COUNT, SIDE, SIDE, 1), np.uint8
        )
        self._images, image = (
            tf.constant(pixels),
            tf.TensorSpec((SIDE, SIDE, 1), tf.uint8),
        )
        if damaged is not None:
            files = [tf.io.encode_png(picture).numpy() for picture in pixels]
            files[damaged] = files[damaged][:-30]
            self._images, image = tf.constant(files), tf.TensorSpec((), tf.string)
        number = tf.TensorSpec((), tf.int64)
        self.info = Info(
            splits={"train": COUNT},
            fields={"id": number, "image": image, "label": number},
            class_names=("a", "b", "c"),
        )

    def _example(self, position):
        label = position % CLASSES
        return {"id": position + 100, "image": self._images[position], "label": label}

    def reader(self, split):
        rows = tf.range(COUNT, dtype=tf.int64)  # of the place where the reader is made
        return lambda position: self._example(rows[position])

    def fingerprint(self):
        return self.made_of

    def location(self, id):
        return f"cats/{id}.png"


def load(source, excluded=(), **options):
    return loaded(source, TASK, excluded, **{"validation": 0.25, "test": 0, **options})


def train_with_cache(source, kind, engine="gradient_tape"):
    splits, decisions = load(source, cache=kind)
    settings = settings_of(train={"epochs": 2, "batch_size": 4})
    keras.utils.set_random_seed(0)
    batches = batching.training(splits["train"], settings.train, 0)
    validation = batching.evaluation(splits["validation"], settings.train)
    model = build(TASK, settings, machine(), batches)
    model.steps_per_execution = 3
    history = registry.load("engines", engine)(model, batches, validation, [])
    assert decisions[0].value == kind
    return [v.numpy() for v in model.variables], history


@pytest.fixture(autouse=True)
def cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def reference():
    return train_with_cache(Pictures(), "memory")


@pytest.mark.parametrize("kind", ["device", "disk", "none"])
def test_no_bit_depends_on_the_cache(kind, reference):
    weights, history = reference
    other_weights, other_history = train_with_cache(Pictures(), kind)
    assert history == other_history
    for value, other_value in zip(weights, other_weights, strict=True):
        np.testing.assert_array_equal(value, other_value)


@pytest.mark.parametrize("engine", registry.names("engines"))
def test_a_damaged_example_is_named_in_training_without_a_cache(engine):
    with pytest.raises(UsageError, match="cats/117.png cannot be decoded"):
        train_with_cache(Pictures(damaged=17), "none", engine)
