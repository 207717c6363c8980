"""All augmentations of a run: the same bits on the host, in the step and in parts."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small import TASK, machine, random_split, settings_of, trained_where

from pipeline.contracts import Share
from pipeline.data import batching
from pipeline.data.augmentation import Augmenter, on_host
from pipeline.data.augmentation import placed as placed_of
from pipeline.training.model_builder import build
from pipeline.utils.errors import UsageError

SOME = {"alternating_flip": {}, "affine": {}, "color_jitter": {}, "erase": {}, "mixup": {}}


def batches(**train):
    """Two epochs of batches of 8."""
    settings = settings_of(train={"epochs": 2, **train})
    return batching.training(random_split(), settings.train, seed=4)


@pytest.mark.parametrize("xla", [False, True])
def test_host_and_step_give_the_same_bits(xla):
    augmenter, plain = Augmenter(SOME, 4), batches()
    inside = tf.function(augmenter, jit_compile=xla, autograph=False)
    host = on_host(plain, augmenter)
    assert host.dataset.element_spec["image"].shape == (8, 8, 8, 1)
    tickets = zip(plain.dataset, host.dataset, strict=True)
    changed = 0
    for ticket, made in tickets:
        wanted = inside(plain.materialize(ticket))
        assert wanted.keys() == host.materialize(made).keys()
        for key, value in wanted.items():
            np.testing.assert_array_equal(value, made[key], key)
        changed += (made["image"].numpy() != ticket["image"].numpy()).mean()
    assert changed > 1, "nothing was augmented"


def test_the_share_of_cutmix_has_the_same_bits_everywhere():
    """Its area is divided by that of the image, which is not a power of two."""
    count, augmenter = 512, Augmenter({"cutmix": {}}, 4)
    batch = {
        "image": tf.zeros([count, 33, 47, 1], tf.uint8),
        "label": tf.range(count),
        "id": tf.range(count, dtype=tf.int64),
        "epoch": tf.zeros([count], tf.int64),
    }
    wanted = augmenter(batch)["share"].numpy()
    assert len(np.unique(wanted)) > 25
    for xla in (False, True):
        inside = tf.function(augmenter, jit_compile=xla, autograph=False)
        np.testing.assert_array_equal(inside(batch)["share"], wanted)


@pytest.mark.parametrize("count", [2, 4])
def test_parts_of_a_batch_and_a_later_start_are_those_of_the_whole(count):
    augmenter = Augmenter({"crop": {"padding": 2}, "mixup": {}}, 4)
    host = on_host(batches(), augmenter)
    whole = list(host.dataset)
    parts = list(host.tickets(3, Share(0, count, count)))
    for name in ("image", "partner_label", "share"):
        values = [part[name].numpy() for part in parts]
        joined = [np.concatenate(values[i : i + count]) for i in range(0, len(values), count)]
        np.testing.assert_array_equal(joined, [batch[name].numpy() for batch in whole[3:]])


def test_the_seed_and_the_epoch_change_the_pictures():
    (batch, *_) = batches().dataset
    first = Augmenter(SOME, 3)(batch)["image"].numpy()
    np.testing.assert_array_equal(Augmenter(SOME, 3)(batch)["image"], first)
    assert (Augmenter(SOME, 4)(batch)["image"].numpy() != first).any()
    later = {**batch, "epoch": batch["epoch"] + 1}
    assert (Augmenter(SOME, 3)(later)["image"].numpy() != first).any()


def test_the_first_side_of_alternating_flip_depends_on_the_seed_of_the_run():
    ids = tf.range(1000, dtype=tf.int64)
    image = tf.random.Generator.from_seed(0).uniform((1000, 2, 2, 1))

    def flipped(seed, epoch):
        batch = {"image": image, "id": ids, "epoch": tf.fill([1000], tf.constant(epoch, tf.int64))}
        done = Augmenter({"alternating_flip": {}}, seed)(batch)
        assert "lasting_seed" not in done
        return (done["image"].numpy() != image.numpy()).any(axis=(1, 2, 3))

    sides = np.array([[flipped(seed, epoch) for epoch in range(3)] for seed in range(3)])
    np.testing.assert_array_equal(sides[:, 0], ~sides[:, 1])
    np.testing.assert_array_equal(sides[:, 0], sides[:, 2])
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert 430 < (sides[one, 0] != sides[other, 0]).sum() < 570


def test_an_operation_that_does_not_fit_is_one_line():
    message = r"\Acrop: padding 8 is too large for images of 8x8\Z"
    with pytest.raises(UsageError, match=message):
        on_host(batches(), Augmenter({"crop": {"padding": 8}}, 4)).tickets(0)
    settings = settings_of(data={"augment": {"crop": {"padding": 8}}})
    for in_step in (True, False):
        with pytest.raises(UsageError, match=message):
            build(TASK, settings, machine(), batches(), augment_in_step=in_step)


OWN = """
import tensorflow as tf


def dim(batch, seeds):
    return {**batch, "image": batch["image"] // 2}


def unit(batch, seeds):
    return {**batch, "image": tf.cast(batch["image"], tf.float32) / 255}


def small(batch, seeds):
    return {**batch, "image": batch["image"][:, 1:]}


def numpy_flip(batch, seeds):
    flipped = tf.numpy_function(lambda x: x[:, :, ::-1].copy(), [batch["image"]], tf.uint8)
    return {**batch, "image": flipped}


def numpy_small(batch, seeds):
    return {**batch, "image": tf.numpy_function(lambda x: x[:, 1:], [batch["image"]], tf.uint8)}


def bare(batch, seeds):
    return {"image": batch["image"]}


def picture(batch, seeds):
    return batch["image"]
"""
RETURN = r"must return 'image' as uint8 of shape \(8, 8, 8, 1\); got"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unit", rf"{RETURN} float32 of shape \(8, 8, 8, 1\)"),
        ("small", rf"{RETURN} uint8 of shape \(8, 7, 8, 1\)"),
        ("numpy_small", rf"{RETURN} uint8 of shape \(8, 7, 8, 1\)"),
        ("bare", "must also return the field '(id|label)'"),
        ("picture", "must return the batch, a dictionary of tensors; got .*Tensor"),
    ],
)
def test_an_augmentation_that_damages_the_images_is_named(tmp_path, monkeypatch, name, message):
    (tmp_path / "own_augmentations.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    path = f"own_augmentations.{name}"
    chain = {"flip": {}, "own_augmentations.dim": {}, path: {}, "mixup": {}}
    settings = settings_of(data={"augment": chain})
    for in_step in (True, False):
        with pytest.raises(UsageError, match=rf"\A--data.augment: {path} {message}\Z"):
            build(TASK, settings, machine(), batches(), augment_in_step=in_step)
    del chain[path]
    build(TASK, settings_of(data={"augment": chain}), machine(), batches())


def test_an_augmentation_in_numpy_keeps_the_shape(tmp_path, monkeypatch):
    """TensorFlow does not know the shape that such a function returns."""
    (tmp_path / "numpy_augmentations.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    chain = {"numpy_augmentations.numpy_flip": {}, "crop": {"padding": 2}}
    for in_step in (True, False):
        settings = settings_of(data={"augment": chain})
        build(TASK, settings, machine(), batches(), augment_in_step=in_step)
    host = on_host(batches(), Augmenter(chain, 4))
    assert host.dataset.element_spec["image"].shape == (8, 8, 8, 1)


def test_odd_micro_batches_are_rejected_by_build():
    settings = settings_of(data={"augment": {"mixup": {}}}, train={"batch_size": 10})
    plain = batches(batch_size=10)
    build(TASK, settings, machine(), plain)
    for in_step in (True, False):
        with pytest.raises(UsageError, match="pairs the examples of a micro-batch, here of 5"):
            settings = settings.changed(train={"accumulate": 2})
            build(TASK, settings, machine(), plain, augment_in_step=in_step)


def test_training_is_the_same_wherever_it_is_augmented():
    """Losses, weights and optimizer; with two replicas, see test_distributed.py."""
    on_host, in_step = (trained_where(place, machine(), 2) for place in ("host", "device"))
    assert on_host[0] == in_step[0] and len(in_step[0]) == 2
    for host, step in zip(on_host[1], in_step[1], strict=True):
        np.testing.assert_array_equal(host, step)


def test_the_place_is_decided_with_a_reason():
    plain, options = batches(), settings_of(data={"augment": {"flip": {}}}).data

    def placed(augment_on, cache):
        asked = dataclasses.replace(options, augment_on=augment_on)
        made, (decision,) = placed_of(plain, asked, 4, cache)
        assert decision.name == "augment" and decision.reason
        assert (made is plain) == (decision.value == "device")
        return str(decision)

    assert placed("host", "memory") == "host (requested)"
    for place, cache in (("device", "none"), ("host", "device"), ("auto", "memory")):
        assert placed(place, cache) == "device (in the compiled step)"
    assert placed_of(plain, settings_of().data, 4, "memory") == (plain, [])
    with pytest.raises(
        UsageError, match="--data.augment-on host cannot augment .* --data.cache dev"
    ):
        settings_of(data={"augment_on": "host", "cache": "device"})
