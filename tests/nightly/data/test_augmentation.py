"""All augmentations of a run: the same bits on the host, in the step and in parts."""

import numpy as np
import pytest
import tensorflow as tf
from toy_problem import TASK, machine, settings_of, two_epochs

from pipeline.data.augmentation import Augmenter, augment_on_host
from pipeline.training.model_builder import build
from pipeline.utils.errors import UsageError

SOME = {
    "alternating_flip": {},
    "affine": {},
    "color_jitter": {},
    "erase": {},
    "mixup": {},
}


@pytest.mark.parametrize("xla", [False, True])
def test_host_and_step_give_the_same_bits(xla):
    augmenter, plain = Augmenter(SOME, 4), two_epochs()
    inside = tf.function(augmenter, jit_compile=xla, autograph=False)
    host = augment_on_host(plain, augmenter)
    assert host.dataset(0).element_spec["image"].shape == (8, 8, 8, 1)
    changed = 0
    for batch, on_the_host in zip(plain.dataset(0), host.dataset(0), strict=True):
        in_the_step = inside(batch)
        assert in_the_step.keys() == on_the_host.keys()
        for key, value in in_the_step.items():
            np.testing.assert_array_equal(value, on_the_host[key], key)
        changed += (on_the_host["image"].numpy() != batch["image"].numpy()).mean()
    assert changed > 1, "nothing was augmented"


OWN = """
import tensorflow as tf


def mirror(batch, seeds):
    flipped = tf.numpy_function(lambda x: x[:, :, ::-1].copy(), [batch["image"]], tf.uint8)
    return {**batch, "image": flipped}


def unit(batch, seeds):
    return {**batch, "image": tf.cast(batch["image"], tf.float32) / 255}


def unit_levels(batch, seeds):
    return {**batch, "image": batch["image"] // 255}


def small(batch, seeds):
    return {**batch, "image": batch["image"][:, 1:]}


def numpy_small(batch, seeds):
    return {**batch, "image": tf.numpy_function(lambda x: x[:, 1:], [batch["image"]], tf.uint8)}


def bare(batch, seeds):
    return {"image": batch["image"]}


def picture(batch, seeds):
    return batch["image"]
"""


RETURN = r"must return 'image' as uint8 from 0 to 255 of shape \(8, 8, 8, 1\); got"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unit", rf"{RETURN} float32 of shape \(8, 8, 8, 1\)"),
        ("small", rf"{RETURN} uint8 of shape \(8, 7, 8, 1\)"),
        ("numpy_small", rf"{RETURN} uint8 of shape \(8, 7, 8, 1\)"),
        (
            "unit_levels",
            (
                "must keep the range of the images, uint8 from 0 to 255; the largest"
                " value of the first batch is 255 before it and 1 after it"
            ),
        ),
        ("bare", "must also return the field '(id|label)'"),
        ("picture", "must return the batch, a dictionary of tensors; got .*Tensor"),
    ],
)
def test_an_augmentation_that_damages_the_images_is_named(
    tmp_path, monkeypatch, name, message
):
    (tmp_path / "own_augmentations.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    path = f"own_augmentations.{name}"
    chain = {"flip": {}, "own_augmentations.mirror": {}, path: {}, "mixup": {}}
    settings = settings_of(data={"augment": chain})
    for in_step in (True, False):
        with pytest.raises(UsageError, match=rf"\A--data.augment: {path} {message}\Z"):
            build(TASK, settings, machine(), two_epochs(), augment_in_step=in_step)
    if name == "unit":  # the others of the chain are used
        del chain[path]
        build(TASK, settings_of(data={"augment": chain}), machine(), two_epochs())
