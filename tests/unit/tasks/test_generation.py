"""Generation: its target, loss, sampler and measurement against NumPy, and bad input."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config import command_line, python_call
from pipeline.contracts import Info
from pipeline.data import seeds
from pipeline.data.in_memory import from_object
from pipeline.evaluation import sample_quality as quality
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.evaluation.targets import generation as of_samples
from pipeline.models.simple import convnet
from pipeline.tasks.generation import generation
from pipeline.training import plan, resolve
from pipeline.utils.errors import UsageError

NAMES = ["zero", "one", "two"]
METADATA = {
    "image_shape": [4, 6, 2],
    "class_names": NAMES,
    "guidance": 2.0,
    "drop_label": 0.25,
    "samples": 12,
}


@pytest.fixture
def task():
    return generation(METADATA)


def batch_of(count=4000, seed=0):
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 4, 6, 2), np.uint8)
    return {
        "id": tf.range(count, dtype=tf.int64),
        "image": tf.constant(images),
        "label": tf.constant(np.arange(count) % 3),
        "weight": tf.ones(count),
    }


def linear(inputs, training):
    """A network that can be computed by hand: it depends on all of its inputs."""
    time = inputs["time"][:, None, None, None]
    label = tf.cast(inputs["class"], tf.float32)[:, None, None, None]
    return 0.3 * inputs["image"] * time - 0.2 * label + 0.1


def test_noise_is_normal_and_differs_from_example_to_example():
    noise = seeds.normal(tf.range(3000, dtype=tf.int64), (5, 4)).numpy()
    assert noise.shape == (3000, 5, 4) and noise.dtype == np.float32
    flat = noise.reshape(3000, -1)
    assert abs(noise.mean()) < 0.01 and abs(noise.std() - 1) < 0.01
    assert 3.5 < np.abs(noise).max() < 5.5
    correlation = np.corrcoef(flat, rowvar=False) - np.eye(20)
    assert np.abs(correlation).max() < 0.08
    again = seeds.normal(tf.constant([7, 2], tf.int64), (5, 4)).numpy()
    np.testing.assert_array_equal(again, noise[[7, 2]])
    other = seeds.normal(tf.range(3000, dtype=tf.int64), (5, 4), draw=1).numpy()
    assert abs(np.corrcoef(noise.ravel(), other.ravel())[0, 1]) < 0.02


def test_the_target_is_the_velocity_from_noise_to_the_example(task):
    batch = batch_of()
    example_seeds = batch["id"] + 5
    inputs, velocity, weight = task.step_inputs(batch, example_seeds)
    images = batch["image"].numpy() / 127.5 - 1
    time = inputs["time"].numpy()
    noise = images - velocity.numpy()
    mixed = time[:, None, None, None] * images
    mixed += (1 - time[:, None, None, None]) * noise
    np.testing.assert_allclose(inputs["image"], mixed, atol=1e-5)
    assert abs(noise.mean()) < 0.01 and abs(noise.std() - 1) < 0.01
    logits = np.log(time / (1 - time))  # of a standard normal distribution
    assert abs(logits.mean()) < 0.05 and abs(logits.std() - 1) < 0.05
    assert abs(np.corrcoef(logits, noise[:, 0, 0, 0])[0, 1]) < 0.05
    classes = inputs["class"].numpy()
    is_hidden = classes == len(NAMES)
    assert abs(is_hidden.mean() - METADATA["drop_label"]) < 0.03
    shown = batch["label"].numpy()[~is_hidden]
    np.testing.assert_array_equal(classes[~is_hidden], shown)
    # By example and seed alone, whatever the batch.
    rows = np.array([9, 4])
    part = {name: tf.gather(values, rows) for name, values in batch.items()}
    again, _, _ = task.step_inputs(part, tf.gather(example_seeds, rows))
    np.testing.assert_array_equal(again["image"], inputs["image"].numpy()[rows])
    outputs = linear(inputs, False)
    expected = ((outputs.numpy() - velocity.numpy()) ** 2).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(
        task.target.loss()(velocity, outputs), expected, rtol=1e-5
    )
    assert weight is batch["weight"]


def test_the_sampler_is_the_midpoint_rule_with_guidance(task):
    ids = tf.constant([11, 5, 3], tf.int64)
    classes = np.array([2, 0, 1], np.int32)
    guidance = np.array([1.0, 3.0, 0.0], np.float32)
    x = seeds.normal(ids, (4, 6, 2), 1003).numpy().astype(np.float64)

    def velocity(x, time):
        of_class = 0.3 * x * time - 0.2 * classes[:, None, None, None] + 0.1
        of_any = 0.3 * x * time - 0.2 * len(NAMES) + 0.1
        scale = np.where((time >= 0.2) | (guidance < 1), guidance, 1)
        return of_any + scale[:, None, None, None] * (of_class - of_any)

    for step in range(5):
        middle = x + velocity(x, step / 5) / 10
        x = x + velocity(middle, (step + 0.5) / 5) / 5
    expected = np.rint((x + 1) * 127.5).clip(0, 255)
    images = task.target.sampler.sample(
        linear, ids, tf.constant(classes), tf.constant(guidance), 5
    )
    assert images.dtype == tf.uint8
    assert np.abs(images.numpy() - expected).max() <= 1
    assert (images.numpy() == expected).mean() > 0.99
    alone = task.target.sampler.sample(
        linear, ids[1:2], tf.constant(classes[1:2]), tf.constant(guidance[1:2]), 5
    )
    np.testing.assert_array_equal(alone[0], images[1])


def test_mixed_images_are_refused():
    batch = {**batch_of(8), "partner_label": tf.zeros(8, tf.int64)}
    with pytest.raises(UsageError, match="mixup and cutmix"):
        generation(METADATA).step_inputs(batch, batch["id"])


def info_of(dtype=np.uint8, size=(8, 8)):
    images = np.zeros((30, *size, 3), dtype)
    return from_object((images, np.arange(30) % 2)).info


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"dtype": np.float32}, "uint8 pixels or files"),
        ({"size": (200, 60)}, "128 x 128 pixels; got 200 x 60"),
    ],
)
def test_other_images_are_refused(info, message):
    with pytest.raises(UsageError, match=message):
        generation(info_of(**info))


def test_images_without_classes_are_all_of_one():
    fields = {
        "id": tf.TensorSpec((), tf.int64),
        "image": tf.TensorSpec((8, 8, 1), tf.uint8),
    }
    task = generation(Info({"train": 9}, fields))
    image = tf.zeros((8, 8, 1), tf.uint8)
    decoded = task.decode({"id": tf.constant(3, tf.int64), "image": image})
    assert decoded["label"] == 0 and task.metadata["class_names"] == ["image"]


@pytest.mark.parametrize(
    ("levels", "chosen"),
    [({4: 110.0, 8: 104.0, 12: 102.5}, 12), ({4: 97.5}, 4), ({}, 32)],
)
def test_the_fewest_steps_whose_samples_are_close_are_chosen(
    task, monkeypatch, levels, chosen
):
    """Close to those of 64 steps, of level 100."""

    def draw(model, classes, steps):
        return np.full(
            (len(classes), 4, 6, 2), levels.get(steps, 50 + 50 * (steps > 40))
        )

    monkeypatch.setattr(task.target.sampler, "draw_samples", draw)
    result = evaluation_of(task.target).calibrator(linear).result()
    assert result["steps"] == chosen
    assert result["differences"][str(chosen)] == abs(levels.get(chosen, 50) - 100)
    assert (
        evaluation_of(generation({**METADATA, "steps": 5}).target).calibrator(linear)
        is None
    )


def test_real_images_of_all_classes_are_compared(monkeypatch):
    """Also if the split is in the order of its classes, as class folders are."""
    task = generation({**METADATA, "samples": 30, "steps": 1})
    batch = batch_of(600)
    batch["label"] = tf.constant(np.arange(600) * 3 // 600)
    images = (
        np.zeros((600, 4, 6, 2), np.uint8) + np.arange(600).reshape(-1, 1, 1, 1) // 3
    )
    batch["image"] = tf.constant(images.astype(np.uint8))
    evaluator = evaluation_of(task.target).evaluator(linear)
    for start in range(0, 600, 100):
        part = {name: values[start : start + 100] for name, values in batch.items()}
        predictions = {"loss": tf.zeros(100), "time": tf.zeros(100)}
        evaluator.update(None, predictions, part)
    compared = []
    monkeypatch.setattr(quality, "Nearest", lambda images: compared.append(images))
    with pytest.raises(AttributeError):  # there is nothing to compare with
        evaluator.update_training(batch)
    _, real = compared
    counts = np.bincount(real[:, 0, 0, 0].astype(int) * 3 // 200, minlength=3)
    assert len(real) == 30 and counts.min() >= 4
    np.testing.assert_array_equal(quality.spread(10, 4), [0, 2, 5, 7])
    np.testing.assert_array_equal(quality.spread(3, 3), [0, 1, 2])


def test_recall_counts_all_classes(monkeypatch):
    """With fewer real images than samples, which are in the order of their classes."""

    class Oracle:
        def __init__(self, run, class_names):
            pass

        def __call__(self, images):
            values = images[:, 0, 0, 0].astype(np.float64)
            return values[:, None], np.zeros(len(images), int)

    monkeypatch.setattr(of_samples, "Judge", Oracle)
    metadata = {**METADATA, "samples": 30, "steps": 1, "judge": "run"}
    task = generation(metadata)
    numbers = (np.arange(30) * 8).astype(np.uint8)  # as if drawn, from 0 to 232
    samples = np.zeros((30, 4, 6, 2), np.uint8) + numbers[:, None, None, None]
    monkeypatch.setattr(task.target.sampler, "draw_samples", lambda *_: samples)
    evaluator = evaluation_of(task.target).evaluator(linear)
    batch = {name: values[:10] for name, values in batch_of(10).items()}
    images = np.random.default_rng(0).permutation(samples[::3])
    batch["image"] = tf.constant(images)
    predictions = {"loss": tf.zeros(10), "time": tf.zeros(10)}
    evaluator.update(None, predictions, batch)
    assert evaluator.result()["recall"] == 1.0


def test_other_models_suggest_the_network_of_generation(task):
    with pytest.raises(UsageError, match="image, time, class; .*diffusion_unet"):
        convnet(task.input.inputs())


def test_a_thousand_classes_have_a_sheet():
    names = [f"class {number}" for number in range(1000)]
    task = generation({**METADATA, "class_names": names, "samples": 40, "steps": 1})
    evaluator = evaluation_of(task.target).evaluator(linear)
    batch = batch_of(8)
    inputs, y, _ = task.step_inputs(batch, batch["id"])
    outputs = linear(inputs, False)
    predictions = {
        **task.target.predict(outputs, batch),
        "loss": task.target.loss()(y, outputs),
    }
    evaluator.update(outputs, predictions, batch)
    evaluator.update_training(batch)
    assert evaluator.result()["nearer_than_real"] >= 0
    assert evaluator.pictures()["samples"].ndim == 3


def test_a_folder_of_one_class_is_for_generation_only(workplace):
    (workplace / "faces/all").mkdir(parents=True)
    for number in range(3):
        (workplace / f"faces/all/{number}.png").touch()
    with pytest.raises(UsageError, match="only one class"):
        command_line.configure(["faces"])
    config = command_line.configure(["faces", "--task", "generation"])
    assert config.recipe == "generation" and config.source.name == "folder"
    assert config.name == "faces_generation"  # not the next version of a classifier
    with pytest.raises(UsageError, match="faces/all/images"):
        command_line.configure(["faces/all", "--task", "generation"])


def test_arrays_in_python_use_the_recipe():
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), np.uint8)
    request = python_call.request(
        None, {"data": (images, np.arange(30) % 2), "task": "generation"}
    )
    assert request.config.recipe == "generation"
    assert request.config.model.name == "diffusion_unet"


def test_own_images_are_sampled_every_2000_steps(workplace):
    """Sampling takes about as long as 85 steps: with few images, longer than training
    if it followed each tenth epoch.
    """
    images = np.zeros((600, 8, 8, 1), np.uint8)
    arguments = {"data": (images, np.arange(600) % 2), "task": "generation"}
    request = python_call.request(None, arguments)
    source = from_object((images, np.arange(600) % 2))
    chosen = plan.enough_epochs(request, source)
    assert chosen.train.epochs == 154  # 13 steps each
    assert chosen.train.evaluate_every == 154
    request = python_call.request(None, {**arguments, "train": {"evaluate_every": 7}})
    assert plan.enough_epochs(request, source).train.evaluate_every == 7
    dry = resolve.resolve(
        request, SimpleNamespace(is_chief=False, cluster=None), folder=workplace
    )
    assert dry.task.options["samples"] == 8
