"""Batches: data that cannot be used, the order of epochs, batches of one shape, nothing
lost.
"""

import threading

import numpy as np
import pytest
import tensorflow as tf
from numbered_images import Counting, load
from random_images import images_and_labels

from pipeline.config import command_line, config
from pipeline.data import batching, dataset, example_store
from pipeline.data.splits import Split
from pipeline.runtime import run_directory
from pipeline.training import distributed
from pipeline.utils.errors import UsageError


def test_an_empty_split_is_rejected():
    with pytest.raises(UsageError, match="split 'test' is empty"):
        load(Counting(3), test=0.0001, validation=0)


def test_excluded_examples_are_in_no_split_and_may_have_wrong_labels():
    source = Counting(
        90, label=lambda i: tf.where(i == 3, tf.constant(99, tf.int64), i % 3)
    )
    with pytest.raises(UsageError, match="example 3 .*0 to 2; got 99"):
        load(source)
    for kind in ("memory", "none"):
        splits, _ = load(source, excluded={3: "blank"}, cache=kind)
        rows = [s.take(np.arange(len(s))) for s in splits.values()]
        everything = np.concatenate([row["id"] for row in rows])
        assert sorted(everything) == [i for i in range(90) if i != 3]
        pixels = np.concatenate([row["image"][:, 0, 0, 0] for row in rows])
        np.testing.assert_array_equal(pixels, everything)


def epochs_of(split, batch_size, epochs, seed=0, first_step=0):
    batches = batching.training(
        split, config.TrainConfig(batch_size=batch_size, epochs=epochs), seed
    )
    return batches, arrays_of(batches, first_step)


def arrays_of(batches, first_step=0):
    """All batches, as NumPy arrays."""
    return list(batches.dataset(first_step).as_numpy_iterator())


def test_an_epoch_is_a_permutation_whose_remainder_is_dropped(split):
    batches, rows = epochs_of(split(103), 10, 3)
    assert (batches.steps_per_epoch, batches.last_step, batches.epochs) == (10, 30, 3)
    assert len(rows) == 30
    orders = [
        np.concatenate([r["id"] for r in rows[10 * e : 10 * e + 10]]) for e in range(3)
    ]
    for epoch, order in enumerate(orders):
        assert len(set(order)) == 100 and set(order) <= set(range(1000, 1103))
        assert all(
            (r["epoch"] == epoch).all() for r in rows[10 * epoch : 10 * epoch + 10]
        )
    assert len({tuple(order) for order in orders}) == 3
    assert all((row["weight"] == 1).all() for row in rows)
    assert all(
        (row["image"][:, 0, 0, 0] == (row["id"] - 1000) % 251).all() for row in rows
    )
    _, rest = epochs_of(split(103), 10, 3, first_step=17)
    assert len(rest) == 13, "resumed"
    for batch, repeated in zip(rows[17:], rest, strict=True):
        for key in batch:
            np.testing.assert_array_equal(batch[key], repeated[key])
    _, reseeded = epochs_of(split(103), 10, 3, seed=1)
    assert any((a["id"] != b["id"]).any() for a, b in zip(rows, reseeded, strict=True))


def test_consecutive_epochs_are_independent(split):
    """Examples that share a batch in one epoch share one in another only by chance."""
    count, size, epochs = 65_536, 512, 4
    _, rows = epochs_of(split(count, shape=(1, 1, 1)), size, epochs)
    order = np.concatenate([row["id"] for row in rows]).reshape(epochs, count) - 1000
    places = np.argsort(order, axis=1)
    for first, second in ((0, 1), (1, 2), (0, 3)):
        assert abs(np.corrcoef(places[first], places[second])[0, 1]) < 0.03
        both = np.bincount(
            places[first] // size * 128 + places[second] // size, minlength=128**2
        )
        assert (both * (both - 1)).sum() == pytest.approx((size - 1) ** 2, rel=0.03)


def test_steps_end_the_run_early(split):
    options = config.TrainConfig(batch_size=10, epochs=5, steps=13)
    batches = batching.training(split(50), options, 0)
    assert (batches.last_step, batches.epochs) == (13, 3)
    assert len(arrays_of(batches)) == 13
    assert [batches.end_of(epoch) for epoch in range(3)] == [5, 10, 13]
    assert distributed.dataset(batches).options().autotune.enabled is False
    with pytest.raises(UsageError, match="--train.batch-size 52.*50 examples"):
        options = config.TrainConfig(batch_size=52, accumulate=2)
        batching.training(split(50), options, 0)


def test_fewer_examples_than_a_batch_are_one_batch(split):
    batches = batching.training(split(5), config.TrainConfig(batch_size=32), 0)
    assert (batches.batch_size, batches.steps_per_epoch) == (5, 1)
    with pytest.raises(UsageError, match="has only 0 examples"):
        batching.training(split(0), config.TrainConfig(batch_size=32), 0)


def test_examples_are_decoded_before_the_first_batch_is_asked_for():
    decoded = threading.Event()

    def label(position):
        label = tf.numpy_function(
            lambda p: decoded.set() or p % 3, [position], tf.int64
        )
        return tf.ensure_shape(label, ())

    splits, _ = load(Counting(40, label=label), cache="none")
    batches = batching.training(splits["train"], config.TrainConfig(batch_size=10), 0)
    decoded.clear()
    iterator = iter(distributed.dataset(batches))
    assert decoded.wait(30) and len(next(iterator)["label"]) == 10


def test_evaluation_is_one_pass_in_order_padded_with_weight_0(split):
    batches = batching.evaluation(split(37), config.TrainConfig(batch_size=4))
    rows = arrays_of(batches)
    assert [row["id"].shape for row in rows] == [(16,)] * 3
    weight = np.concatenate([row["weight"] for row in rows])
    order = np.concatenate([row["id"] for row in rows])
    np.testing.assert_array_equal(weight, np.arange(48) < 37)
    np.testing.assert_array_equal(order[:37], np.arange(1000, 1037))


def test_fields_of_a_source_do_not_replace_those_of_batches():
    columns = {
        "id": np.arange(5),
        "weight": np.zeros((5, 4)),
        "place": np.full((5, 2), 7),
    }
    tiny = Split(example_store.MemoryStore(columns), np.arange(5))
    (batch,) = arrays_of(
        batching.evaluation(tiny, config.TrainConfig(batch_size=2), replicas=2)
    )
    assert (
        batch["weight"].tolist() == [1] * 5 + [0] and batch["epoch"].tolist() == [0] * 6
    )
    assert (batch["place"] == 7).all()


def arrays_config(path, labels=None, **columns):
    """The recipe `digits` on these arrays."""
    images, good = images_and_labels(60, (8, 8, 1))
    np.savez(path, images=images, labels=good if labels is None else labels, **columns)
    return command_line.recipe("digits").changed(
        source={"name": "arrays", "path": path}
    )


def test_classes_without_a_training_example_are_noted_and_two_are_needed(tmp_path):
    def notes(labels, **options):
        names = ["a", "b", "c", "d", "e"]
        settings = arrays_config(tmp_path / "sorted.npz", labels, class_names=names)
        decisions = dataset.load(settings.changed(**options)).decisions
        return [str(decision) for decision in decisions if decision.name == "note"]

    labels = np.sort(np.arange(60) % 3)
    note = "train has no example of 'd', 'e' (these cannot be learned)"
    assert notes(labels) == [note] == notes(labels, data={"limit": 20})
    message = (
        "train has examples of only one class, 'b', but a classifier needs at least two"
    )
    with pytest.raises(UsageError, match=message):
        notes(np.ones(60, int))
    with pytest.raises(
        UsageError,
        match="at least 2 classes",
    ):
        dataset.load(arrays_config(tmp_path / "one.npz", np.zeros(60, int)))


def test_a_run_is_not_resumed_with_other_class_names(tmp_path):
    path, run = tmp_path / "mine.npz", run_directory.RunDirectory(tmp_path / "run")
    run.path.mkdir()
    dataset.load(arrays_config(path).changed(run_directory=run.path)).write(run)
    settings = arrays_config(path, class_names=["a", "b", "c"]).changed(
        run_directory=run.path
    )
    with pytest.raises(UsageError, match=r"class names of the data have changed"):
        dataset.load(settings)


def test_epochs_of_a_number_of_steps_go_on_where_the_last_one_ended(split):
    options = config.TrainConfig(batch_size=10, epochs=5, steps_per_epoch=4)
    batches = batching.training(split(103), options, 0)
    assert (batches.last_step, batches.epochs, batches.end_of(1)) == (20, 5, 8)
    _, whole = epochs_of(split(103), 10, 2)
    ids = [row["id"].tolist() for row in arrays_of(batches)]
    assert ids == [row["id"].tolist() for row in whole]
    assert [row["id"].tolist() for row in arrays_of(batches, 13)] == ids[13:]
    assert [batches.rows(step).tolist() for step in range(20)] == [
        [id - 1000 for id in row] for row in ids
    ]
    # An augmentation draws for (pass, example).
    assert [row["epoch"][0] for row in arrays_of(batches)] == [0] * 10 + [1] * 10
    assert batches.order_checksum(2) == batches.order_checksum(0)
    assert batches.order_checksum(3) != batches.order_checksum(0)


def test_without_shuffling_the_examples_follow_each_other_again_and_again(split):
    options = config.TrainConfig(batch_size=4, epochs=3, shuffle=False)
    batches = batching.training(split(10), options, 0)
    assert (batches.steps_per_epoch, batches.last_step) == (2, 6)
    ids = [row["id"].tolist() for row in arrays_of(batches)]
    flat = [number % 10 + 1000 for number in range(24)]
    assert ids == [flat[start : start + 4] for start in range(0, 24, 4)]
    assert [row["id"].tolist() for row in arrays_of(batches, 3)] == ids[3:]
    assert not batches.order_checksum(0)
    pairs = {
        (row["epoch"][i], row["id"][i]) for row in arrays_of(batches) for i in range(4)
    }
    assert len(pairs) == 24, "each pass draws other augmentations for an example"


@pytest.mark.parametrize(("count", "size"), [(1000, 16), (64 * 50, 50)])
def test_many_small_examples_are_evaluated_in_few_batches(split, count, size):
    train = config.TrainConfig(batch_size=4, epochs=1)
    batches = batching.evaluation(split(count), train)
    assert batches.batch_size == size
