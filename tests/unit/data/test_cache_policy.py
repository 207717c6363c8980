"""Caching changes no bit; an example that cannot be decoded is named."""

import os

import numpy as np
import pytest
import tensorflow as tf
from picture_source import COUNT, Pictures, load
from toy_problem import CLASSES, SIDE, TASK, loaded, settings_of

from pipeline.config import config, registry
from pipeline.data import cache, example_store, splits
from pipeline.utils.errors import UsageError


@pytest.fixture(autouse=True)
def cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_disk_cache_follows_the_data(tmp_path):
    def note(excluded=()):
        return str(load(Pictures(), excluded, cache="disk")[1][0])

    assert note() == "disk (requested; train built, because it did not exist)"
    assert note() == "disk (requested; train found and verified)"
    assert "because the excluded examples changed" in note([103])


def disk_note(made_of="these", excluded=(), task=TASK, **options):
    """What is said about the disk cache, which keeps the ids alone here: nothing is
    decoded.
    """
    settings = settings_of(data={"cache": "disk", **options})
    source = splits.limit_examples(Pictures(made_of=made_of), settings.data)
    excluded = np.array(excluded, np.int64)
    folder, state = cache.directory_and_state(settings, source, task, "train", excluded)
    specs = {"id": tf.TensorSpec((), tf.int64)}
    ids = source.columns("train")["id"]
    return cache.load_or_build(folder, state, specs, [{"id": ids}])[1]


def test_what_the_disk_cache_depends_on():
    assert "did not exist" in disk_note()
    assert "the data changed" in disk_note("others")
    assert "the excluded examples changed" in disk_note("others", [103])
    assert "found" in disk_note("others", [103])
    assert "did not exist" in disk_note(limit=20)
    assert "found" in disk_note(limit=20)
    assert "the data changed" in disk_note(limit=20, split_seed=1)
    assert "the data changed" in disk_note(limit=20)


def test_the_disk_cache_follows_the_code_of_base_classes(tmp_path, monkeypatch):
    def note():
        import own_task

        return disk_note(task=own_task.Own(TASK.metadata))

    own_base = tmp_path / "own_base.py"
    own_base.write_text(
        "from pipeline.tasks.supervised import Supervised\n"
        "class Base(Supervised):\n    pass\n"
    )
    (tmp_path / "own_task.py").write_text(
        "from own_base import Base\nclass Own(Base):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for file in tmp_path.iterdir():
        os.utime(file, (0, 0))  # older than this process
    assert "did not exist" in note() and "found" in note()
    own_base.write_text(own_base.read_text() + "other = 1\n")
    assert "the decoding code changed" in note()
    assert "the decoding code changed" in note(), (
        "the loaded code may be older than the file"
    )


def test_a_damaged_example_is_named_unless_it_is_excluded():
    parts, _ = load(Pictures(damaged=17), excluded=[117], cache="none")
    assert sum(len(split.column("image")) for split in parts.values()) == COUNT - 1
    parts, _ = load(Pictures(damaged=17), excluded=[117], cache="memory")
    assert sum(len(split) for split in parts.values()) == COUNT - 1
    with pytest.raises(UsageError, match="cats/117.png.*--clean.enabled"):
        load(Pictures(17), cache="memory")


def test_the_decision_follows_the_free_memory(monkeypatch):
    class Machine:
        available = total = 10**6
        free = 10**9

    monkeypatch.setattr(cache.psutil, "virtual_memory", Machine)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: Machine)
    size = COUNT * (SIDE * SIDE + 8 + 8)

    def choose(source=None, **options):
        return cache.choose(source or Pictures(), specs(), config.DataConfig(**options))

    assert choose().value == "memory"
    monkeypatch.setattr(cache.devices, "memory", lambda: 3 * size)
    assert choose().value == "device"
    monkeypatch.setattr(cache.devices, "memory", lambda: 2 * size)
    assert choose().value == "memory"
    Machine.available = Machine.total = 2 * size - 1
    assert choose().value == "disk"
    assert choose(Pictures(made_of=None)).value == "none"
    Machine.free = 2 * size - 1
    assert choose().value == "none"
    with pytest.raises(UsageError, match="--data.cache memory"):
        choose(cache="memory")
    with pytest.raises(UsageError, match="--data.cache disk"):
        choose(Pictures(made_of=None), cache="disk")


def specs(task=TASK):
    return example_store.decoded_specs(Pictures(), task)


class Noted(type(TASK)):
    """Keeps another field of each example."""

    fields = staticmethod(lambda id: {})

    def decode(self, example):
        return {**super().decode(example), **self.fields(example["id"])}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_decoded_field_of_strings_is_refused(rank):
    task = Noted(TASK.metadata)
    task.fields = lambda id: {"note": tf.fill([2] * rank, tf.strings.as_string(id))}
    message = "the decoded field 'note' is string, but Task.decode must return numbers"
    for kind in ("auto", "none"):
        with pytest.raises(UsageError, match=message):
            cache.choose(Pictures(), specs(task), config.DataConfig(cache=kind))


class Measured(type(TASK)):
    """Keeps the brightness of each image, and the square of its id."""

    def decode(self, example):
        fields = super().decode(example)
        brightness = tf.reduce_mean(tf.cast(fields["image"], tf.float32))
        square = tf.cast(example["id"], tf.float32) ** 2
        return {**fields, "measures": tf.stack([brightness, square])}

    def check(self, columns, split, locate):
        super().check(columns, split, locate)
        assert (
            columns["measures"][:, 1] == columns["id"].astype(np.float32) ** 2
        ).all()


def test_short_fields_of_decode_are_columns_with_every_cache():
    columns = []
    for kind in ("memory", "none"):
        task = Measured(TASK.metadata)
        parts, _ = loaded(Pictures(), task, [103], validation=0.25, test=0, cache=kind)
        names = ("id", "label", "measures")
        columns.append([s.column(n) for s in parts.values() for n in names])
    for cached, uncached in zip(*columns, strict=True):
        np.testing.assert_array_equal(cached, uncached)
    with pytest.raises(UsageError, match="cats/117.png cannot be decoded"):
        loaded(Pictures(damaged=17), task, cache="none")


def test_without_a_cache_only_what_short_fields_depend_on_runs():
    """The label is computed, but no image is decoded: one of them is damaged."""
    task = Noted(TASK.metadata)
    task.fields = lambda id: {"place": id - 100, "label": (id - 100) % CLASSES}
    parts, _ = loaded(Pictures(damaged=17), task, validation=0.25, test=0, cache="none")
    for split in parts.values():
        np.testing.assert_array_equal(split.column("place"), split.column("id") - 100)


@pytest.mark.parametrize("kind", ["none", "memory"])
def test_a_field_without_a_fixed_shape_is_named(kind):
    task = Noted(TASK.metadata)
    task.fields = lambda id: {"past": tf.range(id)}
    with pytest.raises(UsageError, match="'past'"):
        cache.choose(Pictures(), specs(task), config.DataConfig(cache=kind))


OWN = """
from pipeline.tasks.supervised import Supervised, image_classification

class Own(Supervised):
    pass

def own(info, *, image_size=None):
    return Own(image_classification(info).metadata)
"""


@pytest.mark.parametrize(
    "name", ["mine.py", "random.py"]
)  # one has the name of a module
def test_a_task_in_a_file_is_cached_until_its_file_changes(tmp_path, monkeypatch, name):
    monkeypatch.setattr(cache, "_STARTED", float("inf"))
    path = tmp_path / name
    path.write_text(OWN)
    task = registry.call("tasks", f"{path}:own", {}, Pictures().info)
    before = cache._code_digest(task, task)
    assert cache._code_digest(task, task) == before
    path.write_text(f"{OWN}# changed\n")
    assert cache._code_digest(task, task) != before
