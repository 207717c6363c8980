"""All augmentations of a run: the same bits on the host, in the step and in parts."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from random_images import OPERATIONS, batch_of
from toy_problem import TASK, machine, random_split, settings_of, two_epochs

from pipeline.contracts import ReplicaPart
from pipeline.data import batching
from pipeline.data.augment import flip
from pipeline.data.augmentation import Augmenter, apply_on_host, augment_on_host
from pipeline.data.example_store import DeviceStore, MemoryStore
from pipeline.training.model_builder import build
from pipeline.utils.errors import UsageError


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_parts_of_a_batch_and_a_later_start_are_those_of_the_whole(count):
    augmenter = Augmenter({"crop": {"padding": 2}, "mixup": {}}, 4)
    host = augment_on_host(two_epochs(), augmenter)
    whole = list(host.dataset(0))
    parts = list(host.dataset(3, ReplicaPart(0, count, count)))
    for name in ("image", "partner_label", "share"):
        values = [part[name].numpy() for part in parts]
        joined = [
            np.concatenate(values[i : i + count]) for i in range(0, len(values), count)
        ]
        np.testing.assert_array_equal(
            joined, [batch[name].numpy() for batch in whole[3:]]
        )


def test_an_operation_that_does_not_fit_is_one_line():
    message = r"\Acrop: padding 8 is too large for images of 8x8\Z"
    with pytest.raises(UsageError, match=message):
        augment_on_host(two_epochs(), Augmenter({"crop": {"padding": 8}}, 4)).dataset(0)
    settings = settings_of(data={"augment": {"crop": {"padding": 8}}})
    for in_step in (True, False):
        with pytest.raises(UsageError, match=message):
            build(TASK, settings, machine(), two_epochs(), augment_in_step=in_step)


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_augmentation_is_taken_for_one_that_changes_the_range(name):
    """Also with black pictures."""
    batch, _ = batch_of()
    for images in (batch["image"], tf.zeros_like(batch["image"])):
        Augmenter({name: {}}, 4).require_range({**batch, "image": images})


@pytest.mark.parametrize(
    ("factor", "is_rejected"), [(1 / 255, True), (255, True), (1.0001, False)]
)
def test_floats_keep_their_scale(monkeypatch, factor, is_rejected):
    monkeypatch.setattr(
        flip, "flip", lambda batch, seeds: {**batch, "image": batch["image"] * factor}
    )
    batch, _ = batch_of(dtype=np.float32)
    raises = pytest.raises(UsageError, match="flip .*float32")
    with raises if is_rejected else contextlib.nullcontext():
        Augmenter({"flip": {}}, 4).require_range(batch)


@pytest.mark.parametrize(
    ("augment_on", "store", "reason"),
    [
        ("host", MemoryStore, "host (requested)"),
        ("auto", MemoryStore, "device (in the compiled step)"),
        ("auto", DeviceStore, "device (in the compiled step)"),
    ],
)
def test_where_images_are_augmented_is_said(augment_on, store, reason):
    data = settings_of(data={"augment": {"flip": {}}, "augment_on": augment_on}).data
    settings = settings_of(train={"epochs": 2})
    plain = batching.training(random_split(store=store), settings.train, seed=4)
    changed, (decision,) = apply_on_host(plain, data, 4)
    assert (decision.name, str(decision)) == ("augment", reason)
    assert (changed is plain) == (augment_on == "auto")


def test_a_device_cache_and_augmentation_on_the_host_exclude_each_other():
    with pytest.raises(
        UsageError,
        match="--data.cache device .*--data.augment-on host",
    ):
        settings_of(data={"augment_on": "host", "cache": "device"})
