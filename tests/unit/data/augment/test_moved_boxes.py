"""Augmentations move boxes with what is in them."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config import registry
from pipeline.data import seeds
from pipeline.data.augmentation import Augmenter
from pipeline.utils.errors import UsageError

SIZE = (48, 64)
COUNT = 32
MOVING = {
    "flip": {"up_down": True},
    "alternating_flip": {},
    "crop": {"padding": 9},
    "random_resized_crop": {"scale": (0.2, 1.0)},
    "affine": {"rotation": 0.0, "translation": 0.2, "scale": (0.6, 1.5)},
    "mosaic": {"probability": 1.0},
}


def batch_of(count=COUNT):
    """Black images with two bright rectangles, the red and the blue channel, and their
    boxes: labels 0 and 2."""
    generator = np.random.default_rng(0)
    images = np.zeros((count, *SIZE, 3), np.uint8)
    boxes = np.zeros((count, 6, 4), np.float32)
    labels = np.full((count, 6), -1, np.int32)
    for row in range(count):
        for number, channel in enumerate((0, 2)):
            top = generator.integers(0, 30)
            left = generator.integers(0, 40)
            bottom = top + generator.integers(8, 18)
            right = left + generator.integers(8, 24)
            images[row, top:bottom, left:right, channel] = 200
            boxes[row, number] = left, top, right, bottom
            labels[row, number] = channel
    ids = tf.range(count, dtype=tf.int64)
    epoch = tf.zeros([count], tf.int64)
    own = seeds.example_seeds(1, epoch, ids)
    return {
        **{"image": tf.constant(images), "boxes": tf.constant(boxes)},
        "box_labels": tf.constant(labels),
        "box_ignored": tf.zeros([count, 6], tf.uint8),
        **{"id": ids, "epoch": epoch, "lasting_seed": seeds.fold(own, 9)},
    }, own


def visible(image, channel):
    """The smallest box around the bright pixels of a channel; None if there are few."""
    rows, columns = np.nonzero(image[..., channel] > 100)
    if len(rows) < 4:
        return None
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


@pytest.mark.parametrize("name", [name for name in MOVING if name != "mosaic"])
def test_a_box_stays_around_its_rectangle(name):
    batch, own = batch_of()
    operation = registry.bind("augment", name, MOVING[name])
    after = operation(batch, own)
    boxes, labels = after["boxes"].numpy(), after["box_labels"].numpy()
    assert (boxes != batch["boxes"].numpy()).any(axis=(1, 2)).mean() > 0.3
    assert boxes.min() >= 0 and (boxes <= np.tile(SIZE[::-1], 2)).all()
    seen = 0
    for row, image in enumerate(after["image"].numpy()):
        for number, channel in enumerate((0, 2)):
            around = visible(image, channel)
            if labels[row, number] < 0:
                assert around is None
            elif around is not None:
                seen += 1
                assert labels[row, number] == channel
                assert np.abs(boxes[row, number] - around).max() <= 1.5
    assert seen > COUNT
    part = {key: value[5:9] for key, value in batch.items()}
    again = operation(part, own[5:9])
    np.testing.assert_array_equal(again["boxes"], boxes[5:9])


def test_a_mosaic_has_the_boxes_of_four_images():
    batch, own = batch_of()
    operation = registry.bind("augment", "mosaic", MOVING["mosaic"])
    after = operation(batch, own)
    counts = (after["box_labels"].numpy() >= 0).sum(axis=1)
    assert counts.max() > 2 and (counts >= 0).all()
    changed = (after["image"].numpy() != batch["image"].numpy()).any(axis=(1, 2, 3))
    assert changed.mean() > 0.5
    for row, image in enumerate(after["image"].numpy()):
        covered = np.zeros((*SIZE, 3), bool)
        boxes = after["boxes"][row].numpy().astype(int)
        for box, label in zip(boxes, after["box_labels"][row].numpy(), strict=True):
            if label >= 0:
                left, top, right, bottom = box
                inside = image[top:bottom, left:right, label] > 100
                assert inside.all()
                covered[top:bottom, left:right, label] = True
        np.testing.assert_array_equal(covered, image > 100)


@pytest.mark.long
def test_a_mosaic_is_the_same_under_xla():
    batch, own = batch_of()
    operation = registry.bind("augment", "mosaic", MOVING["mosaic"])
    after = operation(batch, own)
    compiled = tf.function(operation, jit_compile=True)(batch, own)
    np.testing.assert_array_equal(compiled["image"], after["image"])
    np.testing.assert_array_equal(compiled["boxes"], after["boxes"])


def test_a_box_of_which_little_remains_does_not_count():
    batch, own = batch_of()
    operation = registry.bind("augment", "crop", {"padding": 40})
    after = operation(batch, own)
    before = batch["boxes"].numpy()[:, :2]
    boxes = after["boxes"].numpy()[:, :2]
    area = np.prod(boxes[..., 2:] - boxes[..., :2], axis=-1)
    share = area / np.prod(before[..., 2:] - before[..., :2], axis=-1)
    is_box = after["box_labels"].numpy()[:, :2] >= 0
    is_ignored = after["box_ignored"].numpy()[:, :2] > 0
    np.testing.assert_array_equal(is_box, share > 0)
    np.testing.assert_array_equal(is_ignored[is_box], share[is_box] < 0.25)
    assert is_ignored[is_box].any() and not is_box.all()


def test_only_operations_that_move_boxes_are_accepted():
    Augmenter({"flip": {}, "mosaic": {}, "erase": {}}, 0, ("boxes",))
    for name in ("cutmix", "rand_augment"):
        with pytest.raises(UsageError, match=f"{name} moves the image, but not its bo"):
            Augmenter({name: {}}, 0, ("boxes",))


def test_a_mosaic_needs_boxes_and_groups_of_four():
    mosaic = registry.bind("augment", "mosaic", {})
    batch, own = batch_of(6)
    with pytest.raises(UsageError, match="must be a multiple of 4"):
        mosaic(batch, own)
    batch, own = batch_of(4)
    del batch["boxes"]
    with pytest.raises(UsageError, match="mosaic joins images with boxes"):
        mosaic(batch, own)
