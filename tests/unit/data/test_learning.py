"""What a task learns from raw training examples, before anything is decoded."""

import json

import numpy as np
import pytest
import tensorflow as tf
from toy_problem import settings_of

from pipeline.config import objects, registry
from pipeline.config.sections import DataConfig
from pipeline.contracts import Info, Source
from pipeline.data import cache, dataset, splits
from pipeline.data.array_source import ArraySource
from pipeline.data.example_store import MemoryStore
from pipeline.data.splits import Split
from pipeline.runtime import run_directory
from pipeline.tasks.supervised import Supervised
from pipeline.utils.errors import UsageError

COUNT = 60
TEXTS = [f"word{number} word{number % 3} the" for number in range(COUNT)]


class Sentences(ArraySource):
    """Texts with a word that no other text has, and three classes."""

    def __init__(self):
        texts = np.array([text.encode() for text in TEXTS], object)
        labels = np.arange(COUNT) % 3
        super().__init__({"text": texts, "label": labels}, class_names=("a", "b", "c"))


class Words(Supervised):
    """`image` counts the words of a vocabulary of the training texts."""

    passes = 0
    not_decoded = frozenset({"class_names", "rarest"})

    def learn(self, examples):
        Words.passes += 1
        words = set()
        for batch in examples.batches():
            for text in batch["text"]:
                words.update(text.decode().split())
        return {
            "vocabulary": sorted(words),
            "rarest": float(min(examples.column("id"))),
        }

    def decode(self, example):
        words = tf.strings.split(example["text"])
        is_word = tf.equal(self.metadata["vocabulary"], words[:, None])
        counts = tf.reduce_sum(tf.cast(is_word, tf.uint8), axis=0)
        image = tf.pad(counts, [[0, 100 - len(self.metadata["vocabulary"])]])
        fields = {"image": tf.reshape(image, (10, 10, 1))}
        return {"id": example["id"], "label": example["label"], **fields}


def words(info):
    """The task of `Words`."""
    if isinstance(info, Info):
        names = list(info.class_names)
        metadata = {"class_names": names, "image_shape": [10, 10, 1]}
        return Words({"input": "image", "target": "classes", **metadata})
    return Words(info)


def settings_in(directory, **data):
    """The config of `Sentences` and `Words`, with the disk cache in a directory."""
    options = {"cache": "disk", "cache_directory": directory, "augment": {}, **data}
    source = {"name": objects.name_of(Sentences, "sources"), "options": {}}
    task = {"name": objects.name_of(words, "tasks")}
    return settings_of(source=source, task=task, data=options)


def words_of(*parts):
    numbers = np.concatenate([part.column("id") for part in parts]).tolist()
    return {word for number in numbers for word in TEXTS[number].split()}


def test_a_vocabulary_has_no_word_of_held_out_examples_with_one_cache(tmp_path):
    vocabularies = []
    for seed in (0, 1, 0):
        loaded = dataset.load(settings_in(tmp_path, split_seed=seed))
        train, *held_out = loaded.splits.values()
        vocabulary = loaded.metadata["vocabulary"]
        assert set(vocabulary) == words_of(train)
        assert words_of(*held_out) - {"the", *(f"word{n}" for n in range(3))}
        assert not set(vocabulary) & (words_of(*held_out) - words_of(train))
        np.testing.assert_array_equal(train.column("image").sum((1, 2, 3)), 3)
        (cached,) = [str(d) for d in loaded.decisions if d.name == "cache"]
        state = "found and verified" if vocabulary in vocabularies else "did not exist"
        assert state in cached
        vocabularies.append(vocabulary)
    assert vocabularies[0] == vocabularies[2] != vocabularies[1]


def test_a_resumed_run_does_not_learn_again(tmp_path):
    settings = settings_in(tmp_path / "cache").changed(run_directory=tmp_path / "run")
    run = run_directory.RunDirectory(tmp_path / "run")
    run.path.mkdir()
    Words.passes = 0
    first = dataset.load(settings)
    first.write(run)
    # As if another machine had learned something that differs slightly.
    saved = json.loads(run.metadata.read_text())
    run.metadata.write_text(json.dumps({**saved, "rarest": 7.5}))
    again = dataset.load(settings)
    assert Words.passes == 1 and again.metadata == {**first.metadata, "rarest": 7.5}
    assert again.task.metadata["vocabulary"] == first.metadata["vocabulary"]
    run.metadata.write_text(json.dumps({**saved, "image_shape": [9, 9, 1]}))
    with pytest.raises(UsageError, match="image shape.*changed"):
        dataset.load(settings)


class Recordings(Source):
    """Sounds of different lengths, of which one may be damaged."""

    def __init__(self, damaged=-1):
        number = tf.TensorSpec((), tf.int64)
        sound = tf.TensorSpec((None,), tf.float32)
        fields = {"id": number, "sound": sound, "place": tf.TensorSpec((2,), tf.int64)}
        self.info = Info(splits={"train": 90, "test": 8}, fields=fields)
        self.damaged = damaged

    def reader(self, split):
        first = 1000 if split == "test" else 0

        def read(position):
            check = tf.debugging.Assert(position != self.damaged, ["no such sound"])
            with tf.control_dependencies([check]):
                sound = tf.range(tf.cast(position % 7, tf.float32))
            id = position + first
            return {"id": id, "sound": sound, "place": tf.stack([id, -id])}

        return read

    def location(self, id):
        return f"{id}.wav"


def test_raw_examples_are_those_of_the_split_in_their_order():
    parts, _ = splits.divide(splits.included(Recordings(), {4, 5}), DataConfig())
    train = parts["train"]
    ids = train.column("id")
    assert 4 not in ids and 5 not in ids and (np.diff(ids) > 0).all()
    batches = list(train.batches())
    assert len(batches) > 1
    np.testing.assert_array_equal(np.concatenate([b["id"] for b in batches]), ids)
    lengths = [len(sound) for batch in batches for sound in batch["sound"]]
    assert lengths == (ids % 7).tolist()
    assert train.short_fields == {"id", "place"}
    np.testing.assert_array_equal(train.column("place"), np.stack([ids, -ids], 1))
    store = MemoryStore({"id": ids})
    raw = Split(store, np.arange(len(ids)), train).raw([7, 2])
    assert raw["id"].tolist() == [ids[7], ids[2]] and raw["sound"].dtype == object
    assert parts["test"].take([3])["id"] == [1003]


def test_a_raw_example_that_cannot_be_read_is_named():
    source = Recordings()
    train = splits.included(source)["train"]
    source.damaged = 50
    for read in (lambda: list(train.batches()), lambda: train.take([3, 50, 4])):
        with pytest.raises(UsageError, match="50.wav.*no such sound"):
            read()


def test_images_of_whole_numbers_need_no_pass_and_floats_one():
    images = np.random.default_rng(0).normal(size=(50, 4, 4, 1)).astype(np.float32)
    labels = np.arange(50) % 2
    for pixels in (images, images.astype(np.uint8)):
        source = ArraySource({"image": pixels, "label": labels}, class_names=("a", "b"))
        parts, _ = splits.divide(splits.included(source), DataConfig())
        task = registry.call("tasks", "image_classification", {}, source.info)
        seen = images[parts["train"].column("id")]
        expected = {"image_range": [float(seen.min()), float(seen.max())]}
        if pixels.dtype == np.uint8:
            source.reader = None  # cannot be read
            expected = {}
        assert task.learn(parts["train"]) == expected


@pytest.mark.parametrize("count", [5, 2000])
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_moments_of_features(count, dtype):
    features = np.random.default_rng(0).normal(1e3, 50, (700, count)).astype(dtype)
    source = ArraySource({"features": features, "target": features[:, 0]})
    train = splits.included(source, range(0, 700, 9))["train"]
    task = registry.call("tasks", "regression", {}, source.info)
    learned = task.learn(train)
    seen = features[np.arange(700) % 9 > 0].astype(np.float32).astype(np.float64)
    if count == 5:  # to the last bit
        assert learned["mean"] == seen.mean(axis=0).tolist()
        assert learned["deviation"] == seen.std(axis=0).tolist()
    np.testing.assert_allclose(learned["mean"], seen.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(learned["deviation"], seen.std(axis=0), rtol=1e-10)


def test_the_key_of_the_disk_cache_has_only_what_decode_reads(tmp_path):
    def folder(task, **metadata):
        task = type(task)({**task.metadata, **metadata})
        where = cache.directory_and_state(settings_of(), source, task, "train", no_ids)
        return where[0]

    source, no_ids = Sentences(), np.empty(0, np.int64)
    task = Words({**words(source.info).metadata, "vocabulary": ["a"], "rarest": 1.0})
    assert folder(task) == folder(task, rarest=2.0) != folder(task, vocabulary=["b"])
