"""Where decoded examples lie changes no bit; what cannot be decoded is named."""

import importlib
import io
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from small import CLASSES, SIDE, TASK, loaded, machine, settings_of

from pipeline.config import config, registry
from pipeline.contracts import Info, Share, Source
from pipeline.data import batching, cache_policy, image_decoding, sequential_batches
from pipeline.training.model_builder import build
from pipeline.utils.errors import UsageError

COUNT = 40


class Encoded(Source):
    """PNG files in memory; `damaged` is the position of one that is cut off."""

    def __init__(self, damaged=None, reads_by_index=True, made_of="these"):
        self.made_of = made_of
        pixels = np.random.default_rng(0).integers(0, 256, (COUNT, SIDE, SIDE), np.uint8)
        files = []
        for image in pixels:
            file = io.BytesIO()
            Image.fromarray(image).save(file, "png")
            files.append(file.getvalue())
        if damaged is not None:
            files[damaged] = files[damaged][:-30]
        self._files, self._by_index = tf.constant(files), reads_by_index
        self.info = Info(
            splits={"train": COUNT},
            fields={
                "id": tf.TensorSpec((), tf.int64),
                "image": tf.TensorSpec((), tf.string),
                "label": tf.TensorSpec((), tf.int64),
            },
            class_names=("a", "b", "c"),
        )

    def _example(self, position):
        label = position % CLASSES
        return {"id": position + 100, "image": self._files[position], "label": label}

    def examples(self, split):
        return tf.data.Dataset.range(COUNT).map(self._example)

    def reader(self, split):
        if not self._by_index:
            return None
        rows = tf.range(COUNT, dtype=tf.int64)  # of the place where the reader is made
        return lambda position: self._example(rows[position])

    def fingerprint(self):
        return self.made_of

    def location(self, id):
        return f"cats/{id}.png"


def load(source, dropped=(), **options):
    return loaded(source, TASK, dropped, **{"validation": 0.25, "test": 0, **options})


def trained(source, kind, engine="gradient_tape", dropped=()):
    splits, decisions = load(source, dropped, cache=kind)
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
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def reference():
    return trained(Encoded(), "memory")


@pytest.mark.parametrize("kind", ["device", "disk", "none"])
def test_no_bit_depends_on_the_cache(kind, reference):
    weights, history = reference
    others, found = trained(Encoded(), kind)
    assert history == found
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_device_gets_rows_and_no_pixels():
    split = load(Encoded(), cache="device")[0]["train"]
    batches = batching.training(split, settings_of().train, 0)
    (ticket, *_) = batches.dataset
    assert {name: tensor.shape for name, tensor in ticket.items()} == dict.fromkeys(
        ("row", "weight", "epoch"), (8,)
    )
    memory = batching.training(load(Encoded(), cache="memory")[0]["train"], settings_of().train, 0)
    (whole, *_) = memory.dataset
    fetched = batches.materialize(ticket)
    assert set(fetched) == set(whole)
    for name, values in whole.items():
        np.testing.assert_array_equal(values, fetched[name])


def test_the_disk_cache_follows_the_data_and_what_decodes_them(tmp_path, monkeypatch):
    def note(source=None, dropped=(), **options):
        decisions = load(source or Encoded(), dropped, cache="disk", **options)[1]
        return str(decisions[0])

    assert note() == "disk (asked for; train built, because it was not there)"
    assert note() == "disk (asked for; train found and checked)"
    assert "because the data changed" in note(Encoded(made_of="others"))
    assert "because what is left out changed" in note(Encoded(made_of="others"), [103])
    assert "found" in note(Encoded(made_of="others"), [103])
    assert "not there" in note(limit=20)
    assert "found" in note(limit=20)
    assert "not there" in note(cache_directory=tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir())
    code = tmp_path / "decoding.py"
    code.write_text("another way")
    monkeypatch.setattr(image_decoding, "__file__", str(code))
    assert "because the code that decodes changed" in note(limit=20)


def test_the_disk_cache_follows_what_a_class_inherits_and_what_runs(tmp_path, monkeypatch):
    def note():
        import own_task

        task = own_task.Own(TASK.metadata)
        return str(loaded(Encoded(), task, cache="disk", validation=0.25, test=0)[1][0])

    base = """
from pipeline.tasks.image_classification import ImageClassification
class Base(ImageClassification):
    def decode(self, example):
        image = super().decode(example)["image"]
        return {**example, "image": image + %d}
"""
    (tmp_path / "own_base.py").write_text(base % 1)
    (tmp_path / "own_task.py").write_text(
        "from own_base import Base\nclass Own(Base):\n    pass\nOwn.own = Own\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "not there" in note() and "found" in note()
    (tmp_path / "own_base.py").write_text(base % 20)
    assert "the code that decodes changed" in note(), "a file was changed, and the old one runs"
    for name in ("own_base", "own_task"):
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    assert "the code that decodes changed" in note(), "the new one runs"
    assert "found" in note()


@pytest.mark.parametrize("reads_by_index", [True, False])
def test_the_sample_of_a_limit_is_the_same_in_every_cache(reads_by_index):
    def load_sample(kind):
        return load(Encoded(reads_by_index=reads_by_index), cache=kind, limit=16)[0]

    whole, wanted = load(Encoded(), cache="memory")[0], load_sample("memory")
    assert sum(map(len, wanted.values())) == 16
    for name, split in wanted.items():
        assert set(split.column("label")) == {0, 1, 2}
        assert abs(len(split) - 16 / COUNT * len(whole[name])) <= 1
        places = np.flatnonzero(np.isin(whole[name].column("id"), split.column("id")))
        for field, values in whole[name].take(places).items():
            np.testing.assert_array_equal(split.column(field), values)
        for kind in ("device", "disk", "none"):
            np.testing.assert_array_equal(
                load_sample(kind)[name].column("image"), split.column("image")
            )


def test_of_a_sample_nothing_else_is_decoded():
    wanted = load(Encoded(), limit=16)[0].values()
    others = set(range(COUNT)) - {i - 100 for split in wanted for i in split.column("id").tolist()}
    assert len(others) == COUNT - 16
    load(Encoded(damaged=min(others)), limit=16, cache="memory")


def test_the_disk_cache_follows_the_sample():
    def note(**options):
        return str(load(Encoded(), cache="disk", limit=16, **options)[1][0])

    assert "not there" in note() and "found" in note()
    assert "because the data changed" in note(split_seed=1)
    assert "because the data changed" in note() and "found" in note()


@pytest.mark.parametrize("kind", ["memory", "none"])
def test_what_is_left_out_need_not_be_decodable(kind):
    trained(Encoded(damaged=17), kind, dropped=[117])


def test_a_damaged_example_is_named_when_it_is_decoded():
    for source in (Encoded(17), Encoded(17, reads_by_index=False)):
        with pytest.raises(UsageError, match="cats/117.png cannot be decoded: .* --clean.enabled"):
            load(source, cache="memory")


@pytest.mark.parametrize("engine", registry.names("engines"))
def test_a_damaged_example_is_named_in_training_without_a_cache(engine):
    with pytest.raises(UsageError, match="cats/117.png cannot be decoded"):
        trained(Encoded(damaged=17), "none", engine)


def test_the_decision_follows_the_room(monkeypatch):
    class Machine:
        available = total = 10**6
        free = 10**9

    monkeypatch.setattr(cache_policy.psutil, "virtual_memory", Machine)
    monkeypatch.setattr(cache_policy.shutil, "disk_usage", lambda _: Machine)
    size = cache_policy.decoded_size(Encoded(), TASK)
    assert size == COUNT * (SIDE * SIDE + 8 + 8)

    def decided(source=None, **options):
        return cache_policy.decided(source or Encoded(), TASK, config.Data(**options))

    assert decided().value == "memory"
    monkeypatch.setattr(cache_policy.devices, "memory", lambda: 3 * size)
    assert decided().value == "device"
    monkeypatch.setattr(cache_policy.devices, "memory", lambda: 2 * size)
    assert decided().value == "memory"
    Machine.available = Machine.total = 2 * size - 1
    assert decided().value == "disk"
    assert decided(Encoded(made_of=None)).value == "none"
    Machine.free = 2 * size - 1
    assert decided().value == "none"
    assert "shuffled among its neighbours" in decided(Encoded(reads_by_index=False)).reason
    with pytest.raises(UsageError, match="--data.cache memory: the decoded data need"):
        decided(cache="memory")
    with pytest.raises(UsageError, match="--data.cache disk: this source cannot tell"):
        decided(Encoded(made_of=None), cache="disk")


def epochs_of(batches, first_step=0, **share):
    tickets = batches.tickets(first_step, Share(**share)).as_numpy_iterator()
    return [{name: values.copy() for name, values in ticket.items()} for ticket in tickets]


def test_a_source_without_a_reader_is_shuffled_as_it_is_read(monkeypatch):
    monkeypatch.setattr(sequential_batches, "BLOCK", 6)
    splits, _ = load(Encoded(reads_by_index=False), cache="none")
    settings = settings_of(train={"epochs": 3, "batch_size": 4}).train
    batches = batching.training(splits["train"], settings, 5)
    found = epochs_of(batches)
    steps = batches.steps_per_epoch
    assert len(found) == 3 * steps == batches.last_step
    orders = [
        np.concatenate([b["id"] for b in found[i * steps : (i + 1) * steps]]) for i in range(3)
    ]
    everything = set(splits["train"].column("id").tolist())
    for epoch, order in enumerate(orders):
        assert len(set(order.tolist())) == 4 * steps and set(order.tolist()) <= everything
        assert set(np.concatenate([b["epoch"] for b in found[epoch * steps :]])) >= {epoch}
    assert (orders[0] != orders[1]).any() and (orders[1] != orders[2]).any()
    again = epochs_of(batching.training(splits["train"], settings, 5))
    other = epochs_of(batching.training(splits["train"], settings, 6))
    resumed = epochs_of(batches, steps + 2)
    halves = [epochs_of(batches, first=i, count=1, of=2) for i in range(2)]
    for i, batch in enumerate(found):
        for name, values in batch.items():
            np.testing.assert_array_equal(values, again[i][name])
            np.testing.assert_array_equal(
                values, np.concatenate([half[i][name] for half in halves])
            )
            if i >= steps + 2:
                np.testing.assert_array_equal(values, resumed[i - steps - 2][name])
    assert any((a["id"] != b["id"]).any() for a, b in zip(found, other, strict=True))
    whole = load(Encoded(), cache="memory")[0]["train"].take(np.arange(len(splits["train"])))
    pixels = dict(zip(whole["id"].tolist(), whole["image"], strict=True))
    for batch in found:
        for id, image in zip(batch["id"].tolist(), batch["image"], strict=True):
            np.testing.assert_array_equal(image, pixels[id])


def test_a_source_without_a_reader_is_evaluated_and_explained(reference):
    _, history = trained(Encoded(reads_by_index=False), "none")
    assert set(history) == set(reference[1]) and np.isfinite(history["val_loss"]).all()
    split = load(Encoded(reads_by_index=False), cache="none")[0]["validation"]
    memory = load(Encoded(), cache="memory")[0]["validation"]
    positions = np.array([3, 0, 0, 2])
    for name, values in memory.take(positions).items():
        np.testing.assert_array_equal(split.take(positions)[name], values)
    batches = batching.evaluation(split, settings_of().train)
    ids = np.concatenate([batch["id"][batch["weight"] > 0] for batch in epochs_of(batches)])
    np.testing.assert_array_equal(ids, memory.column("id"))
    with pytest.raises(UsageError, match="cats/117.png cannot be decoded"):
        trained(Encoded(damaged=17, reads_by_index=False), "none")
