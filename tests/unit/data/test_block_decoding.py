"""Arrays in memory are decoded many at a time, as one by one."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config import command_line
from pipeline.contracts import Target
from pipeline.data import batching, dataset, splits
from pipeline.data.array_source import ArraySource
from pipeline.data.example_store import OnTheFly, decoded_specs
from pipeline.data.splits import Subset
from pipeline.tasks.inputs.image import image
from pipeline.tasks.supervised import Supervised, supervised
from pipeline.tasks.targets.classes import ClassTarget
from pipeline.utils import tf_data
from pipeline.utils.errors import UsageError

COUNT = 30
RANDOM = np.random.default_rng(0)
TEXTS = [f"Word{number % 7} café number {number}".encode() for number in range(COUNT)]
INPUTS = {
    "features": RANDOM.normal(size=(COUNT, 4)).astype(np.float32),
    "whole": RANDOM.integers(-9, 9, (COUNT, 3)),
    "image": RANDOM.integers(0, 256, (COUNT, 6, 5, 3), np.uint8),
    "text": np.array(TEXTS, object),
}
TARGETS = {
    "label": np.arange(COUNT) % 3,
    "labels": RANDOM.integers(0, 2, (COUNT, 3), np.uint8),
    "target": RANDOM.normal(size=COUNT).astype(np.float32),
}
CONFIG = command_line.configure(["digits"]).changed(
    data={"cache": "memory", "augment": {}, "validation": 0.0, "test": 0.0}
)


def source_of(input, target):
    field = "features" if input == "whole" else input
    columns = {field: INPUTS[input], target: TARGETS[target]}
    names = None if target == "target" else ("a", "b", "c")
    return ArraySource(columns, class_names=names, name="mine.npz")


def task_of(source, **options):
    task = supervised(source.info, {"input_options": options})
    train = splits.included(source)["train"]
    return task.with_metadata(task.learn(train))


def store_of(source, task, excluded=()):
    included = splits.included(source, excluded)
    parts, _ = batching.load(included, included, task, CONFIG, excluded)
    return parts["train"].store


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("input", INPUTS)
def test_many_at_a_time_are_as_one_by_one(input, target):
    source = source_of(input, target)
    options = {"image_size": (4, 4), "resize": "letterbox"} if input == "image" else {}
    task = task_of(source, **options)
    assert task.decodes_batches
    store = store_of(source, task, excluded=[3])
    specs = decoded_specs(source, task)
    one_by_one = OnTheFly(source, task, "train", specs, source.columns("train"))
    rows = np.delete(np.arange(COUNT), 3)
    expected = one_by_one.take(rows)
    assert list(store.columns) == list(expected)
    for name, values in store.take(np.arange(COUNT - 1)).items():
        np.testing.assert_array_equal(values, expected[name])
        assert values.dtype == expected[name].dtype


class Reading(ArraySource):
    def reader(self, split):
        raise AssertionError("an example is read by itself")


def test_no_example_passes_through_a_graph_by_itself():
    columns = {"features": INPUTS["whole"], "label": TARGETS["label"]}
    source = Reading(columns, class_names=("a", "b", "c"))
    shapes = []

    class Watched(ClassTarget):
        decodes_batches = True

        def decode(self, example, geometry):
            shapes.append(example["label"].shape)
            return super().decode(example, geometry)

    task = task_of(source_of("whole", "label"))
    task = Supervised(task.metadata, task.input, Watched(task.metadata))
    store = store_of(source, task)
    np.testing.assert_array_equal(store.short["label"], TARGETS["label"])
    # Traced for the shapes of a single example, and for a batch.
    assert shapes.count(tf.TensorShape([None])) == 1


def test_a_cache_has_one_copy_of_the_arrays(monkeypatch):
    """TensorFlow uses the memory that the examples were decoded into."""
    decoded = {}

    def as_tensor(array):
        tensor = tf_data.as_tensor(array)
        decoded[tensor.ref()] = array
        return tensor

    monkeypatch.setattr(batching, "as_tensor", as_tensor)
    source = source_of("features", "target")
    store = store_of(source, task_of(source))
    for name, column in store.columns.items():
        assert np.shares_memory(store.short[name], decoded[column.ref()])
    np.testing.assert_array_equal(store.short["features"], INPUTS["features"])
    assert not np.shares_memory(store.short["features"], INPUTS["features"])


def test_a_subclass_says_itself_that_it_decodes_batches():
    class Single(ClassTarget):
        def decode(self, example, geometry):
            return super().decode(example, geometry)

    class Joined(Supervised):
        def decode(self, example):
            return super().decode(example)

    class Renamed(ClassTarget):
        pass

    task = task_of(source_of("features", "label"))
    parts = (task.metadata, task.input)
    assert not Supervised(*parts, Single(task.metadata)).decodes_batches
    assert not Joined(*parts, task.target).decodes_batches
    assert Supervised(*parts, Renamed(task.metadata)).decodes_batches


@pytest.mark.parametrize("decodes_batches", [True, False])
def test_equal_images_have_equal_digests_however_they_are_decoded(decodes_batches):
    images = INPUTS["image"].copy()
    images[20] = images[4]
    source = ArraySource({"image": images, "label": TARGETS["label"]})
    task = Supervised(
        {**image(source.info).metadata, "input": "image", "target": "classes"}
        | {"class_names": ["a", "b", "c"]}
    )
    task.decodes_batches = decodes_batches
    digest = store_of(source, task).digest
    assert digest[20] == digest[4]
    assert len({*digest.tolist()}) == COUNT - 1
    # Of TensorFlow's fingerprint of the serialized image.
    content = tf.io.serialize_tensor(images[7])
    assert digest[7] == tf.strings.to_hash_bucket_fast(content, tf.int64.max).numpy()


def test_exact_copies_among_arrays_are_noted(tmp_path):
    images = INPUTS["image"].copy()
    images[20] = images[4]
    path = tmp_path / "mine.npz"
    np.savez(path, images=images, labels=TARGETS["label"])
    config = command_line.configure(["digits", "--source.path", str(path)])
    loaded = dataset.load(config.changed(data={"augment": {}}))
    notes = [
        decision.value
        for decision in loaded.decisions
        if "copies" in str(decision) or "duplicates" in str(decision)
    ]
    assert any("example 4" in note and "example 20" in note for note in notes)


class Odd(Target):
    """Refuses the target 77."""

    decodes_batches = True

    def decode(self, example, geometry):
        values = example["target"]
        check = tf.debugging.Assert(tf.reduce_all(values != 77), ["a bad number"])
        with tf.control_dependencies([check]):
            return {"target": values * 2}

    y = head = loss = prediction = evaluator = None


def test_an_error_names_the_example():
    targets = TARGETS["target"].copy()
    targets[[17, 23]] = 77
    features = INPUTS["features"]
    source = ArraySource({"features": features, "target": targets}, name="mine.npz")
    task = task_of(source_of("features", "target"))
    Odd.__abstractmethods__ = frozenset()
    task = Supervised(task.metadata, task.input, Odd({}))
    with pytest.raises(UsageError, match=r"example 17 of mine.npz .*a bad number"):
        store_of(source, task)


def test_a_subset_and_a_memory_map(tmp_path):
    source = source_of("features", "label")
    part = Subset(source, {"train": np.array([2, 5])})
    arrays = part.arrays("train")
    np.testing.assert_array_equal(arrays["features"], INPUTS["features"][[2, 5]])
    np.testing.assert_array_equal(arrays["id"], [2, 5])
    np.save(tmp_path / "images.npy", INPUTS["image"])
    images = np.load(tmp_path / "images.npy", mmap_mode="r")
    mapped = ArraySource({"image": images, "label": TARGETS["label"]})
    assert mapped.arrays("train") is None


def test_learning_reads_thousands_of_texts_at_once():
    source = source_of("text", "label")
    (batch,) = splits.included(source)["train"].batches()
    assert batch["text"].tolist() == TEXTS
