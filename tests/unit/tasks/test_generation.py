"""Generation: its target, loss and sampler against NumPy, a run of digits with its
samples and export, and bad input.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import interrupted_run
import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf
from PIL import Image

from pipeline import evaluate, predict
from pipeline.config import command_line, python_call, registry
from pipeline.contracts import Info
from pipeline.data import seeds
from pipeline.data.in_memory import from_object
from pipeline.export import __main__ as export
from pipeline.fit import fit
from pipeline.models.simple import convnet
from pipeline.serving.arguments import Argument
from pipeline.serving.client import Client
from pipeline.tasks import _sample_quality as quality
from pipeline.tasks.generation import generation
from pipeline.training import plan, resolve
from pipeline.utils.errors import UsageError
from pipeline.utils.image_sheets import sheet

NAMES = ["zero", "one", "two"]
METADATA = {
    "image_shape": [4, 6, 2],
    "class_names": NAMES,
    "guidance": 2.0,
    "drop_label": 0.25,
    "samples": 12,
}
SMALL = {
    "model": {"options": {"widths": (16, 32)}},
    "runtime": {"precision": "float32"},
    "log": {"progress": False},
}
TINY = {**SMALL, "model": {"options": {"widths": (8,), "heads": 1}}}


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
    inputs, velocity, weight = task.target(task.prepare(batch), example_seeds)
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
    again, _, _ = task.target(task.prepare(part), tf.gather(example_seeds, rows))
    np.testing.assert_array_equal(again["image"], inputs["image"].numpy()[rows])
    outputs = linear(inputs, False)
    expected = ((outputs.numpy() - velocity.numpy()) ** 2).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(task.loss()(velocity, outputs), expected, rtol=1e-5)
    assert weight is batch["weight"]


def test_the_sampler_is_the_midpoint_rule_with_guidance(task):
    ids = tf.constant([11, 5, 3], tf.int64)
    classes = np.array([2, 0, 1], np.int32)
    guidance = np.array([1.0, 3.0, 0.0], np.float32)
    x = seeds.normal(ids, (4, 6, 2), 1003).numpy().astype(np.float64)

    def velocity(x, time):
        of_class = 0.3 * x * time - 0.2 * classes[:, None, None, None] + 0.1
        of_any = 0.3 * x * time - 0.2 * len(NAMES) + 0.1
        return of_any + guidance[:, None, None, None] * (of_class - of_any)

    for step in range(5):
        middle = x + velocity(x, step / 5) / 10
        x = x + velocity(middle, (step + 0.5) / 5) / 5
    expected = np.rint((x + 1) * 127.5).clip(0, 255)
    images = task.sample(linear, ids, tf.constant(classes), tf.constant(guidance), 5)
    assert images.dtype == tf.uint8
    assert np.abs(images.numpy() - expected).max() <= 1
    assert (images.numpy() == expected).mean() > 0.99
    alone = task.sample(
        linear, ids[1:2], tf.constant(classes[1:2]), tf.constant(guidance[1:2]), 5
    )
    np.testing.assert_array_equal(alone[0], images[1])


def test_the_frechet_distance_is_that_of_scipy():
    generator = np.random.default_rng(0)
    real = generator.normal(size=(500, 6)) @ generator.normal(size=(6, 6))
    samples = 1.5 * generator.normal(size=(300, 6)) + 0.3
    a, b = np.cov(real, rowvar=False), np.cov(samples, rowvar=False)
    expected = ((real.mean(0) - samples.mean(0)) ** 2).sum() + np.trace(
        a + b - 2 * scipy.linalg.sqrtm(a @ b).real
    )
    assert quality.frechet_distance(real, samples) == pytest.approx(expected, rel=1e-9)
    assert quality.frechet_distance(real, real) == pytest.approx(0, abs=1e-6)
    # Fewer images than features: the covariance is singular.
    few = quality.frechet_distance(real[:4], samples[:4])
    assert np.isfinite(few) and few > 0


def test_precision_and_recall_of_points():
    """Real points on a line at 0, 1, ..., 9; samples cover its first half, and one is
    far away.
    """
    real = np.arange(10.0)[:, None]
    samples = np.array([0.1, 1.1, 2.1, 3.1, 4.1, 50.0])[:, None]
    precision, recall = quality.precision_and_recall(real[:6], samples, neighbors=1)
    assert precision == 5 / 6
    # The radius of the sample at 50 reaches from 4.1 to 95.9.
    assert recall == 1.0
    precision, recall = quality.precision_and_recall(real, samples[:5], neighbors=1)
    assert precision == 1.0
    assert recall == 6 / 10  # 5 is 0.9 from 4.1, whose radius is 1
    assert quality.share_nearer(np.array([1.0, 3.0]), np.array([2.0, 3.0])) == 0.625


def test_the_nearest_images_are_found_in_pieces():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (40, 3, 3, 1), np.uint8)
    training = generator.integers(0, 256, (100, 3, 3, 1), np.uint8)
    training[70] = images[13]
    nearest = quality.Nearest(images)
    for start in range(0, 100, 30):
        nearest.add(training[start : start + 30])
    pixels = images.reshape(40, 1, 9).astype(float) - training.reshape(1, 100, 9)
    squares = (pixels**2).sum(axis=2)
    np.testing.assert_allclose(nearest.squares, squares.min(axis=1), rtol=1e-4, atol=1)
    np.testing.assert_array_equal(nearest.images, training[squares.argmin(axis=1)])
    assert nearest.squares[13] == pytest.approx(0, abs=1)


def test_a_sheet_has_rows_of_images():
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones(
        (1, 28, 28, 1), np.uint8
    )
    page = sheet(images, 3)
    assert page.shape == (2 * 58 - 2, 3 * 58 - 2, 3) and page.dtype == np.uint8
    assert (
        page[0, 58, 0] == 1 and page[58, 58, 2] == 4 and (page[58:, 116:] == 255).all()
    )


@pytest.fixture(scope="module")
def trained(digits_run, tmp_path_factory):
    """A short run of `digits_generation` that `digits_run` judges, with its export."""
    folder = tmp_path_factory.mktemp("generation")
    run = fit(
        "digits_generation",
        run_directory=folder / "run",
        task={
            "name": "generation",
            "options": {"judge": digits_run.directory, "samples": 60},
        },
        train={
            **{"epochs": 16, "evaluate_every": 8, "ema": 0.9},
            "learning_rate": 0.005,
        },
        export={"directory": folder / "saved_models", "batch_sizes": (1, 8)},
        **SMALL,
    )
    return run


def test_samples_are_measured_along_training_and_at_the_end(trained):
    metrics = trained.test
    assert trained.result["verification"]["passed"]
    assert metrics["samples"] == 60 and len(metrics["loss_by_time"]) == 10
    assert metrics["loss"] < 0.7  # 1.4 without training
    assert metrics["accuracy"] > 0.5 and metrics["judge_accuracy"] > 0.5
    assert 0 <= metrics["precision"] <= 1 and 0 <= metrics["recall"] <= 1
    assert 0 < metrics["nearer_than_real"] < 1
    distances = np.array(trained.history["val_frechet_distance"], float)
    assert np.isfinite(distances).nonzero()[0].tolist() == [7, 15]
    assert distances[15] < distances[7]
    assert trained.result["calibration"]["steps"] in (4, 8, 12, 16, 24, 32)
    folder = trained.directory
    names = {path.name for path in (folder / "pictures").iterdir()}
    assert names == {"samples-0008.png", "samples-0016.png"}
    assert (folder / "samples.png").is_file() and (folder / "nearest.png").is_file()
    events = folder / "tensorboard/pictures"
    assert b"samples" in next(events.iterdir()).read_bytes()
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "could not be made" not in report
    for words in (
        "samples, epoch 16",
        "Nearest",
        "this share of 60 samples",
        "Loss by time",
    ):
        assert words in report
    header = (folder / "predictions.csv").read_text().splitlines()[0]
    assert header == "file,class,time,loss"


def test_a_seed_gives_the_same_picture_in_any_batch(trained):
    """As served, and by the network of the run."""
    arguments = {
        "seed": [3, 9, 4],
        "class_id": [5, 0, 7],
        "guidance": [2.0, 1.0, 3.0],
    }
    images = trained.predict(**arguments)["images"]
    assert images.shape == (3, 8, 8, 1) and images.dtype == np.uint8
    alone = trained.predict(**{name: v[2:] for name, v in arguments.items()})["images"]
    assert np.abs(alone[0].astype(int) - images[2]).max() <= 1
    with Client(trained.export) as client:
        served = client.predict(**arguments)["images"]
    assert np.abs(served.astype(int) - images).max() <= 1
    assert np.abs(images[0].astype(int) - images[1]).max() > 50


def test_predict_writes_a_sheet(trained, workplace, capsys):
    words = [str(trained.directory), "--class", "3", "--count", "5", "--seed", "7"]
    assert predict.main(words) == 0
    name = trained.export.parent.name
    path = workplace / f"{name}-class-3-seed-7.png"
    assert f"5 pictures: {path.name}" in capsys.readouterr().err
    page = np.asarray(Image.open(path))
    assert page.shape == (2 * 58 - 2, 3 * 58 - 2, 3)
    first = trained.predict(seed=[7], class_id=[3], guidance=[2.0])["images"][0, ..., 0]
    shown = page[:56:7, :56:7, 0]
    assert np.abs(shown.astype(int) - first).max() <= 1
    words = [str(trained.export), "--output", "all.png", "--guidance=1", "--count=10"]
    assert predict.main(words) == 0 and (workplace / "all.png").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--class", "eleven"], "--class: unknown 'eleven'; "),
        (["--class", "10"], "--class must be a name, or from 0 to 9; got 10"),
        (["--count", "0"], "--count must be a whole number from 1 to"),
        (["--guidance", "nan"], "guidance must be from 0 to 20"),
        (["--guidance", "1e9"], "guidance must be from 0 to 20"),
        (["--seed", "1.5"], "--seed must be a whole number; got '1.5'"),
        (["--seed", "9" * 20], "--seed must fit int64"),
        (["--sed", "1"], "unknown option --sed; did you mean 'seed'?"),
        (["--seed"], "--seed needs a value"),
        (["--format", "csv"], "--format is not for models that draw pictures"),
        (["--output", "a.jpg"], "--output: a.jpg must end in .png"),
    ],
)
def test_wrong_arguments_are_one_line(trained, words, message):
    with pytest.raises(UsageError) as caught:
        predict.main([str(trained.export), *words])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_files_are_refused_by_a_model_that_draws(trained, workplace):
    (workplace / "a.png").write_bytes(b"")
    with pytest.raises(UsageError, match="draws pictures and takes no files: .*--seed"):
        predict.main([str(trained.export), "a.png"])


def test_classes_are_named_in_any_case():
    argument = Argument(0, np.dtype(np.int32), names=("Coat", "Sneaker", "2"))
    for word, number in {"sneaker": 1, "Coat": 0, "2": 2, "0": 0}.items():
        assert argument.values("--class", word, 2).tolist() == [number, number]
    assert argument.values("--class", None, 4).tolist() == [0, 1, 2, 0]
    assert Argument(5, np.dtype(np.int64), True).values("--seed", None, 3)[2] == 7


def test_a_model_that_takes_files_needs_them(digits_run):
    with pytest.raises(UsageError, match="MODEL FILES takes"):
        predict.main([str(digits_run.directory)])
    with pytest.raises(UsageError, match="--count is for models that draw pictures"):
        predict.main([str(digits_run.directory), "a.png", "--count", "3"])


def test_both_engines_and_a_stopped_run_are_equal(workplace, digits_run, monkeypatch):
    options = {"judge": digits_run.directory, "samples": 20, "steps": 2}
    changes = {
        **TINY,
        "task": {"name": "generation", "options": options},
        "source": {"name": "scikit_learn", "dataset": "digits"},
        "data": {"limit": 200, "validation": 0.1, "augment": {}},
        "train": {
            **{"epochs": 3, "batch_size": 16, "evaluate_every": 2},
            **{"steps_per_call": 1, "learning_rate": 0.01},
        },
        "export": {"enabled": False},
    }
    results = []
    for name, engine in (("a", "model_fit"), ("b", "gradient_tape")):
        folder = workplace / name
        train = {**changes["train"], "engine": engine}
        sections = {**changes, "train": train, "run_directory": folder}
        if engine == "gradient_tape":
            with monkeypatch.context() as patch:
                interrupted_run.stop_after(patch, calls=6)
                with pytest.raises(interrupted_run.Terminated):
                    fit("fashion_mnist_generation", **sections)
        run = fit("fashion_mnist_generation", **sections)
        results.append(interrupted_run.everything(run, folder))
    state, history, *_ = results[0]
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    assert len(state) > 20 and np.isfinite(history["val_recall"][1])
    for expected, actual in zip(state, results[1][0], strict=True):
        np.testing.assert_array_equal(expected, actual)
    assert json.dumps(results[0][1:]) == json.dumps(results[1][1:])


def test_an_export_is_not_evaluated_on_data(trained, workplace):
    np.savez("data.npz", images=np.zeros((9, 8, 8, 1), np.uint8), labels=np.arange(9))
    with pytest.raises(UsageError) as caught:
        evaluate.main([str(trained.export), "data.npz"])
    assert "evaluate its run: pipeline evaluate RUN" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mixed_images_are_refused():
    batch = {**batch_of(8), "partner_label": tf.zeros(8, tf.int64)}
    with pytest.raises(UsageError, match="mixup and cutmix"):
        generation(METADATA).target(batch, batch["id"])


def info_of(dtype=np.uint8, size=(8, 8)):
    images = np.zeros((30, *size, 3), dtype)
    return from_object((images, np.arange(30) % 2)).info


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"dtype": np.float32}, "generation takes images of uint8 pixels or files"),
        ({"size": (200, 60)}, "up to 128 x 128 pixels; got 200 x 60"),
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
    assert decoded["label"] == 0 and task.class_names == ["image"]


def test_a_run_is_measured_with_other_options(trained, digits_run, workplace):
    """More samples, and a judge that has been moved."""
    moved = shutil.copytree(digits_run.directory, workplace / "moved")
    words = [str(trained.directory), "--task.samples", "100", f"--task.judge={moved}"]
    assert evaluate.main([*words, "--output", "measured"]) == 0
    metrics = json.loads((workplace / "measured/metrics.json").read_text())
    assert metrics["samples"] == 100
    assert metrics["loss"] == pytest.approx(trained.test["loss"], rel=1e-5)
    assert abs(metrics["accuracy"] - trained.test["accuracy"]) < 0.2
    with pytest.raises(UsageError, match="--task.drop-label decides what a run learns"):
        evaluate.main([str(trained.directory), "--task.drop_label", "0.5"])
    with pytest.raises(UsageError, match="judge gone .*--task.judge RUN is another"):
        evaluate.main([str(trained.directory), "--task.judge", "gone"])
    with pytest.raises(UsageError, match="--task.samples is for runs"):
        evaluate.main([str(trained.export), "--task.samples", "9"])
    config = export.configure(
        trained.directory, ["--task.judge", "None", "--task.samples", "8", "--force"]
    )
    assert config.task.options == {"judge": None, "samples": 8}


def test_real_images_of_all_classes_are_compared(monkeypatch):
    """Also if the split is in the order of its classes, as class folders are."""
    task = generation({**METADATA, "samples": 30, "steps": 1})
    batch = batch_of(600)
    batch["label"] = tf.constant(np.arange(600) * 3 // 600)
    images = (
        np.zeros((600, 4, 6, 2), np.uint8) + np.arange(600).reshape(-1, 1, 1, 1) // 3
    )
    batch["image"] = tf.constant(images.astype(np.uint8))
    evaluator = task.evaluator(linear)
    for start in range(0, 600, 100):
        part = {name: values[start : start + 100] for name, values in batch.items()}
        answers = {"loss": tf.zeros(100), "time": tf.zeros(100)}
        evaluator.update(None, answers, part)
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

    monkeypatch.setattr(quality, "Judge", Oracle)
    metadata = {**METADATA, "samples": 30, "steps": 1, "judge": "run"}
    task = generation(metadata)
    numbers = (np.arange(30) * 8).astype(np.uint8)  # as if drawn, from 0 to 232
    samples = np.zeros((30, 4, 6, 2), np.uint8) + numbers[:, None, None, None]
    monkeypatch.setattr(task, "draw_samples", lambda *_: samples)
    evaluator = task.evaluator(linear)
    batch = {name: values[:10] for name, values in batch_of(10).items()}
    images = np.random.default_rng(0).permutation(samples[::3])
    batch["image"] = tf.constant(images)
    answers = {"loss": tf.zeros(10), "time": tf.zeros(10)}
    evaluator.update(None, answers, batch)
    assert evaluator.result()["recall"] == 1.0


def test_a_judge_must_classify_the_same_images(digits_run, tmp_path):
    with pytest.raises(UsageError, match="judge nowhere is not a finished run"):
        generation(info_of(), judge=Path("nowhere"))
    with pytest.raises(UsageError, match="must be a run that classifies 0, 1"):
        generation(info_of(), judge=digits_run.directory)
    info = registry.call("sources", "scikit_learn", {"dataset": "digits"}).info
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("metadata.json", "model.keras"):
        shutil.copy(digits_run.directory / name, copy)
    metadata = json.loads((copy / "metadata.json").read_text())
    metadata["image_shape"] = [9, 9, 1]
    (copy / "metadata.json").write_text(json.dumps(metadata))
    message = r"shape \[9, 9, 1\], not \[8, 8, 1\]; .* --data.image-size 8 8"
    with pytest.raises(UsageError, match=message):
        generation(info, judge=copy)
    # The network is loaded before training.
    metadata["image_shape"] = [8, 8, 1]
    (copy / "metadata.json").write_text(json.dumps(metadata))
    (copy / "model.keras").write_bytes(b"damaged")
    with pytest.raises(UsageError, match=r"judge .*run cannot be loaded"):
        generation(info, judge=copy)
    (copy / "metadata.json").write_text(json.dumps({**metadata, "raw": True}))
    with pytest.raises(UsageError, match="a Keras model of your own"):
        generation(info, judge=copy)


def test_a_folder_of_one_class_is_enough(workplace):
    """Without classes to tell apart, samples of the only class are drawn."""
    generator = np.random.default_rng(0)
    (workplace / "faces/all").mkdir(parents=True)
    for number in range(24):
        pixels = generator.integers(0, 256, (9, 7, 3), np.uint8)
        Image.fromarray(pixels).save(workplace / f"faces/all/{number}.png")
    with pytest.raises(UsageError, match="of only one class"):
        command_line.configure(["faces"])
    config = command_line.configure(["faces", "--task", "generation"])
    assert config.recipe == "generation" and config.source.name == "folder"
    assert config.name == "faces_generation"  # not the next version of a classifier
    with pytest.raises(
        UsageError, match="move them into one, such as faces/all/images"
    ):
        command_line.configure(["faces/all", "--task", "generation"])
    run = fit(
        "faces",
        task={"name": "generation", "options": {"steps": 1, "samples": 8}},
        epochs=1,
        batch_size=8,
        export={"enabled": False},
        **TINY,
    )
    assert run.test["loss"] > 0 and run.test["samples"] == 8
    answer = run.predict(seed=[1], class_id=[0], guidance=[1.0])
    assert answer["images"].shape == (1, 9, 7, 3)


def test_arrays_in_python_use_the_recipe(workplace):
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), np.uint8)
    request = python_call.request(
        None, {"data": (images, np.arange(30) % 2), "task": "generation"}
    )
    assert request.config.recipe == "generation"
    assert request.config.model.name == "diffusion_unet"


def test_other_models_suggest_the_network_of_generation(task):
    with pytest.raises(UsageError, match="image, time, class; .*diffusion_unet"):
        convnet(task.inputs())


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


def test_a_thousand_classes_have_a_sheet():
    names = [f"class {number}" for number in range(1000)]
    task = generation({**METADATA, "class_names": names, "samples": 40, "steps": 1})
    evaluator = task.evaluator(linear)
    batch = batch_of(8)
    inputs, y, _ = task.target(task.prepare(batch), batch["id"])
    outputs = linear(inputs, False)
    answers = {**task.answer(outputs, batch), "loss": task.loss()(y, outputs)}
    evaluator.update(outputs, answers, batch)
    evaluator.update_training(batch)
    assert evaluator.result()["nearer_than_real"] >= 0
    assert evaluator.pictures()["samples"].ndim == 3
