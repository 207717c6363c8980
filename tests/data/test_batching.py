"""Batches: splits that stay, orders that differ, batches of one shape, nothing lost."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import REPOSITORY, images_and_labels
from counting import Counting, ids, load

from pipeline.config import command_line, config
from pipeline.data import batching, cache_policy, dataset, example_store, splits
from pipeline.data.cleaning import manifest
from pipeline.runtime import run_directory
from pipeline.utils.errors import UsageError


def test_held_out_parts_are_disjoint_complete_and_per_class():
    splits, decisions = load(Counting(30_000))
    assert list(splits) == ["train", "validation", "test"]
    everything = np.concatenate([ids(split) for split in splits.values()])
    assert len(everything) == 30_000 == len(set(everything))
    for name, share in {"validation": 0.1, "test": 0.2}.items():
        labels = splits[name].take(np.arange(len(splits[name])))["label"]
        counts = np.bincount(labels, minlength=3)
        sigma = np.sqrt(10_000 * share * (1 - share))
        assert (np.abs(counts - 10_000 * share) < 4 * sigma).all()
    assert any(decision.name == "splits" for decision in decisions)


def test_an_example_never_changes_its_split():
    small, large = load(Counting(500))[0], load(Counting(900))[0]
    for name in small:
        assert set(ids(small[name])) == {i for i in ids(large[name]) if i < 500}
    fewer, _ = load(Counting(900), dropped=range(0, 900, 7))
    for name in fewer:
        assert set(ids(fewer[name])) == {i for i in ids(large[name]) if i % 7}


def test_the_split_depends_on_its_seed_and_not_on_other_shares():
    first, second = load(Counting(900))[0], load(Counting(900), split_seed=1)[0]
    assert set(ids(first["test"])) != set(ids(second["test"]))
    other, without = load(Counting(900), validation=0.3)[0], load(Counting(900), validation=0)[0]
    assert set(ids(first["test"])) == set(ids(other["test"])) == set(ids(without["test"]))
    assert set(ids(first["validation"])) < set(ids(other["validation"]))
    assert "validation" not in without


def test_splits_of_the_source_are_kept():
    splits, decisions = load(Counting(90, splits=("train", "validation", "test")))
    assert [len(split) for split in splits.values()] == [90, 90, 90]
    assert not any(decision.name == "splits" for decision in decisions)
    splits, _ = load(Counting(90, splits=("train", "test")))
    assert len(splits["train"]) + len(splits["validation"]) == 90 == len(splits["test"])


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (Counting(3), {"test": 0.0001, "validation": 0}, "split 'test' is empty"),
        (Counting(5, label=lambda i: i), {}, "label 3 of example 3 is out of range"),
        (Counting(5, label=lambda i: i - 1), {}, "label -1 of example 0 is out of range"),
    ],
)
def test_unfit_data_are_refused(source, options, message):
    with pytest.raises(UsageError, match=message):
        load(source, **options)


def test_a_source_that_promises_more_than_it_has_is_refused():
    source = Counting(5)
    object.__setattr__(source, "info", Counting(9).info)
    source.examples = lambda split: Counting(5).examples(split)
    with pytest.raises(UsageError, match="should hold 9 examples, but 5 were read"):
        load(source)


def test_data_that_do_not_fit_into_memory_are_refused(monkeypatch):
    class Full:
        available = total = 100

    monkeypatch.setattr(cache_policy.psutil, "virtual_memory", Full)
    with pytest.raises(UsageError, match="the decoded data need"):
        load(Counting(900), cache="memory")


def test_the_manifest_is_obeyed(tmp_path):
    path = tmp_path / "manifest.jsonl"
    path.write_text(
        '{"id": 3, "reason": "blank", "action": "drop"}\n\n'
        '{"id": 4, "reason": "odd", "action": "keep"}\n'
    )
    dropped = manifest.dropped(manifest.read(path))
    assert dropped == {3: "blank"}
    splits, _ = load(Counting(90), dropped=dropped)
    everything = np.concatenate([ids(split) for split in splits.values()])
    assert 3 not in everything and 4 in everything and len(everything) == 89
    source = Counting(90, label=lambda i: tf.where(i == 3, tf.constant(99, tf.int64), i % 3))
    with pytest.raises(UsageError, match="label 99 of example 3"):
        load(source)
    load(source, dropped=dropped)  # what is left out need not be right
    for line in ('{"id": 1e400}', '{"id": true, "action": "drop", "reason": ""}', "[" * 100_000):
        path.write_text(line)
        with pytest.raises(UsageError, match="line 1 of .* must have the form"):
            manifest.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        manifest.read(path)
    path.write_text('{"id": 3}\n')
    with pytest.raises(UsageError, match="line 1 of .* must have the form"):
        manifest.read(path)


def epochs_of(split, batch_size, epochs, seed=0, first_step=0):
    batches = batching.training(split, config.Train(batch_size=batch_size, epochs=epochs), seed)
    rows = list(batches.tickets(first_step).as_numpy_iterator())
    return batches, rows


def test_an_epoch_is_a_permutation_whose_remainder_is_dropped(split):
    batches, rows = epochs_of(split(103), 10, 3)
    assert (batches.steps_per_epoch, batches.last_step, batches.epochs) == (10, 30, 3)
    assert len(rows) == 30 == len(batches.dataset)
    orders = [np.concatenate([r["id"] for r in rows[10 * e : 10 * e + 10]]) for e in range(3)]
    for epoch, order in enumerate(orders):
        assert len(set(order)) == 100 and set(order) <= set(range(1000, 1103))
        assert all((r["epoch"] == epoch).all() for r in rows[10 * epoch : 10 * epoch + 10])
    assert len({tuple(order) for order in orders}) == 3
    assert all((row["weight"] == 1).all() for row in rows)
    assert all((row["image"][:, 0, 0, 0] == (row["id"] - 1000) % 251).all() for row in rows)


def test_resumed_batches_go_on_where_they_stopped(split):
    _, rows = epochs_of(split(103), 10, 3)
    _, rest = epochs_of(split(103), 10, 3, first_step=17)
    assert len(rest) == 13
    for one, other in zip(rows[17:], rest, strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


def test_the_seed_changes_the_order(split):
    _, rows = epochs_of(split(103), 10, 1, seed=0)
    _, others = epochs_of(split(103), 10, 1, seed=1)
    assert any((a["id"] != b["id"]).any() for a, b in zip(rows, others, strict=True))


def test_consecutive_epochs_are_not_alike(split):
    # With the 4 rounds of tf.random.experimental.index_shuffle this correlation is 1.00.
    count = 65_536
    batches, _ = epochs_of(split(count, shape=(1, 1, 1)), 8192, 2)
    rows = [row["id"] for row in batches.dataset.as_numpy_iterator()]
    first, second = np.concatenate(rows[:8]), np.concatenate(rows[8:])
    place = np.empty((2, count), np.int64)
    place[0, first - 1000] = place[1, second - 1000] = np.arange(count)
    assert abs(np.corrcoef(place)[0, 1]) < 0.03


def test_steps_cut_the_run_short(split):
    options = config.Train(batch_size=10, epochs=5, steps=13)
    batches = batching.training(split(50), options, 0)
    assert (batches.last_step, batches.epochs, len(batches.dataset)) == (13, 3, 13)
    assert [batches.end_of(epoch) for epoch in range(3)] == [5, 10, 13]


def test_a_batch_larger_than_the_data_is_refused(split):
    with pytest.raises(UsageError, match=r"--train.batch-size 51: .* only 50 examples"):
        batching.training(split(50), config.Train(batch_size=51), 0)


def test_evaluation_is_one_pass_in_order_padded_with_weight_0(split):
    batches = batching.evaluation(split(37), config.Train(batch_size=4))
    rows = list(batches.dataset.as_numpy_iterator())
    assert [row["id"].shape for row in rows] == [(16,)] * 3
    weight = np.concatenate([row["weight"] for row in rows])
    order = np.concatenate([row["id"] for row in rows])
    np.testing.assert_array_equal(weight, np.arange(48) < 37)
    np.testing.assert_array_equal(order[:37], np.arange(1000, 1037))


def test_batches_wait_on_the_device_that_computes():
    """Two logical CPU devices stand for host and accelerator; they need a process of their own."""
    program = """
import tensorflow as tf
cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from pipeline.training import distributed
tickets = tf.data.Dataset.range(5).map(lambda i: {"image": tf.fill([2, 3], i)})
assert distributed.prefetched(tickets, "/cpu:1") is tickets
distributed.has_own_memory = lambda device: True
batches = list(distributed.prefetched(tickets, "/cpu:1"))
assert [int(batch["image"][0, 0]) for batch in batches] == [0, 1, 2, 3, 4]
assert all(batch["image"].device.endswith("CPU:1") for batch in batches), batches[0]["image"].device
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-1500:]


def test_nothing_waits_for_an_autotuner_when_a_pass_ends(split):
    from pipeline.training import distributed

    tickets = distributed.tickets(batching.training(split(40), config.Train(batch_size=4), 0))
    assert tickets.options().autotune.enabled is False


def test_all_batches_have_one_static_shape(split):
    for batches in (
        batching.training(split(37), config.Train(batch_size=4, epochs=2), 0),
        batching.evaluation(split(37), config.Train(batch_size=4)),
    ):
        for spec in batches.dataset.element_spec.values():
            assert spec.shape.is_fully_defined()


def test_splits_of_a_source_share_no_group_and_no_id():
    def split(ids, **columns):
        columns = {"id": np.array(ids), **{k: np.array(v) for k, v in columns.items()}}
        return splits.Split(example_store.Memory(columns), np.arange(len(ids)))

    train, test = split([1, 2, 3], group=[7, 8, 8]), split([4, 5], group=[9, 8])
    splits.require_apart({"train": train, "test": split([4, 5], group=[9, 10])}, str)
    splits.require_apart({"train": train, "test": split([4, 5])}, str)
    with pytest.raises(UsageError, match="1 groups are in train and in test: 2 and 5 belong"):
        splits.require_apart({"train": train, "test": test}, str)
    with pytest.raises(UsageError, match="give no groups, or leave out --data.splits runs/first$"):
        splits.require_apart({"train": train, "test": test}, str, Path("runs/first"))
    with pytest.raises(UsageError, match="gives 2 examples of train ids that test has, such as 2"):
        splits.require_apart({"train": train, "test": split([2, 3, 5])}, str)


def test_a_run_that_resumes_must_find_its_examples(tmp_path):
    path = tmp_path / "splits.npz"

    def held(count):
        return load(Counting(count))[0]

    def where(id):
        return f"dogs/{id}.png"

    splits.require_same_examples(path, held(60), where)  # a new run
    splits.write_examples(path, held(60))
    splits.require_same_examples(path, held(60), where)
    with np.load(path) as file:
        assert sum(len(file[name]) for name in ("train", "validation", "test")) == 60
    message = (
        rf"2 were added and 0 are gone \(such as dogs/6.* with --data.splits {tmp_path} the ex"
    )
    with pytest.raises(UsageError, match=message):
        splits.require_same_examples(path, held(62), where)
    with pytest.raises(UsageError, match=r"0 were added and \d are gone \(such as dogs/5"):
        splits.require_same_examples(path, held(50), where)
    whole = path.read_bytes()
    splits.write_examples(path, {n: s for n, s in held(60).items() if n != "train"})
    with pytest.raises(UsageError, match="splits.npz is damaged"):
        splits.require_same_examples(path, held(60), where)
    path.write_bytes(whole[:50])
    with pytest.raises(UsageError, match="splits.npz is damaged"):
        splits.require_same_examples(path, held(60), where)


def test_classes_without_an_example_to_train_on_are_noted_and_two_are_needed(tmp_path):
    images, labels = np.arange(240, dtype=np.uint8).reshape(60, 2, 2, 1), np.sort(np.arange(60) % 3)
    names = ["a", "b", "c", "d", "e"]
    np.savez(tmp_path / "sorted.npz", images=images, labels=labels, class_names=names)
    settings = config.Config(
        recipe="own",
        source=config.Source(name="arrays", options={"path": tmp_path / "sorted.npz"}),
        model=config.Model(name="tiny"),
    )

    def notes(labels, **options):
        np.savez(tmp_path / "sorted.npz", images=images, labels=labels, class_names=names)
        found = dataset.load(settings.changed(**options)).decisions
        return [str(decision) for decision in found if decision.name == "note"]

    said = "train has no example of 'd', 'e' (which cannot be learned)"
    assert notes(labels) == [said]
    assert notes(labels, data={"limit": 20}) == [said]
    assert notes(labels, data={"limit": 20}, dry_run=True) == []
    one = "train has examples of one class only, 'b', and a classifier needs two; give examples of"
    with pytest.raises(UsageError, match=f"{one} other classes$"):
        notes(np.ones(60, int))
    with pytest.raises(UsageError, match=f"{one} other classes or a larger --data.limit$"):
        notes(np.ones(60, int), data={"limit": 20}, dry_run=True)


def test_a_run_is_not_resumed_with_other_data(tmp_path):
    images, labels = images_and_labels(60, (8, 8, 1))
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    settings = command_line.recipe("digits").changed(
        source={"name": "arrays", "path": tmp_path / "mine.npz"}, run_directory=tmp_path / "run"
    )
    run = run_directory.RunDirectory(tmp_path / "run")
    run.path.mkdir()
    dataset.load(settings).write(run)
    assert "changed" not in {decision.name for decision in dataset.load(settings).decisions}
    np.savez(tmp_path / "mine.npz", images=255 - images, labels=labels)
    with pytest.raises(UsageError, match=r"mine.npz have changed since the run in .*/run began: a"):
        dataset.load(settings)
    forced = dataset.load(settings.changed(force=True))
    assert "changed" in {decision.name for decision in forced.decisions}
    forced.write(run)
    dataset.load(settings)  # these are its data from now on
    names = {"class_names": ["a", "b", "c"]}
    np.savez(tmp_path / "mine.npz", images=images, labels=labels, **names)
    with pytest.raises(
        UsageError, match=r"class names of the data .* \['0', '1', '2'\] then, \['a'"
    ):
        dataset.load(settings)
