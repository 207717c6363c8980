"""MixUp and CutMix: who is mixed with whom, by how much, and what is
learned from it.
"""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from pipeline.config import registry
from pipeline.data import seeds
from pipeline.data.augment import mixing
from pipeline.utils.errors import UsageError

CLASSES = 4
TASK = registry.load("tasks", "image_classification")(
    {"class_names": ["a", "b", "c", "d"], "image_shape": [8, 8, 3]}
)
MIXERS = {name: registry.load("augment", name) for name in ("mixup", "cutmix")}


def batch_of(count=16):
    generator = np.random.default_rng(4)
    ids = tf.range(count, dtype=tf.int64) + 70
    batch = {
        "image": tf.constant(generator.integers(0, 256, (count, 8, 8, 3), np.uint8)),
        "label": tf.constant(generator.integers(0, CLASSES, count)),
        "weight": tf.ones([count]),
    }
    return batch, seeds.example_seeds(2, tf.zeros_like(ids), ids)


def test_mixup_is_the_mean_by_shares():
    batch, example_seeds = batch_of(200)
    done = MIXERS["mixup"](batch, example_seeds, alpha=1.0)
    partner = np.arange(200) ^ 1
    images, share = batch["image"].numpy().astype(float), done["share"].numpy()
    by = share[:, None, None, None].astype(float)
    expected = images * by + images[partner] * (1 - by)
    np.testing.assert_array_equal(done["image"], np.round(expected).astype(np.uint8))
    np.testing.assert_array_equal(
        done["partner_label"], batch["label"].numpy()[partner]
    )
    assert share.min() < 0.05 and share.max() > 0.95


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_shares_are_beta_distributed(alpha):
    from scipy import stats

    example_seeds = seeds.example_seeds(
        0, tf.zeros([20_000], tf.int64), tf.range(20_000, dtype=tf.int64)
    )
    drawn = seeds.choice(example_seeds, mixing._beta_quantiles(alpha)).numpy()
    assert (
        drawn.dtype == np.float32 and (drawn * 2**16 == np.round(drawn * 2**16)).all()
    )
    # Rounding to 2**-16 makes steps, which near the ends of Beta(0.2, 0.2) are large
    # ones.
    inner = drawn[(drawn > 0.01) & (drawn < 0.99)]
    low, high = stats.beta.cdf([0.01, 0.99], alpha, alpha)
    assert abs(len(inner) / 20_000 - (high - low)) < 0.01
    conditional = (stats.beta.cdf(inner, alpha, alpha) - low) / (high - low)
    assert stats.kstest(conditional, "uniform").pvalue > 1e-3


def test_cutmix_puts_one_rectangle_in_and_counts_it():
    batch, example_seeds = batch_of(400)
    size = np.random.default_rng(5).integers(0, 256, (400, 24, 20, 3), np.uint8)
    batch["image"] = tf.constant(
        size // 2 * 2 + (np.arange(400) % 2)[:, None, None, None]
    )
    batch["image"] = tf.cast(batch["image"], tf.uint8)
    done = MIXERS["cutmix"](batch, example_seeds)
    images = batch["image"].numpy()
    for i, image in enumerate(done["image"].numpy()):
        foreign = image[..., 0] % 2 != i % 2
        assert abs(1 - foreign.mean() - done["share"][i]) <= 2**-17
        np.testing.assert_array_equal(image[foreign], images[i ^ 1][foreign])
        np.testing.assert_array_equal(image[~foreign], images[i][~foreign])
        if foreign.any():
            rows, columns = foreign.any(axis=1).sum(), foreign.any(axis=0).sum()
            assert foreign.sum() == rows * columns, "not one rectangle"
    # Beta(1, 1) is uniform: the mean kept is 1 - E[area], more than 1/2 as borders cut.
    assert 0.55 < np.mean(done["share"]) < 0.70


@pytest.mark.parametrize("name", MIXERS)
def test_a_share_of_the_images_is_changed(name):
    batch, example_seeds = batch_of(2000)
    done = MIXERS[name](batch, example_seeds, probability=0.25)
    always = MIXERS[name](batch, example_seeds)
    share = done["share"].numpy()
    changed = share < 1
    assert (
        0.15 < changed.mean() < 0.28
    )  # small rectangles and weights are rounded to nothing
    np.testing.assert_array_equal(
        done["image"][~changed], batch["image"].numpy()[~changed]
    )
    np.testing.assert_array_equal(
        done["image"][changed], always["image"].numpy()[changed]
    )
    np.testing.assert_array_equal(share[changed], always["share"].numpy()[changed])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda b: {k: v[:15] for k, v in b.items()},
            "pairs the examples .* has 15 examples",
        ),
        (lambda b: {k: v for k, v in b.items() if k != "label"}, "mixes labels"),
        (lambda b: {**b, "partner_label": b["label"]}, "use only one of them"),
    ],
)
@pytest.mark.parametrize("name", MIXERS)
def test_what_cannot_be_mixed_is_refused(name, change, message):
    batch, example_seeds = batch_of()
    changed = change(batch)
    with pytest.raises(UsageError, match=message):
        MIXERS[name](changed, example_seeds[: changed["image"].shape[0]])


def mixed_target():
    batch, example_seeds = batch_of()
    done = MIXERS["mixup"](batch, example_seeds, alpha=1.0)
    _, y, _ = TASK.step_inputs(done, example_seeds)
    outputs = tf.constant(
        np.random.default_rng(6).normal(0, 2, (16, CLASSES)), tf.float32
    )
    return batch["label"].numpy(), done["share"].numpy(), y, outputs


def test_the_loss_of_two_labels_is_the_mean_of_their_losses():
    label, share, y, outputs = mixed_target()
    assert y.shape == (16, CLASSES) and y.dtype == tf.float32
    np.testing.assert_allclose(np.sum(y, axis=1), 1, atol=1e-6)
    one_hot, partner = np.eye(CLASSES, dtype=np.float32)[
        [label, label[np.arange(16) ^ 1]]
    ]
    for loss in (
        TASK.target.loss(),
        TASK.target.training_loss(0.1, {}),
        TASK.target.training_loss(0.1, {"b": 3.0, "d": 0.5}),
    ):
        expected = share * loss(one_hot, outputs) + (1 - share) * loss(partner, outputs)
        np.testing.assert_allclose(loss(y, outputs), expected, rtol=2e-6)
    logs = special.log_softmax(outputs, axis=1)
    np.testing.assert_allclose(
        TASK.target.loss()(y, outputs), -(y * logs).numpy().sum(axis=1), rtol=1e-5
    )


def test_accuracy_counts_the_larger_share():
    label, share, y, outputs = mixed_target()
    (accuracy,) = TASK.target.metrics()
    accuracy.update_state(y, outputs, sample_weight=tf.ones([16]))
    larger = np.where(share >= 0.5, label, label[np.arange(16) ^ 1])
    expected = np.mean(np.argmax(outputs, axis=1) == larger)
    assert float(accuracy.result()) == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_images_are_mixed_in_the_first_epochs_only(name):
    batch, example_seeds = batch_of()
    always = MIXERS[name](batch, example_seeds, alpha=1.0)
    epochs = tf.constant([2, 3] * 8, tf.int64)
    done = MIXERS[name]({**batch, "epoch": epochs}, example_seeds, alpha=1.0, epochs=3)
    for field in ("image", "share"):
        np.testing.assert_array_equal(done[field][::2], always[field][::2])
    np.testing.assert_array_equal(done["image"][1::2], batch["image"][1::2])
    assert (done["share"][1::2].numpy() == 1).all()
    assert not (always["share"][::2].numpy() == 1).all()
