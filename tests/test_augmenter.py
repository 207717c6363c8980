"""Augmentation on the host gives the tensors that it gives inside the compiled step."""

import numpy as np
import pytest
import tensorflow as tf
from small import random_split, settings_of

from pipeline import stream
from pipeline.augmenter import Augmenter, on_host
from pipeline.contracts import Share
from pipeline.errors import UsageError

SOME = {"alternating_flip": {}, "affine": {}, "color_jitter": {}, "erase": {}, "mixup": {}}


def batches():
    """Two epochs of batches of 8."""
    return stream.training(random_split(), settings_of(train={"epochs": 2}).train, seed=4)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("operations", [SOME, {"flip": {}, "cutmix": {}}])
def test_host_and_step_give_the_same_bits(operations, xla):
    augmenter, plain = Augmenter(operations, 4), batches()
    inside = tf.function(augmenter, jit_compile=xla, autograph=False)
    host = on_host(plain, augmenter)
    assert host.dataset.element_spec["image"].shape == (8, 8, 8, 1)
    tickets = zip(plain.dataset, host.dataset, strict=True)
    changed = 0
    for ticket, made in tickets:
        wanted = inside(plain.fetch(ticket))
        assert wanted.keys() == host.fetch(made).keys()
        for key, value in wanted.items():
            np.testing.assert_array_equal(value, made[key], key)
        changed += (made["image"].numpy() != ticket["image"].numpy()).mean()
    assert changed > 1, "nothing was augmented"


def test_parts_of_replicas_and_a_later_start_are_those_of_the_whole():
    augmenter = Augmenter({"crop": {"padding": 2}, "mixup": {}}, 4)
    host = on_host(batches(), augmenter)
    whole = [batch["image"].numpy() for batch in host.dataset]
    halves = [batch["image"].numpy() for batch in host.tickets(3, Share(0, 2, 2))]
    joined = [np.concatenate(halves[i : i + 2]) for i in range(0, len(halves), 2)]
    np.testing.assert_array_equal(joined, whole[3:])


def test_what_does_not_fit_is_refused_in_one_line():
    host = on_host(batches(), Augmenter({"crop": {"padding": 8}}, 4))
    with pytest.raises(UsageError, match=r"^crop: padding 8 is too large for images of 8x8$"):
        host.tickets(0)
